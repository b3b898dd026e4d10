"""Fixtures of the fleet's tests: a folder for deployments, of which nothing is left running."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corelane.fleet.deployment import take_down
from corelane.fleet.plan import Plan
from corelane.fleet.state import Folder
from support.fleets import Said, start_supervisor, wait_for_all


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Where deployments are made; whatever a test leaves running in it is stopped."""
    yield tmp_path
    for folder in tmp_path.glob(".corelane/*"):
        take_down(Folder(folder), say=lambda _: None)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def supervise() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the supervisor of a plan, by default until all is ready."""
    started: list[subprocess.Popen[bytes]] = []

    def start(plan: Plan, *, until_ready: bool = True) -> subprocess.Popen[bytes]:
        started.append(start_supervisor(plan))
        if until_ready:
            wait_for_all(plan)
        return started[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)

"""Stand-ins that end with their test, and ports."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from support.stand_ins import Behaviour, StandIn, healthy


@pytest.fixture
def stand_in() -> Iterator[Callable[..., StandIn]]:
    """Start a stand-in: `stand_in(behaviour, core=0, port=0)`."""
    running: list[StandIn] = []

    def start(behaviour: Behaviour = healthy, core: int = 0, port: int = 0) -> StandIn:
        running.append(StandIn(behaviour, core, port))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture
def closed_port() -> int:
    """A port where nothing listens: the system gave it, and will not give it again at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _neighbours(count: int) -> int:
    """The first of `count` neighbouring free ports."""
    while True:
        with contextlib.ExitStack() as stack:
            first = 0
            try:
                for place in range(count):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", first + place if first else 0))
                    first = first or int(probe.getsockname()[1])
            except (OSError, OverflowError):
                continue
            return first


@pytest.fixture
def two_ports() -> int:
    """The first of two neighbouring free ports."""
    return _neighbours(2)


@pytest.fixture
def three_ports() -> int:
    """The first of three neighbouring free ports."""
    return _neighbours(3)

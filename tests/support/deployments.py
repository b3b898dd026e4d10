"""Clean clones and their deployments, made and asked the way a user does it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.servers import Reply, ask, free_port

PROJECT = Path(__file__).resolve().parents[2]
INSTALL_DEADLINE_S = 900


def free_run_of_ports(length: int) -> int:
    """The first of `length` free ports in a row."""
    while True:
        first = free_port()
        if all(_is_free(first + step) for step in range(length)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class Deployment:
    """A clone and the ports it is deployed on."""

    root: Path
    first_port: int
    gateway_port: int
    name: str = "corelane"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CORELANE_", "NEURON_", "PYTHON"))}
        return inherited | {
            "CORELANE_FIRST_PORT": str(self.first_port),
            "CORELANE_GATEWAY_PORT": str(self.gateway_port),
            "CORELANE_DOCKER_CONTAINER_NAME_PREFIX": self.name,
            "VIRTUAL_ENV": "",
        }

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the clone from a folder that is not its root, as people do."""
        return subprocess.run(
            [str(self.root / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            timeout=INSTALL_DEADLINE_S,
            cwd="/",
            env=self.environment | more,
            check=False,
        )

    def core(self, number: int, path: str, body=None, **options) -> Reply:
        return ask(self.first_port + number, path, body, **options)

    def gateway(self, path: str, body=None, **options) -> Reply:
        return ask(self.gateway_port, path, body, **options)


def clone(target: Path) -> Path:
    """Every file that git tracks, or would: what a clone of this state of the tree holds."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (PROJECT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, target / name)
    return target

"""What a deployment leaves on disk: `<root>/.corelane/<name>/`, its files, its lock.

    state.json    the supervisor that runs now (written by it, removed by it when it ends as asked)
    status.json   what each process of the deployment is doing (written by the supervisor at every change)
    plan.json    what the supervisor was told
    config.properties, .env, haproxy.cfg, cores.map   what its members run with: the settings of the last `up`
    failure.json  why the last start was given up (written by `up`, removed by the next start and by `down`)
    logs/         core-N.log, gateway.log, supervisor.log; they outlive a stop

Every file is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corelane.fleet.processes import Process

_LOCK_POLL_S = 0.05


@dataclass(frozen=True)
class Folder:
    """The files of one deployment."""

    path: Path

    @classmethod
    def of(cls, root: Path, name: str) -> Folder:
        return cls(root / ".corelane" / name)

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def failure(self) -> Path:
        return self.path / "failure.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, member: str) -> Path:
        return self.logs / f"{member}.log"

    def make(self) -> None:
        # The plan holds the settings, and the logs may hold callers' texts: for this user alone.
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs.mkdir(exist_ok=True)

    def write(self, name: str, content: str) -> None:
        replace(self.path / name, content)

    def clear(self) -> None:
        """Forget the run: everything but the logs and the reason of a failed start."""
        for entry in list(self.path.iterdir()) if self.path.exists() else []:
            if entry not in (self.logs, self.failure):
                entry.unlink(missing_ok=True)


@dataclass(frozen=True)
class State:
    """Who runs the deployment, and what it was told to run."""

    supervisor: Process
    digest: str
    bundle: str
    ports: tuple[int, ...]
    started: float  # seconds since the epoch


def read_state(folder: Folder) -> State | None:
    """None when nothing was started, or when the file is not one of ours: then nothing may be signalled by
    it."""
    raw = read_json(folder.state)
    pid, mark = raw.get("pid"), raw.get("identity")
    if type(pid) is not int or pid <= 1 or not isinstance(mark, str) or not mark:
        return None  # kill(-1) and kill(0) are signals to everybody
    try:
        return State(
            Process(pid, mark),
            raw["digest"],
            raw["bundle"],
            tuple(raw["ports"]),
            raw["started"],
        )
    except (KeyError, TypeError):
        return None


def write_state(folder: Folder, state: State) -> None:
    raw = {
        "pid": state.supervisor.pid,
        "identity": state.supervisor.identity,
        "digest": state.digest,
        "bundle": state.bundle,
        "ports": state.ports,
        "started": state.started,
    }
    write_json(folder.state, raw)


def read_json(path: Path) -> dict[str, Any]:
    """The object in this file; empty when there is no file or no whole object in it."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def write_json(path: Path, value: dict[str, Any]) -> None:
    replace(path, json.dumps(value, indent=1))


def replace(path: Path, content: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(content, encoding="utf-8")
    partial.chmod(0o600)
    partial.replace(path)


@contextmanager
def lock(folder: Folder, when_held: Callable[[], None]) -> Iterator[None]:
    """Be the only one who changes this deployment. `when_held` is called once, if somebody else has the lock.
    The folder itself is locked: a lock file would be one more to leave."""
    descriptor = os.open(folder.path, os.O_RDONLY)
    try:
        is_told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_told:
                    when_held()
                    is_told = True
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)

"""Processes and ports as the system has them now: which process is this, is it the same one, who listens
where.

A number alone never names a process here: pids are used again. `identity` is what tells the process apart
from a later one with the same number, and nothing is signalled without it.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from corelane.errors import ConfigError

_LISTEN = "0A"  # the state's number in /proc/net/tcp
_POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """One process, not just its number."""

    pid: int
    identity: str

    @property
    def is_alive(self) -> bool:
        return identity(self.pid) == self.identity

    def send(self, signal_number: int) -> bool:
        """Signal it, if it is still the same process; says whether it was."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, signal_number)
        except ProcessLookupError:
            return False
        return True


def identity(pid: int) -> str | None:
    """A text that no other process with this number has; None when there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None if _has_proc() else _identity_from_ps(pid)
    # The command's name stands in brackets and may hold any character, brackets included.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return f"{_boot()}:{fields[19]}"  # starttime, in clock ticks since boot


def myself() -> Process:
    own = identity(os.getpid())
    assert own is not None, "this process runs, so it has an identity"
    return Process(os.getpid(), own)


def is_gone(process: Process, within_s: float) -> bool:
    """Wait for its end, at most this long."""
    return wait_until(lambda: not process.is_alive, within_s)


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Poll until the condition holds, at most this long."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def _boot() -> str:
    """Ticks since boot and pids both begin again at a reboot, so the boot belongs to the identity."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _identity_from_ps(pid: int) -> str | None:
    found = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = found.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


# --- ports --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A port we are about to listen on, and the key that moves it."""

    port: int
    key: str
    what: str


def check_ports(address: str, wanted: Iterable[Wanted]) -> None:
    """Raise ConfigError for the first port that cannot be bound; it names the key to change and, where
    known, the owner."""
    for want in wanted:
        problem = _bind_problem(address, want.port)
        if problem is not None:
            raise ConfigError(_sentence(address, want, problem))


def _sentence(address: str, want: Wanted, problem: OSError) -> str:
    if problem.errno == errno.EADDRINUSE:
        owner = listener(want.port)
        return (
            f"port {want.port} for {want.what} is taken{f' by {owner}' if owner else ''};"
            f" stop that program or set {want.key} to another port"
        )
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"bind_address={address} is no address of this machine; set it to one that is"
    return (
        f"port {want.port} for {want.what} cannot be opened on {address} ({problem.strerror});"
        f" set {want.key} to another port"
    )


def _bind_problem(address: str, port: int) -> OSError | None:
    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the servers do: connections that linger in TIME_WAIT are no obstacle, a listener is.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            probe.listen(1)
    except socket.gaierror as error:
        return OSError(errno.EADDRNOTAVAIL, str(error))
    except OSError as error:
        return error
    return None


def listener(port: int) -> str | None:
    """`pid 123 (python3 -m http.server)`: who listens on this port, where the system lets us know."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return None
    for folder in Path("/proc").glob("[0-9]*"):
        if not inodes.isdisjoint(_open_files(folder)):
            return f"pid {folder.name} ({command(int(folder.name))})"
    return "a process of another user"


def _open_files(folder: Path) -> Iterator[str]:
    """What the descriptors of a process lead to; of another user's process, nothing."""
    try:
        descriptors = list((folder / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile
            yield os.readlink(descriptor)


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *rest = line.split()
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                yield f"socket:[{rest[5]}]"


def command(pid: int) -> str:
    """The command line of a process, cut to what fits a sentence."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "unknown"
    line = " ".join(filter(None, words))
    return line if len(line) <= 80 else f"{line[:77]}..."


def kill_group(group: int) -> None:
    """Kill a process group that we made; one that has ended already is fine."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # macOS answers "not permitted" for a group that holds only zombies.
        return

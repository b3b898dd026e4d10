"""The supervisor: one process that starts the servers of a plan, watches them, and restarts them by their
exit codes.

    python -m corelane.fleet.supervisor FOLDER        (FOLDER/plan.json says what to run)

Standard library only, one thread: a child's tie to our life follows the thread that started it, so all are
started by the main one. SIGTERM, SIGINT and SIGHUP stop everything, a second one at once; SIGUSR2 stops it too,
and again changes nothing; SIGUSR1 tries again what has ended for good. Everybody learns what happens from
status.json, and nobody from this process's memory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from corelane.fleet.logs import ERROR_MARK, CappedLog, Tail
from corelane.fleet.plan import Member, Plan, member_environment, tethered
from corelane.fleet.processes import identity, kill_group, myself
from corelane.fleet.restarts import CORE_RULES, OTHER_RULES, Restarts, describe
from corelane.fleet.state import Folder, State, read_state, write_json, write_state
from corelane.topology import in_url, reached_at

RETRY_SIGNAL = signal.SIGUSR1
DRAIN_SIGNAL = signal.SIGUSR2  # of every `down`; of two at once neither cuts the drain of the other
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_PROBE_STARTING_S = 0.1
_PROBE_READY_S = 1.0
_PROBE_TIMEOUT_S = 2.0
# A server that was ready and then says nothing at all for so long is stopped or stuck where its own watchdog is, too.
_SILENT_FOR_S = 15.0
# A server that takes longer to load than this lets the next one begin beside it.
_TURN_S = 60.0
# A server bounds its own drain; this is for one that does not.
_DRAIN_MARGIN_S = 2.0
_GATEWAY_STOP_S = 3.0
_READ_BYTES = 64 * 1024
# Of what stands in the pipe at the end; a pipe holds less, unless something that left the group still
# writes to it.
_LAST_READS = 32

_CANNOT_START = 127  # what a shell answers too


class Child:
    """One running process: its output is read as it comes, its end is told to whoever waits for `ended`."""

    def __init__(self, member: Member, folder: Path, log: CappedLog, loop: asyncio.AbstractEventLoop) -> None:
        self.tail = Tail()
        self.ended = asyncio.Event()
        self.code: int | None = None
        self._log = log
        self._loop = loop
        self._process = subprocess.Popen(
            tethered(member, os.getpid()),
            cwd=folder,
            env=member_environment(member, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            # A group of its own: the terminal's Ctrl-C is for us alone, and what it leaves behind can be
            # found.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.identity = identity(self.pid)
        assert self._process.stdout is not None, "asked for above"
        self._output: BinaryIO = self._process.stdout  # type: ignore[assignment]  # unbuffered: a FileIO
        os.set_blocking(self._output.fileno(), False)
        loop.add_reader(self._output.fileno(), self._read)

    def _read(self) -> bool:
        """Take what is there; False when there is nothing more for now, or for ever."""
        try:
            data = os.read(self._output.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._output.fileno())
            return False
        self._log.write(data)
        self.tail.feed(data)
        return True

    def reap(self) -> None:
        """Called when any child has ended: if it is this one, end what is left of its group and say so."""
        if self.code is not None or not _has_ended(self.pid):
            return
        # Before the pid is given back: until then no other process can have this group's number.
        kill_group(self.pid)
        self.code = self._process.wait()
        for _ in range(_LAST_READS):
            if not self._read():
                break
        self._loop.remove_reader(self._output.fileno())
        self._output.close()
        self.tail.close()
        self.ended.set()

    def send(self, signal_number: int) -> None:
        if self.code is None:  # not reaped yet, so the pid is still this process's
            # Not Popen.send_signal: that asks first whether it has ended, and so gives its pid back.
            os.kill(self.pid, signal_number)

    def kill(self) -> None:
        if self.code is None:
            kill_group(self.pid)


def _has_ended(pid: int) -> bool:
    """Whether this child of ours has ended, without taking its exit status away."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


class Watched:
    """One member of the plan over all its lives."""

    def __init__(self, member: Member, supervisor: Supervisor) -> None:
        self.member = member
        self.child: Child | None = None
        self.state = "starting"
        self.since = time.time()
        self.starts = 0
        self.last_code: int | None = None
        self.last_exit = ""
        self.reason = ""
        self.tail: list[str] = []
        self.try_again = asyncio.Event()
        self._supervisor = supervisor
        self._rules = OTHER_RULES if member.core is None else CORE_RULES
        self._restarts = Restarts(self._rules)
        self._log = CappedLog(supervisor.folder.log(member.name))
        self._ready_at: float | None = None
        self._was_ready = asyncio.Event()

    async def run(self) -> None:
        """Start, watch, start again; for ever, until cancelled."""
        while True:
            code = await self._live()
            ready_s = None if self._ready_at is None else time.monotonic() - self._ready_at
            following = self._restarts.after(code, ready_s)
            if following.delay_s is None:
                self._become(following.state, self.last_exit)
                await self.try_again.wait()
                self._restarts.forget()
            else:
                self._become(
                    following.state,
                    f"{self.last_exit}; next start in {following.delay_s:.1f} s",
                )
                await _first_of(self.try_again, within_s=following.delay_s)
            self.try_again.clear()

    async def _live(self) -> int:
        """One life, from its start to its exit code."""
        self._ready_at = None
        self._was_ready.clear()
        async with self._supervisor.turn(self.member):
            self.starts += 1
            try:
                folder = self._supervisor.folder.path
                child = self.child = Child(self.member, folder, self._log, asyncio.get_running_loop())
            except OSError as error:
                tail = Tail()
                tail.feed(f"{ERROR_MARK}it cannot be started ({error})\n".encode())
                self.ended(_CANNOT_START, tail)
                return _CANNOT_START
            self._become("starting", f"pid {child.pid}, port {self.member.port}")
            probe = asyncio.create_task(self._probe(child))
            try:
                await _first_of(child.ended, self._was_ready, within_s=_TURN_S)
            except asyncio.CancelledError:
                probe.cancel()
                raise
        try:
            await child.ended.wait()
        finally:
            probe.cancel()
        assert child.code is not None, "it has ended"
        self.ended(child.code, child.tail)
        return child.code

    def ended(self, code: int, tail: Tail) -> None:
        """Keep what there is to know of a life that is over."""
        reason = tail.reason(code)
        self.child = None
        self.last_code = code
        self.reason = reason.rstrip(".")
        self.last_exit = f"{describe(self._rules, code)}{': ' if reason else ''}{self.reason}"
        self.tail = list(tail.lines)

    async def _probe(self, child: Child) -> None:
        """Ask the process itself whether it is ready. A `no` is only shown, since acting on it is the server's own
        watchdog's; but one that answers nothing any more has no watchdog left, and is killed."""
        address = reached_at(self._supervisor.plan.address)
        heard_at = time.monotonic()
        while True:
            status = await ask_status(address, self.member.port, self.member.ready_path)
            if status is not None:
                heard_at = time.monotonic()
            elif self._ready_at is not None and time.monotonic() - heard_at > _SILENT_FOR_S:
                self._become("not-ready", f"no answer for {_SILENT_FOR_S:.0f} s; it is killed and started again")
                child.kill()
                return
            if status == 200:
                if self._ready_at is None:
                    self._ready_at = time.monotonic()
                self._was_ready.set()
                if self.state != "ready":
                    self._become("ready", "")
            elif self.state == "ready":
                self._become("not-ready", f"{self.member.ready_path} does not answer 200")
            await asyncio.sleep(_PROBE_READY_S if self.state == "ready" else _PROBE_STARTING_S)

    def _become(self, state: str, why: str) -> None:
        self.state = state
        self.since = time.time()
        self._supervisor.say(f"{self.member.name}: {state}{f' ({why})' if why else ''}")
        self._supervisor.write_status()

    def stopped(self) -> None:
        self._become("stopped", "")
        self._log.close()

    def as_status(self) -> dict[str, Any]:
        return {
            "core": self.member.core,
            "state": self.state,
            "since": self.since,
            "port": self.member.port,
            "cpus": self.member.cpus,
            "pid": self.child.pid if self.child else None,
            "identity": self.child.identity if self.child else None,
            "restarts": max(0, self.starts - 1),
            "last_code": self.last_code,
            "last_exit": self.last_exit,
            "reason": self.reason,
            "tail": self.tail,
        }


class _Turn:
    """`start_parallel` cores load at a time; the gateway instead waits until a core is ready behind it."""

    def __init__(self, before: Callable[[], Any], after: Callable[[], None]) -> None:
        self._before = before
        self._after = after

    async def __aenter__(self) -> None:
        await self._before()

    async def __aexit__(self, *_: object) -> None:
        self._after()


class Supervisor:
    """All members of one plan."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.folder = plan.folder
        self.say = say
        self._is_stopping = False
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._turns = asyncio.Semaphore(plan.start_parallel)
        self._a_core_was_ready = asyncio.Event()
        self._watched = [Watched(member, self) for member in plan.members]

    async def run(self) -> None:
        """Until told to stop; then until nothing is left."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(DRAIN_SIGNAL, self._on_drain)
        loop.add_signal_handler(RETRY_SIGNAL, self._on_retry)
        loop.add_signal_handler(signal.SIGCHLD, self._on_child)
        # Not before: whoever reads it may signal us.
        plan = self.plan
        write_state(self.folder, State(myself(), plan.digest, plan.bundle, plan.ports, time.time()))
        self.write_status()
        tasks = [asyncio.create_task(watched.run()) for watched in self._watched]
        stop = asyncio.create_task(self._stop.wait())
        try:
            # A member's task never ends by itself; if one does, that is our bug, and the rest must not run
            # unwatched.
            await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stop, *tasks):
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_all()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def turn(self, member: Member) -> _Turn:
        if member.core is None:
            # So it begins with cores that answer, and not with a second of believing in those that do not
            # yet.
            return _Turn(self._a_core_was_ready.wait, lambda: None)
        return _Turn(self._turns.acquire, self._turns.release)

    def write_status(self) -> None:
        if any(watched.member.core is not None and watched.state == "ready" for watched in self._watched):
            self._a_core_was_ready.set()
        status = {
            "pid": os.getpid(),
            "is_stopping": self._is_stopping,
            "members": {watched.member.name: watched.as_status() for watched in self._watched},
        }
        # A full disk must not stop the cores; what the disk then says is old, and `status` compares it
        # anyway.
        with suppress(OSError):
            write_json(self.folder.status, status)

    def _on_stop(self) -> None:
        if self._is_stopping:
            self._stop_now.set()
        self._on_drain()

    def _on_drain(self) -> None:
        self._is_stopping = True
        self._stop.set()

    def _on_retry(self) -> None:
        for watched in self._watched:
            if watched.child is None:
                watched.try_again.set()

    def _on_child(self) -> None:
        for watched in self._watched:
            if watched.child is not None:
                watched.child.reap()

    async def _end_all(self) -> None:
        """The cores first, so that what runs in them is answered through the gateway; then the gateway."""
        self._is_stopping = True
        self.say("stopping")
        self.write_status()
        cores = [watched for watched in self._watched if watched.member.core is not None]
        gateways = [watched for watched in self._watched if watched.member.core is None]
        await self._end(cores, signal.SIGTERM, self.plan.drain_timeout_ms / 1e3 + _DRAIN_MARGIN_S)
        # HAProxy's graceful end: answers that are still on their way are finished.
        await self._end(gateways, signal.SIGUSR1, _GATEWAY_STOP_S)

    async def _end(self, all_watched: list[Watched], number: int, within_s: float) -> None:
        children = [watched.child for watched in all_watched if watched.child is not None]
        for child in children:
            child.send(number)
        all_ended = asyncio.create_task(_all_of([child.ended for child in children]))
        now = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait([all_ended, now], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        now.cancel()
        for child in children:
            child.kill()
        await all_ended
        for watched in all_watched:
            if watched.child is not None:
                code = watched.child.code
                assert code is not None, "it has ended"
                watched.ended(code, watched.child.tail)
            watched.stopped()


async def _all_of(events: list[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def _first_of(*events: asyncio.Event, within_s: float) -> None:
    """Unlike asyncio.wait_for before Python 3.12, it never takes a cancellation that comes with an event for the
    event alone, which would leave a member running unwatched."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def ask_status(address: str, port: int, path: str) -> int | None:
    """The status that a GET of this path is answered with; None when there is no answer in time."""
    asked = asyncio.create_task(_get_status(address, port, path))
    try:
        await asyncio.wait([asked], timeout=_PROBE_TIMEOUT_S)  # not wait_for, see above
    finally:
        asked.cancel()
    return asked.result() if asked.done() and not asked.cancelled() else None


async def _get_status(address: str, port: int, path: str) -> int | None:
    try:
        reader, writer = await asyncio.open_connection(address, port)
    except OSError:
        return None
    try:
        host = f"{in_url(address)}:{port}"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        status_line = await reader.readline()
        await reader.read()  # to the end: a connection cut short is noise in the server's log
        return int(status_line.split()[1])
    except (OSError, ValueError, IndexError):  # a first line that has no end, or no number
        return None
    finally:
        writer.close()


# --- the process --------------------------------------------------------------------------------------------


def run(plan: Plan, echo: Callable[[str], None] | None = None) -> None:
    """Be the supervisor of this plan, in this process's main thread, until told to stop. `echo` gets each
    line of its log."""
    folder = plan.folder
    other = read_state(folder)
    if other is not None and other.supervisor.is_alive:
        raise RuntimeError(f"pid {other.supervisor.pid} supervises {plan.name} already")
    log = CappedLog(folder.log("supervisor"))

    def say(line: str) -> None:
        log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n".encode())
        if echo is not None:
            echo(line)

    say(f"supervisor of {plan.name}, pid {os.getpid()}: {plan.bundle} on {len(plan.cores)} cores")

    async def supervise() -> None:
        await Supervisor(plan, say).run()

    try:
        asyncio.run(supervise())
    finally:
        say("ended")
        folder.clear()


def main(arguments: list[str]) -> int:
    folder = Folder(Path(arguments[0]))
    run(Plan.from_json(folder.plan.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

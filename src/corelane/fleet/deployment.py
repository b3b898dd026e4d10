"""Bring a plan up, take it down, look at it: what `corelane up`, `down` and `status` share, with no
settings in sight.

`bring_up` leaves either the deployment that was asked for, ready, or nothing that it started. It may be
interrupted at any point, killed, or run twice at once; the next call repairs what is left and says so.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from corelane.errors import CorelaneError, StartError, SupervisorGoneError
from corelane.fleet import gateway, supervisor
from corelane.fleet.plan import Plan, child_environment, supervisor_command
from corelane.fleet.processes import Process, Wanted, check_ports, identity, is_gone, wait_until
from corelane.fleet.state import Folder, lock, read_json, read_state, write_json
from corelane.topology import in_url, reached_at

Say = Callable[[str], None]

# A core's server loads, warms up and checks itself; on an accelerator that can take minutes.
READY_WITHIN_S = 300.0  # for each wave of `start_parallel` cores
STOP_MARGIN_S = 10.0  # past the drain time, before the supervisor itself is killed
_FREED_WITHIN_S = 3.0  # the kernel takes a moment to end the servers of a killed supervisor
_POLL_S = 0.02
_PROBE_TIMEOUT_S = 1.0
_FINAL = ("refused", "failed")
_SHOWN_CHARACTERS = 500  # of the answered example: an embedding has thousands


# --- up -----------------------------------------------------------------------------------------------------


def bring_up(
    plan: Plan, *, say: Say, announce: Say, foreground: bool = False, check: Callable[[], None] = lambda: None
) -> int:
    """Make the plan run and ready. `say` gets progress, `announce` the URLs and the answered example; `check` may
    still refuse what is to run, and is asked only before something that runs would have to end for it.

    In the foreground this process becomes the supervisor and stays; else one is left behind, detached.
    """
    folder = plan.folder
    folder.make()
    for note in plan.notes:
        say(note)
    if foreground:
        return _bring_up_here(plan, _unheeded(say), _unheeded(announce), check)
    with _locked(folder, say):
        started = None
        if not _is_running_already(plan, say):
            _make_room(plan, say, check)
            started = _start_detached(plan)
        try:
            _settle(plan, say, announce, started)
        except BaseException as error:
            if started is not None:
                _give_up(plan, started, error, say)
            raise
        if started is not None:
            # It outlives this process on purpose; nobody here is to wait for it or to warn of it.
            started.returncode = 0
    return 0


def _unheeded(tell: Say) -> Say:
    """The same, whether or not anybody listens any more: a terminal that was closed must not end the cores."""

    def told(line: str) -> None:
        with suppress(OSError):
            tell(line)

    return told


def _bring_up_here(plan: Plan, say: Say, announce: Say, check: Callable[[], None]) -> int:
    """The supervisor runs in the main thread, as signals and ties demand; this one thread beside it waits
    for `ready`."""
    outcome: list[BaseException] = []
    held = ExitStack()
    has_ended = threading.Event()

    def settle() -> None:
        try:
            wait_until(lambda: has_ended.is_set() or _is_ours(plan), READY_WITHIN_S)
            _settle(plan, say, announce, None)
        except SupervisorGoneError:
            return  # stopped while it started, as somebody asked
        except BaseException as error:  # the edge of this thread: the main one raises it
            outcome.append(error)
            _remember(plan, error, _last_members(plan))
            if not has_ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
        finally:
            held.close()

    with held:
        held.enter_context(_locked(plan.folder, say))
        _make_room(plan, say, check)
        waiting = threading.Thread(target=settle, daemon=True)
        waiting.start()
        try:
            supervisor.run(plan, echo=say)
        finally:
            has_ended.set()
            waiting.join()
    if outcome:
        raise outcome[0]
    return 0


def _is_ours(plan: Plan) -> bool:
    state = read_state(plan.folder)
    return state is not None and state.supervisor.pid == os.getpid()


@contextmanager
def _locked(folder: Folder, say: Say) -> Iterator[None]:
    with lock(folder, lambda: say("another `corelane up` or `down` of this deployment is at work; waiting for it")):
        yield


def _is_running_already(plan: Plan, say: Say) -> bool:
    """Whether this very deployment runs; what has ended for good in it is then tried again."""
    state = read_state(plan.folder)
    status = read_json(plan.folder.status)
    if state is None or not state.supervisor.is_alive or state.digest != plan.digest or status.get("is_stopping"):
        return False
    ended = {name: member["since"] for name, member in _members(status) if member["state"] in _FINAL}
    if ended:
        say(f"{', '.join(ended)} had ended for good; starting again, the others go on")
        state.supervisor.send(supervisor.RETRY_SIGNAL)
        wait_until(
            lambda: all(member["since"] != ended.get(name) for name, member in _members(read_json(plan.folder.status))),
            READY_WITHIN_S,
        )
    return True


def _make_room(plan: Plan, say: Say, check: Callable[[], None]) -> None:
    """End what runs under this name, and write down what is to run; nothing is touched when that cannot run:
    a port is another program's, HAProxy refuses its configuration, or `check` the rest."""
    folder = plan.folder
    state = read_state(folder)
    wanted = _wanted_ports(plan)
    if plan.gateway is not None:
        gateway.check(plan.gateway.command[0], plan.files)
    if state is not None and state.supervisor.is_alive:
        check_ports(plan.address, [want for want in wanted if want.port not in state.ports])
        try:
            check()
        except CorelaneError as error:
            _remember(plan, error, {})
            raise
        other = "detached" if state.digest == plan.digest else "with another configuration"
        say(f"{plan.name} runs {other} (pid {state.supervisor.pid}); stopping that first")
        _stop(folder, state.supervisor, say)
    elif folder.state.exists() or folder.status.exists():
        pid = f", pid {state.supervisor.pid}," if state else ""
        say(f"an earlier deploy of {plan.name} was cut off: its supervisor{pid} is gone; cleaning up after it")
        end_leftovers(folder)
        wait_until(lambda: not _taken(plan, wanted), _FREED_WITHIN_S)
    check_ports(plan.address, wanted)
    folder.clear()
    folder.failure.unlink(missing_ok=True)
    for name, content in plan.files.items():
        folder.write(name, content)
    folder.write(folder.plan.name, plan.to_json())


def _wanted_ports(plan: Plan) -> list[Wanted]:
    return [
        Wanted(member.port, "gateway_port", "the gateway")
        if member.core is None
        else Wanted(member.port, "first_port", f"core {member.core}")
        for member in plan.members
    ]


def _taken(plan: Plan, wanted: list[Wanted]) -> bool:
    try:
        check_ports(plan.address, wanted)
    except CorelaneError:
        return True
    return False


def _start_detached(plan: Plan) -> subprocess.Popen[bytes]:
    folder = plan.folder
    with folder.log("supervisor").open("ab") as log:
        return subprocess.Popen(
            supervisor_command(folder),
            cwd=plan.root,
            env=child_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,  # its own lines go there by another way; this is for what should not happen
            stderr=log,
            start_new_session=True,
        )


def _settle(plan: Plan, say: Say, announce: Say, started: subprocess.Popen[bytes] | None) -> None:
    """Wait until all are ready, then say where they are and show one answer. StartError as soon as that
    cannot be."""
    began = time.monotonic()
    waves = math.ceil(len(plan.cores) / plan.start_parallel)
    deadline = began + READY_WITHIN_S * waves
    told: set[str] = set()
    failures: dict[str, int] = {}
    while True:
        status = _read_running(plan, started)
        for name, member in _members(status):
            if member["state"] in _FINAL:
                raise _ended_for_good(plan, name, member)
            if member["state"] == "ready" and name not in told:
                told.add(name)
                if started is not None:
                    say(f"{_title(name)} ready after {time.monotonic() - began:.1f} s")
            if member["state"] == "backing-off" and failures.get(name) != member["restarts"]:
                failures[name] = member["restarts"]
                say(f"{_title(name)} is started again{_because(member)}")
        if len(told) == len(plan.members) and all(member["state"] == "ready" for _, member in _members(status)):
            break
        if time.monotonic() > deadline:
            raise _too_late(plan, status, READY_WITHIN_S * waves)
        time.sleep(_POLL_S)
    if plan.gateway is not None and not wait_until(lambda: _gateway_sees_all(plan), READY_WITHIN_S):
        raise StartError(f"the gateway does not see all cores as ready; its log is {plan.folder.log('gateway')}")
    for line in report_ready(plan):
        announce(line)


def _read_running(plan: Plan, started: subprocess.Popen[bytes] | None) -> dict[str, Any]:
    """The status, as long as somebody keeps it up to date; empty when the supervisor has yet to write its
    first."""
    if started is not None:
        status = read_json(plan.folder.status)
        if started.poll() is not None:
            raise _gone(plan)
        return {} if status.get("pid") != started.pid else _unless_stopping(plan, status)
    state = read_state(plan.folder)
    if state is None or not state.supervisor.is_alive:
        raise _gone(plan)
    return _unless_stopping(plan, read_json(plan.folder.status))


def _unless_stopping(plan: Plan, status: dict[str, Any]) -> dict[str, Any]:
    if status.get("is_stopping"):
        raise _gone(plan)
    return status


def _gone(plan: Plan) -> SupervisorGoneError:
    return SupervisorGoneError(
        f"the supervisor of {plan.name} ended before all was ready, stopped by somebody or failed;"
        f" its log is {plan.folder.log('supervisor')}"
    )


def _ended_for_good(plan: Plan, name: str, member: dict[str, Any]) -> StartError:
    code = member["last_code"] or 0
    return StartError(
        f"{_title(name)} {member['state']}, {member['last_exit']}; its log is {plan.folder.log(name)}",
        exit_code=code if code > 0 and member["state"] == "refused" else 1,
    )


def _too_late(plan: Plan, status: dict[str, Any], waited_s: float) -> StartError:
    late = "; ".join(
        f"{_title(name)} {member['state']}{_because(member)}, its log is {plan.folder.log(name)}"
        for name, member in _members(status)
        if member["state"] != "ready"
    )
    return StartError(f"not all was ready within {waited_s:.0f} s: {late or 'the supervisor said nothing'}")


def _gateway_sees_all(plan: Plan) -> bool:
    assert plan.gateway is not None, "asked only with a gateway"
    status, body = get(plan.address, plan.gateway.port, "/readyz")
    return status == 200 and json.loads(body).get("ready_cores") == len(plan.cores)


def report_ready(plan: Plan) -> Iterator[str]:
    """The URLs, and one of them answered."""
    base = f"http://{in_url(reached_at(plan.address))}"
    slot = "model_0" if plan.models == 1 else f"model_0 (to model_{plan.models - 1})"
    cores = "1 core" if len(plan.cores) == 1 else f"{len(plan.cores)} cores"
    yield f"{plan.name} is ready: {plan.bundle} on {cores}"
    for member in plan.cores:
        yield f"core {member.core}   {base}:{member.port}/predictions_neuron_core_{member.core}/{slot}"
    if plan.gateway is not None:
        yield f"gateway  {base}:{plan.gateway.port}/predictions/{slot}"
    entry = plan.gateway or plan.cores[0]
    path = f"/predictions_neuron_core_{plan.cores[0].core}/model_0"
    url = f"{base}:{entry.port}{path}"
    status, body = get(plan.address, entry.port, path, timeout_s=30.0)
    if status != 200:
        raise StartError(
            f"all is ready, but {url} answered {status or 'nothing'}: {body.decode(errors='replace')[:300]}"
        )
    yield f"curl -s '{url}'"
    answer = body.decode(errors="replace").strip()
    yield answer if len(answer) <= _SHOWN_CHARACTERS else f"{answer[:_SHOWN_CHARACTERS]}... ({len(answer)} characters)"


def _give_up(plan: Plan, started: subprocess.Popen[bytes], error: BaseException, say: Say) -> None:
    """End what this run started; why stays on disk for `status`."""
    _remember(plan, error, _last_members(plan))
    say("stopping what this run started")
    started_as = identity(started.pid)
    if started_as is not None:
        _stop(plan.folder, Process(started.pid, started_as), say)
    started.wait()
    plan.folder.clear()


def _last_members(plan: Plan) -> dict[str, Any]:
    return dict(_members(read_json(plan.folder.status)))


def _remember(plan: Plan, error: BaseException, members: dict[str, Any]) -> None:
    """Why the start was given up, and what its members did, for `status`."""
    if isinstance(error, CorelaneError):
        write_json(plan.folder.failure, {"when": time.time(), "why": str(error), "members": members})


# --- down ---------------------------------------------------------------------------------------------------


def take_down(folder: Folder, *, say: Say) -> bool:
    """Stop the deployment and forget it; False when there was none. An `up` that is still waiting gives up
    first."""
    if not folder.path.exists():
        return False
    state = read_state(folder)
    if state is not None and state.supervisor.is_alive:
        _stop(folder, state.supervisor, say)
    with _locked(folder, say):
        # What an `up` made between our look and the lock.
        late = read_state(folder)
        if late is not None and late.supervisor.is_alive:
            _stop(folder, late.supervisor, say)
        had_leftovers = end_leftovers(folder)
        folder.clear()
        folder.failure.unlink(missing_ok=True)
    return had_leftovers or state is not None or late is not None


def _stop(folder: Folder, running: Process, say: Say) -> None:
    """Let the supervisor end all, and itself; when it does not in its time, the kernel does."""
    drain_timeout_ms = read_json(folder.plan).get("drain_timeout_ms", 0)
    running.send(supervisor.DRAIN_SIGNAL)
    if not is_gone(running, drain_timeout_ms / 1e3 + STOP_MARGIN_S):
        say(f"the supervisor, pid {running.pid}, did not end in time; killing it and its servers")
        running.send(signal.SIGKILL)
        is_gone(running, STOP_MARGIN_S)
        end_leftovers(folder)


def end_leftovers(folder: Folder) -> bool:
    """Kill the servers of a supervisor that is gone. On Linux the kernel has done so already; says whether
    any was left."""
    left = [
        process
        for _, member in _members(read_json(folder.status))
        if (process := _process(member)) is not None and process.send(signal.SIGKILL)
    ]
    for process in left:
        is_gone(process, _FREED_WITHIN_S)
    return bool(left)


# --- status -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What is true of a deployment right now: what was written down, held against the processes and their
    answers."""

    verdict: str  # ready | not-ready | cut-off | stopped
    supervisor: int | None
    bundle: str
    members: dict[str, dict[str, Any]]
    failure: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0 all ready, 1 anything else: the higher codes are those of a core server, and mean other things."""
        return 0 if self.verdict == "ready" else 1


def look(folder: Folder) -> Look:
    state = read_state(folder)
    failure = read_json(folder.failure)
    if state is None and not folder.status.exists():
        return Look("stopped", None, "", {}, failure)
    written = dict(_members(read_json(folder.status)))
    address = read_json(folder.plan).get("address", "127.0.0.1")
    paths = {member["name"]: member["ready_path"] for member in read_json(folder.plan).get("members", [])}
    with ThreadPoolExecutor(max_workers=max(1, len(written))) as pool:
        checked = pool.map(lambda name: _checked(written[name], address, paths.get(name, "/readyz")), written)
        members = dict(zip(written, checked, strict=True))
    if state is None or not state.supervisor.is_alive:
        return Look("cut-off", None, state.bundle if state else "", members, failure)
    is_ready = bool(members) and all(member["state"] == "ready" for member in members.values())
    return Look("ready" if is_ready else "not-ready", state.supervisor.pid, state.bundle, members, failure)


def _checked(member: dict[str, Any], address: str, path: str) -> dict[str, Any]:
    """The member with the state that it really is in."""
    process = _process(member)
    if process is None or not process.is_alive:
        is_lost = member["state"] in ("ready", "not-ready", "starting")
        return {**member, "pid": None, "state": "gone" if is_lost and process else member["state"]}
    answers = get(address, member["port"], path, timeout_s=_PROBE_TIMEOUT_S)[0] == 200
    if answers:
        return {**member, "state": "ready"}
    return {**member, "state": "not-ready" if member["state"] == "ready" else member["state"]}


def _process(member: dict[str, Any]) -> Process | None:
    return Process(member["pid"], member["identity"]) if member.get("pid") and member.get("identity") else None


def _members(status: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(status.get("members", {}).items())


def _because(member: dict[str, Any]) -> str:
    return f" after {member['last_exit']}" if member["last_exit"] else ""


def _title(name: str) -> str:
    return name.replace("-", " ")


def get(address: str, port: int, path: str, timeout_s: float = _PROBE_TIMEOUT_S) -> tuple[int, bytes]:
    """Status and body of a GET on this machine; (0, reason) when there was no answer."""
    connection = http.client.HTTPConnection(reached_at(address), port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error).encode()
    finally:
        connection.close()

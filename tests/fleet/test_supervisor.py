"""The supervisor over small real servers: what it restarts, what it does not, and that nothing outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from corelane.fleet.logs import CappedLog
from corelane.fleet.plan import Plan
from corelane.fleet.processes import identity
from corelane.fleet.restarts import LOOP_FAILURES
from corelane.fleet.supervisor import DRAIN_SIGNAL, RETRY_SIGNAL, Child, Supervisor, Watched
from support.fleets import (
    answers,
    ask,
    deaf,
    eventually,
    exits,
    exits_while,
    make_plan,
    status_of,
    wait_for,
    wait_for_all,
)

Supervise = Callable[..., "subprocess.Popen[bytes]"]


def pids(plan: Plan) -> list[int]:
    return [status_of(plan, member.name)["pid"] for member in plan.members]


def test_a_killed_core_comes_back_and_the_other_never_stops_answering(root: Path, supervise: Supervise) -> None:
    """One core's death is nobody else's affair."""
    plan = make_plan(root)
    supervise(plan)
    first, second = plan.cores
    before = status_of(plan, first.name)["pid"]
    failures: list[object] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            try:
                assert ask(second.port, "/x").json["core"] == 1
            except (OSError, AssertionError) as error:
                failures.append(error)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    os.kill(before, signal.SIGKILL)
    eventually(lambda: status_of(plan, first.name)["restarts"] == 1, "the core is started again")
    found = wait_for(plan, first.name, "ready")
    done.set()
    asking.join()
    assert failures == []
    assert ask(first.port, "/x").json["pid"] == found["pid"] != before
    assert found["last_exit"] == "killed by SIGKILL"
    assert status_of(plan, second.name)["restarts"] == 0


def test_a_refused_bundle_is_never_started_again_and_says_why(root: Path, supervise: Supervise) -> None:
    """Exit 3: it would be refused again, and the reason is what a person needs."""
    plan = make_plan(root, commands=(exits(3, "bundle demo@1 has a changed model.bin."), answers))
    supervise(plan, until_ready=False)
    found = wait_for(plan, "core-0", "refused")
    wait_for(plan, "core-1", "ready")
    assert found["last_exit"] == "exit 3 (bundle refused): bundle demo@1 has a changed model.bin"
    assert found["tail"][-1] == "a line after"
    assert found["restarts"] == 0
    assert found["pid"] is None


def test_a_crash_loop_ends_in_a_stated_state(root: Path, supervise: Supervise) -> None:
    """Never a hot loop, and never one for ever."""
    plan = make_plan(root, commands=(exits(1, "no such module."), answers))
    supervise(plan, until_ready=False)
    found = wait_for(plan, "core-0", "failed")
    assert found["restarts"] == LOOP_FAILURES - 1
    assert found["reason"] == "no such module"


def test_what_has_ended_for_good_is_tried_again_when_told_to(root: Path, supervise: Supervise) -> None:
    """After the bundle was repaired, with the other cores untouched."""
    broken = root / "broken"
    broken.touch()
    plan = make_plan(root, commands=(exits_while(broken), answers))
    process = supervise(plan, until_ready=False)
    wait_for(plan, "core-0", "refused")
    wait_for(plan, "core-1", "ready")
    broken.unlink()
    process.send_signal(RETRY_SIGNAL)
    wait_for(plan, "core-0", "ready")
    assert status_of(plan, "core-1")["restarts"] == 0


def test_a_busy_core_is_tried_again_later(root: Path, supervise: Supervise) -> None:
    """Exit 4: the process that owns it may end."""
    plan = make_plan(root, commands=(exits(4, "core 0 is held by pid 7."),))
    supervise(plan, until_ready=False)
    found = wait_for(plan, "core-0", "backing-off")
    assert found["last_exit"] == "exit 4 (core busy): core 0 is held by pid 7"
    assert status_of(plan, "core-0")["restarts"] == 0


def test_a_program_that_cannot_be_started_is_a_failure_like_others(root: Path, supervise: Supervise) -> None:
    """The supervisor itself must survive it."""
    plan = make_plan(root, commands=(lambda core, port: ["/no/such/program"], answers))
    supervise(plan, until_ready=False)
    found = wait_for(plan, "core-0", "backing-off")
    assert "/no/such/program cannot be started" in found["reason"]
    wait_for(plan, "core-1", "ready")


def test_kill_9_of_the_supervisor_leaves_no_child(root: Path, supervise: Supervise) -> None:
    """A server without a supervisor would hold its core and its port for ever; the gateway too."""
    plan = make_plan(root, with_gateway=True)
    process = supervise(plan)
    children = pids(plan)
    assert len(children) == 3
    process.kill()
    process.wait()
    eventually(lambda: not any(map(identity, children)), "all children are gone")


def test_sigterm_ends_all_and_leaves_nothing_but_the_logs(root: Path, supervise: Supervise) -> None:
    """And ends with 0, as asked."""
    plan = make_plan(root, with_gateway=True)
    process = supervise(plan)
    children = pids(plan)
    process.terminate()
    assert process.wait(timeout=20) == 0
    assert not any(map(identity, children))
    assert [path.name for path in plan.folder.path.iterdir()] == ["logs"]


def test_a_server_that_ignores_sigterm_is_killed_after_the_drain_time(root: Path, supervise: Supervise) -> None:
    """A hung server must not keep the rest from ending."""
    plan = make_plan(root, commands=(deaf, answers), drain_timeout_ms=100)
    process = supervise(plan)
    children = pids(plan)
    began = time.monotonic()
    process.terminate()
    assert process.wait(timeout=20) == 0
    assert time.monotonic() - began > 0.1
    assert not any(map(identity, children))


def test_a_second_signal_ends_all_at_once(root: Path, supervise: Supervise) -> None:
    """Who asks twice does not want to wait for the drain."""
    plan = make_plan(root, commands=(deaf,), drain_timeout_ms=3_600_000)
    process = supervise(plan)
    process.terminate()
    wait_for_stopping(plan)
    process.terminate()
    assert process.wait(timeout=20) == 0


def test_asking_twice_for_a_drain_does_not_cut_it(root: Path, supervise: Supervise) -> None:
    """Two `down` at once mean the same thing once."""
    plan = make_plan(root, commands=(deaf,), drain_timeout_ms=0)  # and 2 s of the supervisor's own
    process = supervise(plan)
    began = time.monotonic()
    process.send_signal(DRAIN_SIGNAL)
    wait_for_stopping(plan)
    process.send_signal(DRAIN_SIGNAL)
    assert process.wait(timeout=20) == 0
    assert time.monotonic() - began > 1.5


def wait_for_stopping(plan: Plan) -> None:
    log = plan.folder.log("supervisor")
    eventually(lambda: " stopping\n" in log.read_text(), "the supervisor is stopping")


def test_what_a_server_leaves_running_is_ended_with_it(root: Path, supervise: Supervise) -> None:
    """Its HTTP workers would go on answering on its port beside its successor."""
    note = root / "pid"
    script = (
        "import os, subprocess, sys;"
        f"open({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid));"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    plan = make_plan(root, commands=(lambda core, port: [sys.executable, "-c", script, *answers(core, port)],))
    supervise(plan)
    grandchild = int(note.read_text())
    assert identity(grandchild) is not None
    os.kill(pids(plan)[0], signal.SIGKILL)
    eventually(lambda: identity(grandchild) is None, "the grandchild is gone too")


def test_a_server_that_stops_being_ready_is_only_shown_so(root: Path, supervise: Supervise) -> None:
    """Acting on it is the watchdog's in the server itself, which Docker and Kubernetes need too."""
    plan = make_plan(root, commands=(answers,))
    supervise(plan)
    pid = pids(plan)[0]
    os.kill(pid, signal.SIGSTOP)
    wait_for(plan, "core-0", "not-ready")
    os.kill(pid, signal.SIGCONT)
    wait_for(plan, "core-0", "ready")
    assert status_of(plan, "core-0")["pid"] == pid


@pytest.mark.slow
def test_a_server_that_falls_silent_is_killed_and_started_again(root: Path, supervise: Supervise) -> None:
    """Stopped whole, it has no watchdog of its own left that could end it."""
    plan = make_plan(root)
    supervise(plan)
    wait_for_all(plan, "ready")
    before = status_of(plan, plan.cores[0].name)["pid"]
    os.kill(before, signal.SIGSTOP)
    eventually(lambda: status_of(plan, plan.cores[0].name)["restarts"] == 1, "the core is started again")
    wait_for_all(plan, "ready")


def test_no_more_than_start_parallel_load_at_a_time(root: Path, supervise: Supervise) -> None:
    """Loading takes memory and disk; all cores of a large machine at once would take too much."""
    never_ready = [sys.executable, "-c", "import time; time.sleep(600)"]
    plan = make_plan(root, commands=(lambda core, port: never_ready, answers), start_parallel=1)
    supervise(plan, until_ready=False)
    first = wait_for(plan, "core-0", "starting")
    eventually(lambda: status_of(plan, "core-0")["pid"] is not None, "core 0 runs")
    assert status_of(plan, "core-1")["pid"] is None
    os.kill(status_of(plan, "core-0")["pid"], signal.SIGKILL)  # its turn is over
    wait_for(plan, "core-1", "ready")
    assert first["state"] == "starting"


def test_core_and_cpu_are_set_when_the_server_begins(root: Path, supervise: Supervise) -> None:
    """At exec, before any library can look: NEURON_RT_VISIBLE_CORES in the environment, the mask on every thread."""
    cpu = max(os.sched_getaffinity(0))
    plan = make_plan(root, commands=(answers,), cores=(10,))
    plan = replace(plan, members=(replace(plan.members[0], cpus=(cpu,)),))
    supervise(plan)
    pid = pids(plan)[0]
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"NEURON_RT_VISIBLE_CORES=10" in environment
    masks = [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]
    assert masks == [{cpu}] * len(masks)


def test_what_a_server_prints_stands_in_its_log(root: Path, supervise: Supervise) -> None:
    """Both of its streams."""
    plan = make_plan(root, commands=(answers,))
    supervise(plan)
    log = plan.folder.log("core-0")
    eventually(lambda: log.read_text() == f"listening on {plan.members[0].port}\n", "the line is there")


def test_a_killed_gateway_comes_back(root: Path, supervise: Supervise) -> None:
    """With the cores untouched."""
    plan = make_plan(root, with_gateway=True)
    supervise(plan)
    assert plan.gateway is not None
    os.kill(status_of(plan, "gateway")["pid"], signal.SIGKILL)
    eventually(lambda: status_of(plan, "gateway")["restarts"] == 1, "the gateway is started again")
    wait_for_all(plan)
    assert ask(plan.gateway.port, "/predictions_neuron_core_1/model_0").json["core"] == 1
    assert status_of(plan, "core-0")["restarts"] == status_of(plan, "core-1")["restarts"] == 0


def test_signalling_a_child_that_has_ended_does_not_give_its_pid_back(root: Path) -> None:
    """Its group is killed after its end, and until then no other process may have that number."""

    async def signal_the_ended() -> None:
        plan = make_plan(root, commands=(exits(0),))
        plan.folder.make()
        log = CappedLog(plan.folder.log("core-0"))
        child = Child(plan.cores[0], root, log, asyncio.get_running_loop())
        eventually(lambda: identity(child.pid) is None, "it has ended, and nobody has waited for it")
        child.send(signal.SIGTERM)
        assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        child.reap()
        log.close()
        assert child.code == 0

    asyncio.run(signal_the_ended())


class NeverStarts(Watched):
    """Ends at once, without a process."""

    async def _live(self) -> int:
        return 4


def test_a_stop_that_comes_with_a_retry_stops(root: Path) -> None:
    """At whatever step of the wake-up it comes; else a core is started while all others are ended."""
    plan = make_plan(root, commands=(exits(4),))
    plan.folder.make()

    async def stopped_after(steps: int) -> bool:
        watched = NeverStarts(plan.cores[0], Supervisor(plan, lambda _: None))
        running = asyncio.create_task(watched.run())
        while watched.state != "backing-off":
            await asyncio.sleep(0)
        watched.try_again.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=0.5)
        running.cancel()
        return bool(done)

    assert [asyncio.run(stopped_after(steps)) for steps in range(6)] == [True] * 6

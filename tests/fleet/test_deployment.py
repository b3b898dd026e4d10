"""Up, down and look over small real servers: idempotent, repairing, leaving nothing that failed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from corelane.errors import BundleError, ConfigError, CorelaneError, StartError
from corelane.fleet import deployment
from corelane.fleet.deployment import bring_up, look, take_down
from corelane.fleet.plan import Plan
from corelane.fleet.processes import Process, identity, myself
from corelane.fleet.state import Folder, State, lock, read_json, read_state, write_state
from support.fleets import (
    SOURCE,
    Said,
    answers,
    deaf,
    eventually,
    exits,
    exits_while,
    free_ports,
    make_plan,
    status_of,
    wait_for,
    wait_for_all,
)


def up(plan: Plan, said: Said) -> int:
    return bring_up(plan, say=said.say, announce=said.announce)


def pids(plan: Plan) -> dict[str, int]:
    return {member.name: status_of(plan, member.name)["pid"] for member in plan.members}


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_up_ends_with_the_urls_and_an_answered_example(root: Path, said: Said) -> None:
    """What a person wants to see after the one command."""
    plan = make_plan(root, with_gateway=True)
    assert up(plan, said) == 0
    first, second, entry = plan.ports
    assert said.announced[:-1] == [
        "tested is ready: stand-in@1 on 2 cores",
        f"core 0   http://127.0.0.1:{first}/predictions_neuron_core_0/model_0",
        f"core 1   http://127.0.0.1:{second}/predictions_neuron_core_1/model_0",
        f"gateway  http://127.0.0.1:{entry}/predictions/model_0",
        f"curl -s 'http://127.0.0.1:{entry}/predictions_neuron_core_0/model_0'",
    ]
    assert json.loads(said.announced[-1])["path"] == "/predictions_neuron_core_0/model_0"


def test_a_second_up_changes_nothing_and_says_the_same(root: Path, said: Said) -> None:
    """Running twice equals running once."""
    plan = make_plan(root)
    up(plan, said)
    before, first = pids(plan), list(said.announced)
    again = Said()
    assert up(plan, again) == 0
    assert pids(plan) == before
    assert again.announced[:-1] == first[:-1]
    assert again.progress == []


def test_two_ups_at_once_start_one_deployment(root: Path) -> None:
    """A cron job and a person, or an impatient person."""
    plan = make_plan(root)
    both = [Said(), Said()]
    threads = [threading.Thread(target=up, args=(plan, said)) for said in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(said.announced) for said in both] == [5, 5]
    assert plan.folder.log("supervisor").read_text().count("supervisor of tested") == 1


def test_another_configuration_takes_the_place_of_the_old_one_and_shrinks_it(root: Path, said: Said) -> None:
    """Cores that are no longer wanted are stopped, not forgotten."""
    ports = free_ports(3)
    large = make_plan(root, commands=(answers, answers, answers), ports=ports)
    up(large, said)
    before = pids(large)
    small = make_plan(root, commands=(answers,), ports=ports)
    up(small, said)
    assert any("runs with another configuration" in line for line in said.progress)
    assert not any(identity(pid) for pid in before.values())
    assert [is_listening(port) for port in ports] == [True, False, False]
    assert list(look(small.folder).members) == ["core-0"]


def test_a_taken_port_is_a_sentence_and_nothing_is_started(root: Path, said: Said) -> None:
    """BIND fails late and obscurely in a server; here it is said before."""
    plan = make_plan(root)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", plan.ports[1]))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port {plan.ports[1]} for core 1 is taken by pid {os.getpid()}"):
            up(plan, said)
    assert read_state(plan.folder) is None
    assert not is_listening(plan.ports[0])


def test_a_port_that_another_program_holds_does_not_end_what_runs(root: Path, said: Said) -> None:
    """The old deployment is worth more than one that cannot start."""
    plan = make_plan(root)
    up(plan, said)
    before = pids(plan)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = make_plan(root, ports=[plan.ports[0], taken.getsockname()[1], 0])
        with pytest.raises(ConfigError, match="is taken by"):
            up(other, said)
    assert pids(plan) == before
    assert look(plan.folder).verdict == "ready"


def test_a_gateway_that_haproxy_refuses_does_not_end_what_runs(root: Path, said: Said) -> None:
    """Nor does it change the files of the gateway that runs, which would not come back after a crash."""
    plan = make_plan(root, with_gateway=True)
    up(plan, said)
    before = pids(plan)
    broken = replace(plan, files={**plan.files, "haproxy.cfg": "no such word\n"})
    with pytest.raises(CorelaneError, match="HAProxy refuses the gateway's configuration"):
        up(broken, said)
    assert pids(plan) == before
    assert (plan.folder.path / "haproxy.cfg").read_text() == plan.files["haproxy.cfg"]


def test_what_the_last_check_refuses_does_not_end_what_runs_and_stands_in_the_status(root: Path, said: Said) -> None:
    """A damaged bundle is found before the sound one is taken away; a deployment that changes nothing is not asked."""

    def refuse() -> None:
        raise BundleError("bundle demo@2 has a changed model.bin")

    plan = make_plan(root)
    bring_up(plan, say=said.say, announce=said.announce, check=refuse)  # nothing runs that would have to end
    before = pids(plan)
    bring_up(plan, say=said.say, announce=said.announce, check=refuse)
    with pytest.raises(BundleError):
        bring_up(replace(plan, bundle="demo@2"), say=said.say, announce=said.announce, check=refuse)
    assert pids(plan) == before
    assert look(plan.folder).failure["why"] == "bundle demo@2 has a changed model.bin"
    assert look(plan.folder).verdict == "ready"


def test_a_refused_core_ends_the_start_with_its_code_its_reason_and_its_log(root: Path, said: Said) -> None:
    """And what this run started is stopped: half a deployment helps nobody."""
    plan = make_plan(root, commands=(answers, exits(3, "bundle demo@1 has a changed model.bin.")))
    with pytest.raises(StartError) as caught:
        up(plan, said)
    assert caught.value.exit_code == 3
    assert "core 1 refused" in str(caught.value)
    assert "bundle demo@1 has a changed model.bin" in str(caught.value)
    assert str(plan.folder.log("core-1")) in str(caught.value)
    assert not is_listening(plan.ports[0])
    assert read_state(plan.folder) is None


def test_why_a_start_was_given_up_stands_in_the_status_until_the_next(root: Path, said: Said) -> None:
    """The terminal of the failed start is often not there any more."""
    plan = make_plan(root, commands=(exits(3, "bundle demo@1 has a changed model.bin."),))
    with pytest.raises(StartError):
        up(plan, said)
    found = look(plan.folder)
    assert (found.verdict, found.exit_code) == ("stopped", 1)
    assert "bundle demo@1 has a changed model.bin" in found.failure["why"]
    assert found.failure["members"]["core-0"]["last_code"] == 3
    up(make_plan(root, commands=(answers,)), said)
    assert look(plan.folder).failure == {}


def test_a_configuration_that_a_core_refuses_is_exit_2(root: Path, said: Said) -> None:
    """The tools end with the codes that the core servers have."""
    with pytest.raises(StartError) as caught:
        up(make_plan(root, commands=(exits(2, "first_port=x is no number."),)), said)
    assert caught.value.exit_code == 2


def test_a_start_that_takes_too_long_is_given_up(root: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is known of the core that is late."""
    monkeypatch.setattr(deployment, "READY_WITHIN_S", 0.5)
    plan = make_plan(root, commands=(lambda core, port: ["sleep", "600"],))
    with pytest.raises(StartError, match=r"not all was ready within 0 s: core 0 starting"):
        up(plan, said)
    assert read_state(plan.folder) is None


def test_a_deploy_that_was_cut_off_is_repaired_with_a_sentence(root: Path, said: Said) -> None:
    """kill -9 of the supervisor, or a power cut: the next one just works."""
    plan = make_plan(root)
    up(plan, said)
    state = read_state(plan.folder)
    assert state is not None
    state.supervisor.send(signal.SIGKILL)
    eventually(lambda: not state.supervisor.is_alive, "the supervisor is gone")
    assert look(plan.folder).verdict == "cut-off"
    assert up(plan, said) == 0
    assert any(f"pid {state.supervisor.pid}, is gone; cleaning up" in line for line in said.progress)


def test_a_damaged_state_file_is_repaired_too(root: Path, said: Said) -> None:
    """What it said is lost; nothing of it is needed."""
    plan = make_plan(root)
    plan.folder.make()
    plan.folder.write("state.json", '{"pid": ')
    assert up(plan, said) == 0
    assert any("cleaning up" in line for line in said.progress)


def test_a_process_that_has_the_old_pid_by_chance_is_not_touched(root: Path, said: Said) -> None:
    """Neither by `up` nor by `down`: pids are used again."""
    plan = make_plan(root)
    with subprocess.Popen(["sleep", "600"]) as innocent:
        stale = State(Process(innocent.pid, "an earlier boot:1"), plan.digest, "demo@1", plan.ports, 0.0)
        plan.folder.make()
        member = {"state": "ready", "pid": innocent.pid, "identity": "an earlier boot:2", "port": 1}
        for act in (lambda: take_down(plan.folder, say=said.say), lambda: up(plan, said)):
            write_state(plan.folder, stale)
            plan.folder.write("status.json", json.dumps({"members": {"core-0": member}}))
            act()
        assert innocent.poll() is None
        innocent.kill()


def test_what_ended_for_good_is_tried_again_by_up_and_the_others_go_on(root: Path, said: Said) -> None:
    """A core that was refused in the night, and a person who has repaired its bundle in the morning."""
    broken = root / "broken"
    plan = make_plan(root, commands=(exits_while(broken), answers))
    up(plan, said)
    before = pids(plan)
    broken.touch()
    os.kill(before["core-0"], signal.SIGKILL)
    wait_for(plan, "core-0", "refused")
    assert look(plan.folder).exit_code == 1
    broken.unlink()
    assert up(plan, said) == 0
    assert any("core-0 had ended for good; starting again" in line for line in said.progress)
    assert pids(plan)["core-1"] == before["core-1"]


def test_two_deployments_with_different_names_live_side_by_side(root: Path, said: Said) -> None:
    """Stopping one leaves the other untouched."""
    one, two = make_plan(root, "one", with_gateway=True), make_plan(root, "two", with_gateway=True)
    up(one, said)
    up(two, said)
    before = pids(two)
    assert take_down(one.folder, say=said.say)
    assert [is_listening(port) for port in one.ports] == [False] * 3
    assert look(two.folder).verdict == "ready"
    assert pids(two) == before


def test_down_leaves_no_process_no_port_and_no_state(root: Path, said: Said) -> None:
    """Only the logs stay."""
    plan = make_plan(root, with_gateway=True)
    up(plan, said)
    before = pids(plan)
    assert take_down(plan.folder, say=said.say)
    assert not any(identity(pid) for pid in before.values())
    assert not any(map(is_listening, plan.ports))
    assert [path.name for path in plan.folder.path.iterdir()] == ["logs"]
    assert not take_down(plan.folder, say=said.say)


def test_down_of_nothing_is_fine_and_makes_nothing(root: Path, said: Said) -> None:
    """`scripts/stop` in a fresh clone."""
    assert not take_down(make_plan(root).folder, say=said.say)
    assert list(root.iterdir()) == []


def test_down_ends_an_up_that_still_waits(root: Path, said: Said) -> None:
    """Who stops a deployment does not want to wait until it has started."""
    plan = make_plan(root, commands=(lambda core, port: ["sleep", "600"],))
    errors: list[StartError] = []

    def try_up() -> None:
        try:
            up(plan, said)
        except StartError as error:
            errors.append(error)

    waiting = threading.Thread(target=try_up)
    waiting.start()
    wait_for(plan, "core-0", "starting")
    assert take_down(plan.folder, say=said.say)
    waiting.join()
    assert "ended before all was ready" in str(errors[0])
    assert read_state(plan.folder) is None


def test_a_drain_under_way_is_not_cut_short_by_a_second_down(root: Path, said: Said) -> None:
    """Two `down` at once are one, whoever comes first: the second waits as long as what runs may take."""
    plan = make_plan(root, commands=(deaf,), drain_timeout_ms=0)  # ended after the supervisor's own margin of 2 s
    up(plan, said)
    began = time.monotonic()
    threads = [threading.Thread(target=take_down, args=(plan.folder,), kwargs={"say": said.say}) for _ in "ab"]
    for thread in threads:
        thread.start()
    eventually(lambda: bool(read_json(plan.folder.status).get("is_stopping")), "the supervisor is stopping")
    take_down(plan.folder, say=said.say)
    assert time.monotonic() - began > 1.5
    for thread in threads:
        thread.join()
    assert read_state(plan.folder) is None


def test_the_status_holds_what_is_written_against_what_is_there(root: Path, said: Said) -> None:
    """A status file that says `ready` proves nothing."""
    plan = make_plan(root)
    up(plan, said)
    assert look(plan.folder).exit_code == 0
    os.kill(pids(plan)["core-0"], signal.SIGSTOP)
    found = look(plan.folder)
    os.kill(pids(plan)["core-0"], signal.SIGCONT)
    assert (found.verdict, found.exit_code) == ("not-ready", 1)
    assert (found.members["core-0"]["state"], found.members["core-1"]["state"]) == ("not-ready", "ready")


def test_a_status_whose_processes_are_gone_says_so(root: Path) -> None:
    """After a power cut the files say that all is ready."""
    plan = make_plan(root)
    plan.folder.make()
    write_state(plan.folder, State(Process(2**22 + 1, "an earlier boot:1"), "", "demo@1", plan.ports, 0.0))
    gone = {"state": "ready", "pid": 2**22 + 2, "identity": "an earlier boot:2", "port": plan.ports[0]}
    plan.folder.write("status.json", json.dumps({"members": {"core-0": gone}}))
    found = look(plan.folder)
    assert (found.verdict, found.exit_code) == ("cut-off", 1)
    assert (found.members["core-0"]["state"], found.members["core-0"]["pid"]) == ("gone", None)


def test_nothing_runs_where_nothing_was_started(root: Path) -> None:
    """And looking makes nothing."""
    assert look(make_plan(root).folder).exit_code == 1
    assert list(root.iterdir()) == []


# --- in the foreground ---

FOREGROUND = """
import sys
from pathlib import Path
from corelane.errors import CorelaneError
from corelane.fleet.deployment import bring_up
from corelane.fleet.plan import Plan
say = lambda line: print(line, file=sys.stderr, flush=True)
try:
    plan = Plan.from_json(sys.stdin.read())
    sys.exit(bring_up(plan, say=say, announce=lambda line: print(line, flush=True), foreground=True))
except CorelaneError as error:
    say(error)
    sys.exit(error.exit_code)
"""


def in_foreground(plan: Plan) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert process.stdin is not None
    process.stdin.write(plan.to_json())
    process.stdin.close()
    process.stdin = None
    return process


def test_in_the_foreground_up_stays_and_sigint_stops_all(root: Path) -> None:
    """As a container or systemd runs it; Ctrl-C at a terminal."""
    plan = make_plan(root)
    process = in_foreground(plan)
    assert process.stdout is not None
    assert process.stdout.readline() == "tested is ready: stand-in@1 on 2 cores\n"
    state = read_state(plan.folder)
    assert state is not None
    assert state.supervisor.pid == process.pid
    assert json.loads([process.stdout.readline() for _ in range(4)][-1])["core"] == 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert not any(map(is_listening, plan.ports))


def test_in_the_foreground_a_refused_core_ends_it_with_its_code(root: Path) -> None:
    """What supervises us acts on the code, as we do."""
    process = in_foreground(make_plan(root, commands=(answers, exits(3, "bundle refused here."))))
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "bundle refused here; its log is" in errors


def test_the_foreground_takes_the_place_of_a_detached_one(root: Path, said: Said) -> None:
    """A unit of systemd that starts where somebody had started by hand."""
    plan = make_plan(root)
    up(plan, said)
    process = in_foreground(plan)
    assert process.stdout is not None
    process.stdout.readline()
    assert look(plan.folder).supervisor == process.pid
    process.terminate()
    _, errors = process.communicate(timeout=20)
    assert "runs detached" in errors


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_that_is_closed_does_not_end_the_cores(root: Path, stream: str) -> None:
    """`up --foreground | head`, or a log collector that was restarted: the next line has nowhere to go."""
    plan = make_plan(root)
    process = in_foreground(plan)
    getattr(process, stream).close()
    wait_for_all(plan)
    with lock(plan.folder, lambda: None):
        pass  # it has shown its example, or tried to
    os.kill(pids(plan)["core-0"], signal.SIGKILL)  # about which it has something to say
    eventually(lambda: status_of(plan, "core-0")["restarts"] == 1, "core 0 is started again")
    wait_for_all(plan)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=20)
    for other in (process.stdout, process.stderr):
        if other is not None:
            other.close()
    assert not any(map(is_listening, plan.ports))


def test_stopping_a_foreground_start_early_is_no_failure(root: Path) -> None:
    """Ctrl-C before all was ready: ended as asked."""
    plan = make_plan(root, commands=(lambda core, port: ["sleep", "600"],))
    process = in_foreground(plan)
    wait_for(plan, "core-0", "starting")
    take_down(plan.folder, say=lambda _: None)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_the_supervisor_is_this_process_only_in_the_foreground(root: Path, said: Said) -> None:
    """Else it would end with the terminal."""
    plan = make_plan(root)
    up(plan, said)
    state = read_state(plan.folder)
    assert state is not None
    assert state.supervisor != myself()
    assert os.getsid(state.supervisor.pid) == state.supervisor.pid


def test_the_same_plan_on_other_ports_is_another_deployment(root: Path) -> None:
    """The digest decides whether there is something to do."""
    plan = make_plan(root)
    moved = replace(plan, members=(replace(plan.members[0], port=1), *plan.members[1:]))
    assert moved.digest != plan.digest
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "damage", [{"pid": -1}, {"pid": 0}, {"pid": 1}, {"pid": True}, {"pid": "7"}, {"identity": None}, {"identity": ""}]
)
def test_a_damaged_state_file_is_nobody_to_signal(tmp_path: Path, damage: dict[str, object]) -> None:
    """kill(-1) and kill(0) reach everybody: no file may lead there."""
    folder = Folder(tmp_path)
    state = {"pid": 4711, "identity": "x:1", "digest": "d", "bundle": "b", "ports": [1], "started": 1.0}
    folder.state.write_text(json.dumps(state))
    assert read_state(folder) is not None
    folder.state.write_text(json.dumps(state | damage))
    assert read_state(folder) is None

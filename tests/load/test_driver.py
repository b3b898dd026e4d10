"""How one reply is judged where the way leads through a gateway: what test_command.py cannot reach."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corelane.load.driver import Reply, judge
from corelane.load.questions import Call
from corelane.load.tally import WRONG_ANSWER, WRONG_SERVICE, Failure
from corelane.load.targets import Target

PINNED = Target(1, 0, "gateway", "http://127.0.0.1:8080/predictions_neuron_core_1/model_0")
POOLED = Target(None, 0, "gateway", "http://127.0.0.1:8080/predictions/model_0")
CALL = Call("get 0", "", None, lambda answer: None if answer == "right" else "it is not right")


def judged(target: Target, status: int, core: str | None, body: Any) -> Failure | Any:
    return judge(target, CALL, Reply(status, core, json.dumps(body).encode()), frozenset({0, 1}))


@pytest.mark.parametrize(
    ("target", "status", "core", "detail", "kind"),
    [
        pytest.param(PINNED, 200, "1", "right", None, id="the core that the route names"),
        pytest.param(PINNED, 200, "0", "right", WRONG_SERVICE, id="another core than the route names"),
        pytest.param(PINNED, 200, "10", "right", WRONG_SERVICE, id="core 10 is not core 1"),
        pytest.param(POOLED, 200, "0", "right", None, id="any core on the pooled route"),
        pytest.param(POOLED, 200, "7", "right", WRONG_SERVICE, id="a core of another deployment"),
        pytest.param(POOLED, 200, None, "right", WRONG_SERVICE, id="an answer by nobody"),
        pytest.param(PINNED, 503, None, "core 1 is away", "status 503", id="the gateway's own refusal"),
        pytest.param(PINNED, 404, None, "no such route", "status 404", id="the gateway's own 404"),
    ],
)
def test_a_reply_through_the_gateway(
    target: Target, status: int, core: str | None, detail: str, kind: str | None
) -> None:
    """The gateway answers for cores that are away, without our header; an answer always comes from a core."""
    outcome = judged(target, status, core, {"detail": detail})
    assert (outcome.kind if isinstance(outcome, Failure) else None) == kind


def test_a_wrong_answer_on_the_pooled_route_names_the_core_that_gave_it() -> None:
    """The route alone would leave nobody to look at."""
    assert judged(POOLED, 200, "1", {"detail": "wrong"}) == Failure(WRONG_ANSWER, "core 1: it is not right")


def test_a_refusal_is_told_in_the_servers_own_words() -> None:
    """They say what to do; a bare status does not."""
    assert judged(PINNED, 503, "1", {"detail": "core 1 is draining"}) == Failure("status 503", "core 1 is draining")

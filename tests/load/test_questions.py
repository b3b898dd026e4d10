"""What is asked and what is right: the committed answers, and the checks that must not be fooled."""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import parse_qs

import pytest

from corelane.load.questions import Call, ModelInfo, questions, same
from support.stand_ins import KNOWN

QA = ModelInfo("demo-qa@1", "demo-qa", "question-answering")
EMBED = ModelInfo("demo-embed@1", "demo-embed", "feature-extraction")
CONTEXT = KNOWN["question_answering"][0]["context"]


def find(info: ModelInfo | None, key: str) -> Call:
    return next(call for call in questions(info).calls if call.key == key)


def span(text: str, **changes: Any) -> dict[str, Any]:
    start = CONTEXT.index(text)
    return {
        "score": 0.9,
        "no_answer_score": 0.0,
        "start": start,
        "end": start + len(text),
        "answer": text,
    } | changes


@pytest.mark.parametrize("item", KNOWN["question_answering"], ids=lambda item: str(item["question"]))
def test_a_known_answer_stands_in_its_context(item: dict[str, Any]) -> None:
    """Else no extractive model could ever give it."""
    assert item["answers"][0] in item["context"]


@pytest.mark.parametrize("item", KNOWN["feature_extraction"], ids=lambda item: str(item["text"])[:20])
def test_a_known_vector_has_eight_numbers(item: dict[str, Any]) -> None:
    """Few enough to read, too many for another text to match by chance."""
    assert len(item["starts_with"]) == 8


def test_the_little_engine_is_asked_without_arguments() -> None:
    """The sample's own check: the static endpoint answers it by itself."""
    call = find(QA, "get 0")
    assert call.query == ""
    assert call.check("I think I can") is None


def test_both_methods_ask_the_same() -> None:
    """A difference between the two routes would be a fault of the server."""
    item = KNOWN["question_answering"][5]
    query, body = find(QA, "get 5").query, find(QA, "post 5").body
    assert query is not None
    assert body is not None
    assert parse_qs(query) == {"seq_0": [item["question"]], "seq_1": [item["context"]]}
    assert json.loads(body) == {"inputs": {"question": item["question"], "context": item["context"]}}


@pytest.mark.parametrize(("method", "kinds"), [("post", {"post"}), ("get", {"get"}), ("both", {"post", "get"})])
def test_the_method_can_be_chosen(method: str, kinds: set[str]) -> None:
    """One route at a time can be measured."""
    assert {call.key.split()[0] for call in questions(QA, method).calls} == kinds


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        pytest.param("I think I can", True, id="the answer"),
        pytest.param("'I think I can'", True, id="quotes make no other answer"),
        pytest.param("i think i can", False, id="a text that is not in the context"),
        pytest.param("I thought I could", False, id="another piece of the context"),
        pytest.param("", False, id="nothing"),
        pytest.param(None, False, id="null"),
        pytest.param(["I think I can"], False, id="a list"),
    ],
)
def test_a_text_is_right_up_to_quotes(answer: Any, is_right: bool) -> None:
    """GET answers with the text alone."""
    assert (find(QA, "get 0").check(answer) is None) is is_right


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        pytest.param(span("I think I can"), True, id="the answer"),
        pytest.param(span("'I think I can'"), True, id="with its quotes"),
        pytest.param(span("I thought I could"), False, id="another piece"),
        pytest.param(span("I think I can", start=0), False, id="offsets of another text"),
        pytest.param(span("I think I can", end=10**6), False, id="offsets outside"),
        pytest.param(span("I think I can", start=None), False, id="no offset"),
        pytest.param(span("I think I can", score=None), False, id="no score"),
        pytest.param(span("I think I can", score=math.inf), False, id="infinite score"),
        pytest.param(span("I think I can", no_answer_score=True), False, id="a score that is no number"),
        pytest.param("I think I can", False, id="a text"),
    ],
)
def test_a_span_is_right_with_all_of_its_numbers(answer: Any, is_right: bool) -> None:
    """POST answers with offsets, which callers cut their text by."""
    assert (find(QA, "post 0").check(answer) is None) is is_right


def vector(number: int, scale: float = 1.0) -> list[float]:
    """A unit vector with the known beginning, times `scale`."""
    head = KNOWN["feature_extraction"][number]["starts_with"]
    rest = math.sqrt(1 - sum(value * value for value in head))
    return [value * scale for value in (*head, rest)]


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        pytest.param(vector(0), True, id="the vector"),
        pytest.param(vector(1), False, id="that of another text"),
        pytest.param(vector(0, scale=1.01), False, id="not of length 1"),
        pytest.param([*vector(0)[:-1], math.nan], False, id="a number that is none"),
        pytest.param([*vector(0)[:-1], None], False, id="a hole"),
        pytest.param([], False, id="empty"),
        pytest.param({"embedding": vector(0)}, False, id="an object"),
    ],
)
def test_a_vector_is_right_if_finite_of_length_1_and_of_this_text(answer: Any, is_right: bool) -> None:
    """Answers that were swapped between two callers are unit vectors as well."""
    assert (find(EMBED, "post 0").check(answer) is None) is is_right


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        pytest.param([{"label": "good", "score": 0.5}], True, id="one label"),
        pytest.param([{"label": "good", "score": 0.5}, {"label": "bad", "score": -3}], True, id="two"),
        pytest.param([], False, id="empty"),
        pytest.param({"label": "good", "score": 0.5}, False, id="an object"),
        pytest.param([{"label": "good"}], False, id="no score"),
        pytest.param([{"label": "good", "score": math.nan}], False, id="a number that is none"),
        pytest.param([{"label": 1, "score": 0.5}], False, id="a label that is no text"),
    ],
)
def test_labels_are_right_with_finite_scores(answer: Any, is_right: bool) -> None:
    """Which label is right, is not known here."""
    for key in ("post 0", "get 0"):
        assert (find(ModelInfo("c@1", "org/c", "text-classification"), key).check(answer) is None) is is_right


def test_an_unknown_model_has_checks_of_form_and_a_note() -> None:
    """Its right answers cannot be known; any span of the context will do."""
    asked = questions(ModelInfo("other@1", "org/other", "question-answering"))
    assert asked.note is not None
    assert "org/other" in asked.note
    assert asked.calls[0].check(span("a small locomotive")) is None
    assert asked.calls[0].check(span("a small locomotive", start=0)) is not None


def test_vectors_per_token_are_taken_too() -> None:
    """Models without pooling answer with a list of lists."""
    call = questions(ModelInfo("other@1", "org/other", "feature-extraction")).calls[0]
    assert call.check([[0.1, 0.2], [3, 4]]) is None
    assert call.check([[0.1, math.nan], [3, 4]]) is not None


def test_of_a_silent_core_only_the_example_is_asked() -> None:
    """Whatever task it has, its endpoint answers that one."""
    (call,) = questions(None).calls
    assert (call.query, call.body) == ("", None)


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        pytest.param([1.0, 2.0], [1.00005, 2.0], True, id="numbers within 1e-4"),
        pytest.param([1.0, 2.0], [1.001, 2.0], False, id="numbers further apart"),
        pytest.param([1000.0], [1000.05], True, id="large numbers, relatively"),
        pytest.param([1.0], [1.0, 2.0], False, id="another length"),
        pytest.param([[1.0], [2.0]], [[1.0], [2.00001]], True, id="lists of lists"),
        pytest.param({"a": "x", "b": 1.0}, {"a": "x", "b": 1.00001}, True, id="objects"),
        pytest.param({"a": "x"}, {"a": "y"}, False, id="other texts"),
        pytest.param({"a": 1}, {"b": 1}, False, id="other keys"),
        pytest.param([1.0], 1.0, False, id="other types"),
        pytest.param(True, 1, False, id="true is no number"),
        pytest.param(None, None, True, id="null"),
    ],
)
def test_same_is_about_values(one: Any, other: Any, are_same: bool) -> None:
    """Float sums differ in their last digits from batch to batch; nothing else may differ."""
    assert same(one, other) is are_same
    assert same(other, one) is are_same

"""Text classification: scores as the model's configuration means them, labels by name, always a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corelane.errors import BundleError, InvalidInputError, TooLargeError
from corelane.tasks import Task, get, parse_parameters

INPUTS = ("input_ids", "attention_mask")
SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


def make(path: Path, labels: int, problem_type: str | None = None) -> Task:
    names = {str(number): f"L{number}" for number in range(labels)}
    return get("text-classification")(path, INPUTS, 64, {"labels": names, "problem_type": problem_type})


def answer(task: Task, logits: list[float], **parameters: object) -> Any:
    """What an item is answered when the model gave these logits."""
    read = parse_parameters(task, parameters)
    return task.decode(task.encode("a text", read), [{"logits": np.array(logits, np.float32)}], read)


def scores(answers: list[dict[str, Any]]) -> dict[str, float]:
    return {entry["label"]: pytest.approx(entry["score"], abs=5e-4) for entry in answers}


THIRD = 0.0090761  # exp(-4) / (2 + exp(-4))


@pytest.mark.parametrize(
    ("problem_type", "expected"),
    [
        (SINGLE, {"L0": 0.4955, "L1": 0.4955, "L2": THIRD}),
        (None, {"L0": 0.4955, "L1": 0.4955, "L2": THIRD}),
        (MULTI, {"L0": 0.8808, "L1": 0.8808, "L2": 0.1192}),
        (REGRESSION, {"L0": 2.0, "L1": 2.0, "L2": -2.0}),
    ],
)
def test_scores_are_what_the_model_was_trained_for(
    wordpiece: Path, problem_type: str | None, expected: dict[str, float]
) -> None:
    """Classes that exclude each other sum to 1; others have a probability each; a regression is a number."""
    found = answer(make(wordpiece, 3, problem_type), [2.0, 2.0, -2.0], top_k=None)
    assert expected == scores(found)
    assert [entry["label"] for entry in found] == ["L0", "L1", "L2"]
    if problem_type in (SINGLE, None):
        assert sum(entry["score"] for entry in found) == pytest.approx(1)


@pytest.mark.parametrize("problem_type", [None, SINGLE, MULTI])
def test_one_label_is_a_sigmoid(wordpiece: Path, problem_type: str | None) -> None:
    """The softmax of one number is always 1, whatever the text says."""
    (only,) = answer(make(wordpiece, 1, problem_type), [0.3])
    assert only == {"label": "L0", "score": pytest.approx(0.5744, abs=5e-4)}


def test_one_label_of_a_regression_is_the_number_itself(wordpiece: Path) -> None:
    (only,) = answer(make(wordpiece, 1, REGRESSION), [0.3])
    assert only["score"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("function", "expected"),
    [("softmax", [0.4955, 0.4955, THIRD]), ("sigmoid", [0.8808, 0.8808, 0.1192]), ("none", [2.0, 2.0, -2.0])],
)
@pytest.mark.parametrize("problem_type", [None, SINGLE, MULTI, REGRESSION])
def test_the_callers_function_beats_the_models(
    wordpiece: Path, problem_type: str | None, function: str, expected: list[float]
) -> None:
    """Raw scores, for instance, to choose a threshold by."""
    found = answer(make(wordpiece, 3, problem_type), [2.0, 2.0, -2.0], top_k=None, function_to_apply=function)
    assert [entry["score"] for entry in found] == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("parameters", "count"), [({}, 1), ({"top_k": 1}, 1), ({"top_k": 2}, 2), ({"top_k": 9}, 3)])
def test_top_k_says_how_many_and_the_answer_is_always_a_list(
    wordpiece: Path, parameters: dict[str, int], count: int
) -> None:
    """One form for every number of them; more than there are is all."""
    found = answer(make(wordpiece, 3), [-1.0, 3.0, 1.0], **parameters)
    assert [entry["label"] for entry in found] == ["L1", "L2", "L0"][:count]


def test_no_top_k_is_all(wordpiece: Path) -> None:
    """null, as transformers has it."""
    assert len(answer(make(wordpiece, 3), [-1.0, 3.0, 1.0], top_k=None)) == 3


def test_extreme_logits_have_finite_scores_in_their_order(wordpiece: Path) -> None:
    """Both scores are 1 to the last digit, and the order is still the model's."""
    for function in ("softmax", "sigmoid"):
        found = answer(make(wordpiece, 3), [-1000.0, 900.0, 1000.0], top_k=None, function_to_apply=function)
        assert [entry["label"] for entry in found] == ["L2", "L1", "L0"]
        assert all(0 <= entry["score"] <= 1 for entry in found)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"top_k": 0}, "top_k must be a whole number of at least 1 or null, found the number 0"),
        ({"function_to_apply": "tanh"}, '"softmax" or "sigmoid" or "none" or null, found the string "tanh"'),
        ({"truncate": 1}, "truncate must be true or false, found the number 1"),
        ({"topk": 2}, 'parameters: "topk" is not known to text-classification'),
    ],
)
def test_a_wrong_parameter_is_refused_with_what_it_must_be(
    wordpiece: Path, parameters: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_parameters(make(wordpiece, 2), parameters)
    assert words in str(caught.value)


def test_an_item_is_a_text_or_a_pair_and_is_cut_as_said(wordpiece: Path) -> None:
    """What feature extraction does, too: one code for both."""
    task = make(wordpiece, 2)
    pair = task.encode({"text": "two words", "text_pair": "more"}, parse_parameters(task, None))
    assert pair.rows[0].inputs[0].tolist() == [101, 2048, 2616, 102, 2062, 102]
    long = task.encode("word " * 100, parse_parameters(task, None))
    assert (long.truncated, long.tokens, long.rows[0].length) == (True, 102, 64)
    with pytest.raises(TooLargeError, match="102 tokens and the model takes 64"):
        task.encode("word " * 100, parse_parameters(task, {"truncate": False}))
    with pytest.raises(InvalidInputError, match="an item of text-classification has no text"):
        task.encode({}, parse_parameters(task, None))


def test_the_static_endpoints_detail_is_the_answer(wordpiece: Path) -> None:
    task = make(wordpiece, 2)
    found = answer(task, [0.0, 1.0])
    assert task.detail(found) == found


@pytest.mark.parametrize("labels", [None, {}, {"1": "a"}, {"0": "a", "2": "b"}])
def test_a_bundle_without_a_name_for_each_label_is_refused(wordpiece: Path, labels: object) -> None:
    """A label made up here would be another than the model's."""
    with pytest.raises(BundleError, match="labels"):
        get("text-classification")(wordpiece, INPUTS, 64, {"labels": labels})

"""`parameters` of a request, and the table of tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from corelane.errors import ConfigError, InvalidInputError
from corelane.tasks import TASKS, Task, get, parse_parameters

COUNT = "parameters: top_k must be a whole number from 1 to 100, found "
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture
def task(wordpiece: Path) -> Task:
    return get("question-answering")(wordpiece, INPUTS, 384, {})


@pytest.mark.parametrize("value", [None, {}])
def test_no_parameters_are_the_defaults(task: Task, value: object) -> None:
    """Most requests send none."""
    assert parse_parameters(task, value) == task.parameters()


def test_parameters_that_were_sent_are_told_from_defaults(task: Task) -> None:
    """A stride that was asked for is refused where it cannot be kept; the default is not."""
    assert parse_parameters(task, {"doc_stride": 128}).model_fields_set == {"doc_stride"}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([], "parameters must be an object, found an array"),
        ("x", 'parameters must be an object, found the string "x"'),
        ({"top_k": 0}, COUNT + "the number 0"),
        ({"top_k": 101}, COUNT + "the number 101"),
        ({"top_k": True}, COUNT + "true"),
        ({"top_k": "3"}, COUNT + 'the string "3"'),
        ({"top_k": 1.5}, COUNT + "the number 1.5"),
        ({"top_k": None}, COUNT + "null"),
        ({"top_k": 10**400}, COUNT + "a number out of range"),
        (
            {"doc_stride": -1},
            "parameters: doc_stride must be a whole number of at least 0, found the number -1",
        ),
        (
            {"max_seq_len": []},
            "parameters: max_seq_len must be a whole number of at least 1 or null, found an array",
        ),
        (
            {"handle_impossible_answer": 1},
            "parameters: handle_impossible_answer must be true or false, found the number 1",
        ),
        (
            {"topk": 3},
            'parameters: "topk" is not known to question-answering; known are doc_stride, '
            "handle_impossible_answer, max_answer_len, max_seq_len, top_k",
        ),
    ],
)
def test_a_wrong_parameter_is_named_with_what_it_must_be(task: Task, value: object, sentence: str) -> None:
    """One sentence says which, what it must be and what was found; nothing is converted or ignored."""
    with pytest.raises(InvalidInputError) as caught:
        parse_parameters(task, value)
    assert str(caught.value) == sentence


def test_an_unknown_name_that_is_no_text_is_refused_in_text(task: Task) -> None:
    """JSON can spell half a surrogate pair in a name too, and the answer must stay valid UTF-8."""
    with pytest.raises(InvalidInputError) as caught:
        parse_parameters(task, {"\ud800": 1})
    assert str(caught.value).encode()


def test_an_unknown_task_is_named_with_the_known_ones() -> None:
    """It stands in a configuration."""
    with pytest.raises(ConfigError, match=r"task=translation .* question-answering, feature-extraction"):
        get("translation")


@pytest.mark.parametrize("name", TASKS)
def test_every_task_answers_its_own_example(wordpiece: Path, name: str) -> None:
    """The static endpoint answers it when it is called without arguments."""
    task = get(name)(wordpiece, INPUTS, 384, {"pooled": True, "labels": {"0": "no", "1": "yes"}})
    item = task.from_query(None, None)
    encoded = task.encode(item, parse_parameters(task, None))
    assert task.name == name
    assert len(encoded.rows) == 1
    assert set(task.query) == {"seq_0", "seq_1"}

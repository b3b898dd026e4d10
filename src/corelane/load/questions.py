"""What is asked, and what makes an answer right: for the demo models known answers, for others its form.

A check takes the JSON value of an answer and returns None, or a few words that say what is wrong with it.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

QUESTION_ANSWERING, FEATURE_EXTRACTION = "question-answering", "feature-extraction"
TEXT_CLASSIFICATION = "text-classification"
DEMO_QA, DEMO_EMBED = "demo-qa", "demo-embed"

POST, GET, BOTH = "post", "get", "both"
METHODS = (POST, GET, BOTH)

# float32 in another batch differs in the sixth digit; a wrong vector differs in the second.
SAME_WITHIN = 1e-4
# The known numbers are float32 ones of the uncompiled model; a chip may compute in bfloat16.
KNOWN_WITHIN = 0.01
UNIT_NORM_WITHIN = 1e-3

_FILE = Path(__file__).with_name("questions.json")

Check = Callable[[Any], str | None]


@dataclass(frozen=True)
class ModelInfo:
    """What a core's /info says of one of its models."""

    label: str  # name@version
    model: str
    task: str


@dataclass(frozen=True)
class Call:
    """One request that a driver may send to any endpoint of a model, and the check of its answer."""

    key: str  # equal keys ask the same: their answers must agree, whichever core gave them
    query: str | None  # GET, with this query string; None: POST
    body: bytes | None
    check: Check


@dataclass(frozen=True)
class Questions:
    """The calls for one model, and a sentence where their answers are not known beforehand."""

    calls: tuple[Call, ...]
    note: str | None = None


def questions(info: ModelInfo | None, methods: str = BOTH) -> Questions:
    """The calls for a model; without `info`, its core being silent, only the built-in example."""
    if info is None:
        return Questions((Call("the example", "", None, _is_json),))
    known = json.loads(_FILE.read_text(encoding="utf-8"))
    note = (
        None
        if info.model in (DEMO_QA, DEMO_EMBED)
        else f"the right answers of {info.model} are not known; checked: their form, and that all cores agree"
    )
    if info.task == QUESTION_ANSWERING:
        calls = _about_contexts(known["question_answering"], is_known=info.model == DEMO_QA)
    else:
        calls = _about_texts(known["feature_extraction"], info)
    wanted = {POST: ("post",), GET: ("get",), BOTH: ("post", "get")}[methods]
    return Questions(tuple(call for call in calls if call.key.split()[0] in wanted), note)


def _about_contexts(items: Sequence[Mapping[str, Any]], *, is_known: bool) -> list[Call]:
    calls: list[Call] = []
    for number, item in enumerate(items):
        question, context = item["question"], item["context"]
        answers = item["answers"] if is_known else None
        query = urlencode({"seq_0": question, "seq_1": context})
        if is_known and item.get("static_example"):
            query = ""  # without arguments the endpoint answers this very example
        body = _body({"question": question, "context": context})
        calls.append(Call(f"post {number}", None, body, _span_check(context, answers)))
        calls.append(Call(f"get {number}", query, None, _text_check(context, answers)))
    return calls


def _about_texts(items: Sequence[Mapping[str, Any]], info: ModelInfo) -> list[Call]:
    calls: list[Call] = []
    for number, item in enumerate(items):
        check: Check = _is_json
        if info.task == FEATURE_EXTRACTION:
            check = _vector_check(item["starts_with"] if info.model == DEMO_EMBED else None)
        elif info.task == TEXT_CLASSIFICATION:
            check = _labels
        calls.append(Call(f"post {number}", None, _body(item["text"]), check))
        calls.append(Call(f"get {number}", urlencode({"seq_0": item["text"]}), None, check))
    return calls


def _body(item: object) -> bytes:
    return json.dumps({"inputs": item}, ensure_ascii=False).encode()


def _is_json(answer: Any) -> str | None:
    return "no answer in it" if answer is None else None


def _labels(answer: Any) -> str | None:
    """Labels with scores: in what order, and that they are the right ones, is for the cores to agree on."""
    if not isinstance(answer, list) or not answer:
        return f"a list of labels was expected, found {_short(answer)}"
    for entry in answer:
        is_label = isinstance(entry, dict) and isinstance(entry.get("label"), str) and _is_finite(entry.get("score"))
        if not is_label:
            return f"a label with a finite score was expected, found {_short(entry)}"
    return None


def _span_check(context: str, answers: Sequence[str] | None) -> Check:
    def check(answer: Any) -> str | None:
        if not isinstance(answer, dict):
            return f"an object was expected, found {_short(answer)}"
        start, end, text = answer.get("start"), answer.get("end"), answer.get("answer")
        if not (type(start) is int and type(end) is int and 0 <= start <= end <= len(context)):
            return f"start={_short(start)} and end={_short(end)} are no place in the context"
        if text != context[start:end]:
            return f"{_short(text)} is not what stands at {start}:{end} of the context"
        for name in ("score", "no_answer_score"):
            if not _is_finite(answer.get(name)):
                return f"{name}={_short(answer.get(name))} is not a finite number"
        return _compare_text(text, answers)

    return check


def _text_check(context: str, answers: Sequence[str] | None) -> Check:
    def check(answer: Any) -> str | None:
        if not isinstance(answer, str) or answer not in context:
            return f"a piece of the context was expected, found {_short(answer)}"
        return _compare_text(answer, answers)

    return check


def _compare_text(text: str, answers: Sequence[str] | None) -> str | None:
    if answers is None or _plain(text) in {_plain(answer) for answer in answers}:
        return None
    return f"{answers[0]!r} was expected, found {_short(text)}"


def _plain(text: str) -> str:
    """Case, and quotes or stops around it, make no other answer."""
    return text.casefold().strip(string.whitespace + "'\"`.,;:!?\u2018\u2019\u201c\u201d")


def _vector_check(starts_with: Sequence[float] | None) -> Check:
    def check(answer: Any) -> str | None:
        numbers = _flat(answer)
        if not numbers:
            return f"a list of finite numbers was expected, found {_short(answer)}"
        if starts_with is None:
            return None
        norm = math.sqrt(sum(number * number for number in numbers))
        if abs(norm - 1) > UNIT_NORM_WITHIN:
            return f"a vector of length 1 was expected, found length {norm:.4f}"
        if not same(numbers[: len(starts_with)], starts_with, KNOWN_WITHIN):
            return f"another vector was expected: {starts_with[:3]}..., found {numbers[:3]}..."
        return None

    return check


def _flat(answer: Any) -> list[float]:
    """The numbers of a list, or of a list of lists; empty where one of them is not a finite number."""
    if not isinstance(answer, list):
        return []
    rows = answer if answer and all(isinstance(row, list) for row in answer) else [answer]
    numbers = [number for row in rows for number in row]
    return numbers if _are_numbers(numbers) and all(map(math.isfinite, numbers)) else []


def _is_finite(value: Any) -> bool:
    return type(value) in _NUMBERS and math.isfinite(value)


_NUMBERS = {int, float}  # exactly: JSON's true is no number, though Python's is


def _are_numbers(values: Sequence[Any]) -> bool:
    return set(map(type, values)) <= _NUMBERS


def same(one: Any, other: Any, within: float = SAME_WITHIN) -> bool:
    """Whether two JSON values agree: numbers within a tolerance (relative above 1), the rest exactly."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key], within) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return False
        close: Callable[[Any, Any], bool] = partial(same, within=within)
        if _are_numbers(one) and _are_numbers(other):  # a vector: without a call of ours per number
            close = partial(math.isclose, rel_tol=within, abs_tol=within)
        return all(map(close, one, other))
    if _is_finite(one) and _is_finite(other):
        return math.isclose(one, other, rel_tol=within, abs_tol=within)
    return type(one) is type(other) and bool(one == other)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Extractive question answering: the best span of a context, with its offsets and the score of "no answer".

A context longer than the model is read in overlapping windows, as the `only_second` truncation with a stride
does; no part of it is ever cut off. A score is p_start * p_end, each a softmax over the context's tokens and
the class token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Encoding, Tokenizer

from corelane.errors import InvalidInputError, TooLargeError
from corelane.runtimes.base import Array, Outputs, Row
from corelane.tasks.base import Encoded, Parameters
from corelane.tasks.text import (
    class_token_id,
    columns,
    encode_one,
    is_long,
    load_tokenizer,
    pieces,
    require_fit,
    require_object,
    require_text,
)

Floats = NDArray[np.float64]

NAME = "question-answering"

DEFAULT_STRIDE = 128
LEAST_ROOM = 8  # context tokens that a window must hold; with fewer, nearly every word would need its own
MOST_WINDOWS = 128  # of one item, some 200 KB of prose; `max_windows` of the task's options beats it

EXAMPLE = {
    "question": "What does the little engine say",
    "context": (
        "A well loved story for children is about a small locomotive that has to haul a long and heavy "
        "train over a steep mountain. The engine is tiny and does not know whether the climb will work. "
        "It is a tale about trusting yourself. While it puffs slowly towards the summit the little engine "
        "says: 'I think I can'. Going down the other side it says: I thought I could."
    ),
}

_ITEM_SCHEMA = {
    "type": "object",
    "required": ["question", "context"],
    "additionalProperties": False,
    "properties": {
        "question": {"type": "string", "minLength": 1, "description": "The question, not blank."},
        "context": {
            "type": "string",
            "minLength": 1,
            "description": "The text that holds the answer, not blank. Long ones are read in windows.",
        },
    },
}

_ONE_ANSWER_SCHEMA = {
    "type": "object",
    "required": ["score", "start", "end", "answer", "no_answer_score"],
    "properties": {
        "score": {"type": "number", "description": "p_start * p_end of this answer, 0 to 1."},
        "start": {
            "type": "integer",
            "description": "First character of the answer in the context as sent, in code points, from 0.",
        },
        "end": {"type": "integer", "description": "One past its last character, in code points."},
        "answer": {"type": "string", "description": "context[start:end], without blanks around it."},
        "no_answer_score": {
            "type": "number",
            "description": 'The score of "the context does not say", the lowest over all windows.',
        },
    },
}

_ANSWER_SCHEMA = {
    "oneOf": [_ONE_ANSWER_SCHEMA, {"type": "array", "items": _ONE_ANSWER_SCHEMA}],
    "description": "One answer, or a list of them, best first, where top_k is above 1.",
}

_DETAIL_SCHEMA = {"type": "string", "description": "The text of the best answer."}

_QUERY = {
    "seq_0": "The question. Send both or neither.",
    "seq_1": "The context that holds the answer.",
}


class QuestionAnsweringParameters(Parameters):
    """How the answer is looked for."""

    top_k: int = Field(1, ge=1, le=100, description="How many answers; above 1 they come as a list, best first.")
    max_answer_len: int = Field(30, ge=1, le=512, description="Longest answer, in tokens.")
    doc_stride: int = Field(
        DEFAULT_STRIDE,
        ge=0,
        description="Tokens that neighbouring windows of a long context share. Left out, it shrinks to half "
        "of the context in a window where the question is long.",
    )
    max_seq_len: int | None = Field(
        None,
        ge=1,
        description="Longest window in tokens, question included; by default what the model takes.",
    )
    handle_impossible_answer: bool = Field(
        False, description='Let "no answer" (an empty one, from 0 to 0) compete with the others.'
    )


@dataclass(frozen=True, slots=True)
class _Windows:
    """What decoding needs of an item: which tokens of the context stand in which row."""

    context: str
    encoding: Encoding  # of the whole pair
    lead: int  # tokens before the context, the same in `encoding` and in each row
    class_place: int | None  # of the class token in each row; counted from the end if negative
    spans: tuple[tuple[int, int], ...]  # [begin, stop) of each row's context tokens


def make(
    tokenizer_path: Path, input_names: tuple[str, ...], max_length: int, options: Mapping[str, Any]
) -> QuestionAnswering:
    """The task of a bundle; BundleError where tokenizer and model do not fit.

    Options: `max_windows` (rows that one item may take).
    """
    tokenizer = load_tokenizer(tokenizer_path)
    require_fit(tokenizer, input_names, max_length)
    return QuestionAnswering(
        tokenizer,
        input_names,
        max_length,
        class_token=class_token_id(tokenizer, tokenizer_path),
        max_windows=int(options.get("max_windows", MOST_WINDOWS)),
    )


class QuestionAnswering:
    """`encode`: a question and a context to rows; `decode`: start and end logits to spans of the context."""

    name = NAME
    parameters: type[Parameters] = QuestionAnsweringParameters
    item_schema: dict[str, Any] = _ITEM_SCHEMA
    answer_schema: dict[str, Any] = _ANSWER_SCHEMA
    detail_schema: dict[str, Any] = _DETAIL_SCHEMA
    query: dict[str, str] = _QUERY
    example: Any = EXAMPLE

    def __init__(
        self,
        tokenizer: Tokenizer,
        input_names: tuple[str, ...],
        max_length: int,
        *,
        class_token: int | None,
        max_windows: int = MOST_WINDOWS,
    ) -> None:
        self._tokenizer = tokenizer
        self._input_names = input_names
        self._max_length = max_length
        self._class_token = class_token
        self._max_windows = max_windows

    def from_query(self, seq_0: str | None, seq_1: str | None) -> Any:
        """`seq_0` is the question, `seq_1` its context; an empty one is not an absent one."""
        if seq_0 is None and seq_1 is None:
            return self.example
        if seq_0 is None or seq_1 is None:
            given, absent = ("seq_0", "seq_1") if seq_1 is None else ("seq_1", "seq_0")
            raise InvalidInputError(
                f"{given} came without {absent}; send the question as seq_0 and its context as seq_1, "
                "or neither for the example"
            )
        return {"question": seq_0, "context": seq_1}

    def encode(self, item: Any, parameters: QuestionAnsweringParameters) -> Encoded:
        """One row where the pair fits the model, else one a window.

        InvalidInputError: the item's form, a blank text, a stride that leaves no step. TooLargeError: a
        question that leaves no room for the context, more windows than one item may take.
        """
        fields = require_object(item, ("question", "context"), "an item of question-answering")
        question, context = _text(fields, "question"), _text(fields, "context")
        length = self._window_length(parameters)
        self._refuse_what_no_windows_hold(question, context)

        encoding = encode_one(self._tokenizer, question, context)
        sequence_ids = encoding.sequence_ids
        for sequence, field in enumerate(("question", "context")):
            if sequence not in sequence_ids:
                raise InvalidInputError(f"{field} has only characters that the model's tokenizer drops")
        tokens = len(sequence_ids)
        lead = sequence_ids.index(1)
        end = tokens - sequence_ids[::-1].index(1)

        spans = self._spans(end - lead, length, lead + tokens - end, parameters)
        arrays = columns(encoding, self._input_names)
        if len(spans) == 1:
            rows: tuple[Row, ...] = (Row(tokens, arrays),)
        else:
            rows = tuple(_window(arrays, lead, lead + begin, lead + stop, end) for begin, stop in spans)
        windows = _Windows(context, encoding, lead, self._class_place(encoding, lead, end), spans)
        return Encoded(rows, windows, truncated=False, tokens=tokens)

    def decode(self, encoded: Encoded, outputs: Sequence[Outputs], parameters: QuestionAnsweringParameters) -> Any:
        """The best answer, or a list of the `top_k` best, with `no_answer_score` in each."""
        windows = encoded.context
        assert isinstance(windows, _Windows)
        count = parameters.top_k
        no_answer = math.inf
        best: dict[tuple[int, int], float] = {}  # (start, end) in characters -> score
        for output, span in zip(outputs, windows.spans, strict=True):
            found, nothing = _read_window(windows, span, output, parameters.max_answer_len, count)
            no_answer = min(no_answer, nothing)
            for characters, score in found.items():
                best[characters] = max(score, best.get(characters, 0.0))
        if parameters.handle_impossible_answer or not best:
            best[0, 0] = no_answer
        ranked = sorted(best.items(), key=lambda entry: (-entry[1], entry[0]))[:count]
        answers = [
            {
                "score": score,
                "start": start,
                "end": end,
                "answer": windows.context[start:end],
                "no_answer_score": no_answer,
            }
            for (start, end), score in ranked
        ]
        return answers[0] if count == 1 else answers

    def detail(self, answer: Any) -> Any:
        """The text of the best answer."""
        return (answer[0] if isinstance(answer, list) else answer)["answer"]

    def _window_length(self, parameters: QuestionAnsweringParameters) -> int:
        length = parameters.max_seq_len or self._max_length
        if length > self._max_length:
            raise InvalidInputError(
                f"parameters: max_seq_len={length} is more than the {self._max_length} tokens the model takes"
            )
        # Checked for every item, whether it needs windows or not: such a stride can suit none.
        if parameters.doc_stride >= length and "doc_stride" in parameters.model_fields_set:
            raise InvalidInputError(
                f"parameters: doc_stride={parameters.doc_stride} must be below a window's {length} tokens"
            )
        return length

    def _refuse_what_no_windows_hold(self, question: str, context: str) -> None:
        """Before a whole encoding of it is made."""
        most = self._max_windows * self._max_length
        for field, text in (("question", question), ("context", context)):
            if is_long(text) and any(tokens > most for _, tokens in pieces(self._tokenizer, text)):
                raise TooLargeError(
                    f"{field} has more than {most} tokens, and no more than {self._max_windows} windows of"
                    f" {self._max_length} are read of one item; send it in parts"
                )

    def _spans(
        self, size: int, length: int, fixed: int, parameters: QuestionAnsweringParameters
    ) -> tuple[tuple[int, int], ...]:
        """Windows [begin, stop) over `size` context tokens; `fixed` of a row's `length` are other tokens."""
        room = length - fixed
        if size <= room:
            return ((0, size),)
        if room < LEAST_ROOM:
            raise TooLargeError(
                f"question takes {fixed} of the {length} tokens of a window, special ones included, and at "
                f"least {LEAST_ROOM} must be left for the context; shorten the question"
            )
        stride = parameters.doc_stride
        if "doc_stride" not in parameters.model_fields_set:
            # A long question leaves little room; a step of one token would cost a window for every token.
            stride = min(stride, room // 2)
        elif stride >= room:
            raise InvalidInputError(
                f"parameters: doc_stride={stride} must be below the {room} context tokens that fit beside this question"
            )
        step = room - stride
        count = 1 + math.ceil((size - room) / step)
        if count > self._max_windows:
            raise TooLargeError(
                f"context has {size} tokens, which makes {count} windows, and one item may take "
                f"{self._max_windows}; send it in parts"
            )
        return tuple((begin, min(begin + room, size)) for begin in range(0, count * step, step))

    def _class_place(self, encoding: Encoding, lead: int, end: int) -> int | None:
        """Where each row has its class token: the first special token of that id, else the first special one.

        Most tokenizers begin with it, some end with it. A text that spells it out does not count.
        """
        ids, sequence_ids = encoding.ids, encoding.sequence_ids
        outside = chain(range(lead), range(end, len(ids)))
        specials = [place for place in outside if sequence_ids[place] is None]
        place = next((place for place in specials if ids[place] == self._class_token), None)
        if place is None and specials:
            place = specials[0]
        return place if place is None or place < lead else place - len(ids)


def _text(fields: Mapping[str, Any], field: str) -> str:
    text = require_text(fields[field], field)
    if not text or text.isspace():
        raise InvalidInputError(f"{field} is {'blank' if text else 'empty'}; question and context need text")
    return text


def _window(arrays: tuple[Array, ...], lead: int, begin: int, stop: int, end: int) -> Row:
    """The row of all tokens before `lead` and from `end` on, and of the context's from `begin` to `stop`."""
    inputs = tuple(np.concatenate((array[:lead], array[begin:stop], array[end:])) for array in arrays)
    return Row(lead + stop - begin + len(arrays[0]) - end, inputs)


def _read_window(
    windows: _Windows, span: tuple[int, int], output: Outputs, longest: int, count: int
) -> tuple[dict[tuple[int, int], float], float]:
    """The `count` best character spans of one row with their scores, and the score of its class token."""
    begin, stop = span
    place, lead, size = windows.class_place, windows.lead, stop - begin
    start, no_start = _log_softmax(output["start_logits"], lead, size, place)
    end, no_end = _log_softmax(output["end_logits"], lead, size, place)
    found: dict[tuple[int, int], float] = {}
    shift = lead + begin
    for score, head, tail in _spans_by_score(start, end, longest, count):
        characters = _characters(windows, shift + head, shift + tail)
        # A token can be blank, and two spans can differ by a blank only: then the next best takes the place.
        if characters is not None and characters not in found:
            found[characters] = math.exp(score)
            if len(found) == count:
                break
    return found, math.exp(no_start + no_end)


def _log_softmax(logits: Array, lead: int, size: int, class_place: int | None) -> tuple[Floats, float]:
    """Log probabilities of the context's `size` tokens and of the class token; all others are masked.

    Logarithms rank as products do, and cannot vanish where the class token takes all.
    """
    wide = logits.astype(np.float64)  # (tokens,)
    inside = wide[lead : lead + size]
    nothing = -math.inf if class_place is None else float(wide[class_place])
    highest = max(float(inside.max()), nothing)
    norm = highest + math.log(float(np.exp(inside - highest).sum()) + math.exp(nothing - highest))
    return inside - norm, nothing - norm


def _spans_by_score(start: Floats, end: Floats, longest: int, count: int) -> Iterator[tuple[float, int, int]]:
    """(score, head, tail) of the spans with head <= tail < head + longest, best first; `count` come fast."""
    size = len(start)
    width = min(longest, size)
    padded = np.full(size + width - 1, -np.inf)
    padded[:size] = end
    # A band, not the whole square, keeps long rows cheap: place head * width + k is a span of k + 1 tokens.
    band = (start[:, None] + sliding_window_view(padded, width)).ravel()  # (size * width,)
    done: set[int] = set()
    for some in (count, 8 * count, len(band)):
        for place in _highest(band, some):
            if place not in done and band[place] > -np.inf:
                done.add(place)
                yield float(band[place]), place // width, place // width + place % width


def _highest(values: Floats, count: int) -> list[int]:
    """Places of the `count` highest values, highest first."""
    if count == 1:
        return [int(values.argmax())]
    places = np.arange(len(values)) if count >= len(values) else np.argpartition(values, -count)[-count:]
    ranked: list[int] = places[np.argsort(-values[places], kind="stable")].tolist()
    return ranked


def _characters(windows: _Windows, head: int, tail: int) -> tuple[int, int] | None:
    """Characters [start, end) of a token span without the blanks around it; None where nothing is left."""
    first, last = windows.encoding.token_to_chars(head), windows.encoding.token_to_chars(tail)
    assert first is not None
    assert last is not None
    start = first[0]
    span = windows.context[start : last[1]]
    start += len(span) - len(span.lstrip())
    length = len(span.strip())
    return (start, start + length) if length else None

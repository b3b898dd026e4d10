"""Golden rows from a few own texts: for every compiled length one row that fills it, one that half does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from corelane.errors import ConfigError
from corelane.models import QUESTION_ANSWERING
from corelane.runtimes.base import InputSpec, Row

TEXTS = (
    "The lighthouse was built in 1874 by Marta Olsen, who had never seen the sea before she was twenty.",
    "Der Zug nach Köln fährt um 7:45 Uhr von Gleis 3 ab; naïve façade, señor, ₤20 und 日本語.",
    "Water boils at a lower temperature in the mountains, so beans take an hour longer up at the cabin.",
    "Each core has its own queue. When a queue is full, new work is refused, as waiting would help nobody.",
    "On Tuesdays the museum stays open until nine, and after six o'clock children enter free with one adult.",
    "She counted forty-two steps, turned left at the red door, and found the letter he had hidden in 1951.",
)
QUESTIONS = (
    "Who built the lighthouse?",
    "When does the museum close on Tuesdays?",
    "How many steps did she count?",
)

# Natural rows, not cut to any length.
_SHORT_ROWS = 3


def golden_rows(tokenizer: Any, task: str, inputs: Sequence[InputSpec], sequences: Sequence[int]) -> tuple[Row, ...]:
    """Rows of every kind of length, encoded as the task encodes, the shortest first."""
    lengths = [
        length for shorter, full in itertools.pairwise((0, *sequences)) for length in ((shorter + full) // 2, full)
    ]
    least = tokenizer.num_special_tokens_to_add(task == QUESTION_ANSWERING) + 2
    rows = [
        row_of(_filled(tokenizer, task, length, place), inputs)
        for place, length in enumerate(lengths)
        if length >= least
    ]
    for place in range(_SHORT_ROWS):
        encoding = tokenizer.encode(*_pair(task, place, 1))
        if least <= len(encoding) <= max(sequences):
            rows.append(row_of(encoding, inputs))
    return tuple(sorted(rows, key=lambda row: row.length))


def _pair(task: str, place: int, texts: int) -> tuple[str, ...]:
    """The item number `place`, of so many texts in a row: (question, context) or (text,)."""
    turned = TEXTS[place % len(TEXTS) :] + TEXTS[: place % len(TEXTS)]
    text = " ".join(itertools.islice(itertools.cycle(turned), texts))
    return (QUESTIONS[place % len(QUESTIONS)], text) if task == QUESTION_ANSWERING else (text,)


def _filled(tokenizer: Any, task: str, length: int, place: int) -> Any:
    """An encoding of exactly `length` tokens, cut out of a text that is long enough."""
    # A copy: truncation is never switched on in a shared tokenizer.
    cutter = type(tokenizer).from_str(tokenizer.to_str())
    cutter.enable_truncation(length, strategy="longest_first")
    texts = 1
    while texts <= 2 * length:  # a text of one token each would do
        encoding = cutter.encode(*_pair(task, place, texts))
        if len(encoding) == length:
            return encoding
        texts *= 2
    raise ConfigError(
        f"the model's tokenizer makes only {len(encoding)} tokens of {texts // 2} sentences, and a row of"
        f" {length}"
        " is needed to check the compiled model; is it the right tokenizer for this model?"
    )


def row_of(encoding: Any, inputs: Sequence[InputSpec]) -> Row:
    columns = {
        "input_ids": encoding.ids,
        "attention_mask": encoding.attention_mask,
        "token_type_ids": encoding.type_ids,
    }
    return Row(len(encoding.ids), tuple(np.array(columns[spec.name], dtype=spec.dtype) for spec in inputs))

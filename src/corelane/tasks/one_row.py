"""What the tasks share of which an item is one text, or a text and its pair, and becomes one row.

A text that is too long is cut as the tokenizers library cuts it, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Encoding

from corelane.errors import InvalidInputError, TooLargeError
from corelane.runtimes.base import Row
from corelane.tasks.base import Encoded, Parameters
from corelane.tasks.text import (
    columns,
    describe,
    is_long,
    load_tokenizer,
    pieces,
    require_fit,
    require_object,
    require_text,
)

_ITEM_SCHEMA = {
    "oneOf": [
        {"type": "string", "minLength": 1, "description": "The text, not empty."},
        {
            "type": "object",
            "required": ["text"],
            "additionalProperties": False,
            "properties": {
                "text": {"type": "string", "minLength": 1},
                "text_pair": {
                    "type": "string",
                    "minLength": 1,
                    "description": "A second text, encoded with the first.",
                },
            },
        },
    ]
}
# Tokens that far before a cut are what they are without it: it changes the word that it falls into.
MARGIN = 64

_QUERY = {"seq_0": "The text.", "seq_1": "A second text, encoded with the first."}


class OneRowParameters(Parameters):
    """What happens to a text that is too long."""

    truncate: bool = Field(True, description="Cut a text that is longer than the model takes; false refuses it.")


class OneRowTask:
    """`from_query` and `encode` of a task; `decode` and the rest are its own."""

    name: str
    item_schema: dict[str, Any] = _ITEM_SCHEMA
    query: dict[str, str] = _QUERY
    example: Any = "The little engine climbs the steep mountain."

    def __init__(self, tokenizer_path: Path, input_names: tuple[str, ...], max_length: int) -> None:
        """BundleError where tokenizer and model do not fit."""
        self._tokenizer = load_tokenizer(tokenizer_path)
        require_fit(self._tokenizer, input_names, max_length)
        self._input_names = input_names
        self._max_length = max_length

    def from_query(self, seq_0: str | None, seq_1: str | None) -> Any:
        """`seq_0` is the text, `seq_1` its pair."""
        if seq_0 is None:
            if seq_1 is None:
                return self.example
            raise InvalidInputError(
                "seq_1 came without seq_0; send the text as seq_0, and seq_1 only for a second text"
            )
        return seq_0 if seq_1 is None else {"text": seq_0, "text_pair": seq_1}

    def encode(self, item: Any, parameters: OneRowParameters) -> Encoded:
        """One row. InvalidInputError: the item's form, an empty text. TooLargeError: too long, not to be cut.

        A text of nothing but blanks or dropped characters is encoded as the special tokens alone.
        """
        text, pair = _texts(item, self.name)
        text, cut_off = self._beginning(text)
        if pair is not None:
            pair, more = self._beginning(pair)
            cut_off += more
        # Without offsets, which cost as much again, and as a batch of one, to free the interpreter's lock.
        encoding: Encoding = self._tokenizer.encode_batch_fast([text if pair is None else (text, pair)])[0]
        tokens = len(encoding) + cut_off
        if not tokens:
            raise InvalidInputError("text has only characters that the model's tokenizer drops")
        if tokens > self._max_length and not parameters.truncate:
            raise TooLargeError(
                f"text has {tokens} tokens and the model takes {self._max_length}; shorten it or allow truncate"
            )
        arrays = columns(encoding, self._input_names)
        if tokens <= self._max_length:
            return Encoded((Row(tokens, arrays),), None, truncated=False, tokens=tokens)
        keep = _keep(encoding.sequence_ids, self._max_length)
        row = Row(len(keep), tuple(array[keep] for array in arrays))
        return Encoded((row,), None, truncated=True, tokens=tokens)

    def _beginning(self, text: str) -> tuple[str, int]:
        """As much of a long text as what stays of it can depend on, and about how many tokens the rest has."""
        if not is_long(text):
            return text, 0
        end, kept, tokens = len(text), 0, 0
        for characters, tokens in pieces(self._tokenizer, text):
            if not kept and tokens >= self._max_length + MARGIN:
                end, kept = characters, tokens
        return text[:end], tokens - (kept or tokens)


def _texts(item: object, task: str) -> tuple[str, str | None]:
    if isinstance(item, str):
        fields: dict[str, Any] = {"text": item}
    elif isinstance(item, dict):
        fields = require_object(item, ("text",), f"an item of {task}", optional=("text_pair",))
    else:
        raise InvalidInputError(f"text must be a string, found {describe(item)}")
    texts = [require_text(value, field) for field, value in fields.items()]
    for field, text in zip(fields, texts, strict=True):
        if not text:
            raise InvalidInputError(f"{field} is empty; send at least one character")
    return fields["text"], fields.get("text_pair")


def _keep(sequence_ids: Sequence[int | None], length: int) -> NDArray[np.intp]:
    """Places of the tokens that stay: every special one, and the beginning of each text.

    Of a pair the longer text is cut first, as the `longest_first` truncation of the tokenizers library does.
    """
    sequences = np.array([-1 if sequence is None else sequence for sequence in sequence_ids])
    special = sequences == -1
    room = length - int(special.sum())
    stay = special
    for sequence, kept in enumerate(_share(int((sequences == 0).sum()), int((sequences == 1).sum()), room)):
        mine = sequences == sequence
        stay = stay | (mine & (mine.cumsum() <= kept))
    return np.flatnonzero(stay)


def _share(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts stay in `room`, which is less than both together."""
    short, long = sorted((first, second))
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    return (short, long) if first <= second else (long, short)

"""Feature extraction: a text as one vector (where the model pools) or as one vector a token.

Pooling and normalisation are part of the compiled model; here the text is encoded, and cut where it is too
long, as sentence-transformers does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Encoding, Tokenizer

from corelane.errors import InvalidInputError, TooLargeError
from corelane.runtimes.base import Outputs, Row
from corelane.tasks.base import Encoded, Parameters
from corelane.tasks.text import (
    columns,
    describe,
    load_tokenizer,
    require_fit,
    require_object,
    require_text,
)

NAME = "feature-extraction"
EXAMPLE = "The little engine climbs the steep mountain."

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
_QUERY = {"seq_0": "The text.", "seq_1": "A second text, encoded with the first."}
_VECTOR_SCHEMA = {"type": "array", "items": {"type": "number"}}


class FeatureExtractionParameters(Parameters):
    """What happens to a text that is too long."""

    truncate: bool = Field(True, description="Cut a text that is longer than the model takes; false refuses it.")


def make(
    tokenizer_path: Path, input_names: tuple[str, ...], max_length: int, options: Mapping[str, Any]
) -> FeatureExtraction:
    """The task of a bundle; BundleError where tokenizer and model do not fit.

    Options: `pooled` (the model gives one vector a text), `max_seq_length` (where the model's own files
    say to cut, if that is below the longest compiled sequence).
    """
    tokenizer = load_tokenizer(tokenizer_path)
    require_fit(tokenizer, input_names, max_length)
    own = options.get("max_seq_length")
    return FeatureExtraction(
        tokenizer,
        input_names,
        max_length if own is None else min(max_length, int(own)),
        pooled=bool(options.get("pooled", False)),
    )


class FeatureExtraction:
    """`encode`: a text to one row; `decode`: the row's only output as float32."""

    name = NAME
    parameters: type[Parameters] = FeatureExtractionParameters
    item_schema: dict[str, Any] = _ITEM_SCHEMA
    query: dict[str, str] = _QUERY
    example: Any = EXAMPLE

    def __init__(self, tokenizer: Tokenizer, input_names: tuple[str, ...], max_length: int, *, pooled: bool) -> None:
        self._tokenizer = tokenizer
        self._input_names = input_names
        self._max_length = max_length
        self.answer_schema: dict[str, Any] = (
            {**_VECTOR_SCHEMA, "description": "The text's vector."}
            if pooled
            else {
                "type": "array",
                "items": _VECTOR_SCHEMA,
                "description": "One vector a token, special ones included.",
            }
        )
        self.detail_schema = self.answer_schema

    def from_query(self, seq_0: str | None, seq_1: str | None) -> Any:
        """`seq_0` is the text, `seq_1` its pair."""
        if seq_0 is None:
            if seq_1 is None:
                return self.example
            raise InvalidInputError(
                "seq_1 came without seq_0; send the text as seq_0, and seq_1 only for a second text"
            )
        return seq_0 if seq_1 is None else {"text": seq_0, "text_pair": seq_1}

    def encode(self, item: Any, parameters: FeatureExtractionParameters) -> Encoded:
        """One row. InvalidInputError: the item's form, an empty text. TooLargeError: too long, not to be cut.

        A text of nothing but blanks or dropped characters is encoded as the special tokens alone.
        """
        text, pair = _texts(item)
        # Without offsets, which cost as much again, and as a batch of one, to free the interpreter's lock.
        encoding: Encoding = self._tokenizer.encode_batch_fast([text if pair is None else (text, pair)])[0]
        tokens = len(encoding)
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

    def decode(self, encoded: Encoded, outputs: Sequence[Outputs], parameters: FeatureExtractionParameters) -> Any:
        """(hidden,) float32 where the model pools, else (tokens, hidden)."""
        (output,) = outputs
        values = next(iter(output.values()))  # the first output is the hidden states in all of them
        return np.ascontiguousarray(values, dtype=np.float32)

    def detail(self, answer: Any) -> Any:
        """The vector or vectors themselves."""
        return answer


def _texts(item: object) -> tuple[str, str | None]:
    if isinstance(item, str):
        fields: dict[str, Any] = {"text": item}
    elif isinstance(item, dict):
        fields = require_object(item, ("text",), "an item of feature-extraction", optional=("text_pair",))
    else:
        raise InvalidInputError(f"text must be a string, found {describe(item)}")
    texts = [require_text(value, field) for field, value in fields.items()]
    for field, text in zip(fields, texts, strict=True):
        if not text:
            raise InvalidInputError(f"{field} is empty; send at least one character")
    return fields["text"], fields.get("text_pair")


def _keep(sequence_ids: list[int | None], length: int) -> NDArray[np.intp]:
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

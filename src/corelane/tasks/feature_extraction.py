"""Feature extraction: a text as one vector (where the model pools) or as one vector a token.

Pooling and normalisation are part of the compiled model; the text is encoded, and cut where it is too long, as
sentence-transformers does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corelane.runtimes.base import Outputs
from corelane.tasks.base import Encoded, Parameters
from corelane.tasks.one_row import OneRowParameters, OneRowTask

NAME = "feature-extraction"

_VECTOR_SCHEMA = {"type": "array", "items": {"type": "number"}}


class FeatureExtractionParameters(OneRowParameters):
    """What happens to a text that is too long."""


def make(
    tokenizer_path: Path, input_names: tuple[str, ...], max_length: int, options: Mapping[str, Any]
) -> FeatureExtraction:
    """The task of a bundle; BundleError where tokenizer and model do not fit.

    Options: `pooled` (the model gives one vector a text), `max_seq_length` (where the model's own files
    say to cut, if that is below the longest compiled sequence).
    """
    own = options.get("max_seq_length")
    return FeatureExtraction(
        tokenizer_path,
        input_names,
        max_length if own is None else min(max_length, int(own)),
        pooled=bool(options.get("pooled", False)),
    )


class FeatureExtraction(OneRowTask):
    """`encode`: a text to one row; `decode`: the row's only output as float32."""

    name = NAME
    parameters: type[Parameters] = FeatureExtractionParameters

    def __init__(self, tokenizer_path: Path, input_names: tuple[str, ...], max_length: int, *, pooled: bool) -> None:
        super().__init__(tokenizer_path, input_names, max_length)
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

    def decode(self, encoded: Encoded, outputs: Sequence[Outputs], parameters: FeatureExtractionParameters) -> Any:
        """(hidden,) float32 where the model pools, else (tokens, hidden)."""
        (output,) = outputs
        values = next(iter(output.values()))  # the first output is the hidden states in all of them
        return np.ascontiguousarray(values, dtype=np.float32)

    def detail(self, answer: Any) -> Any:
        """The vector or vectors themselves."""
        return answer

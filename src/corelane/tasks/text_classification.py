"""Text classification: the labels of a text with their scores, best first, always as a list.

Scores are what the model's own configuration says: classes that exclude each other share 1, classes that do not
each have a probability of their own, and a regression is a plain number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from corelane.errors import BundleError
from corelane.runtimes.base import Outputs
from corelane.tasks.base import Encoded, Parameters
from corelane.tasks.one_row import OneRowParameters, OneRowTask

NAME = "text-classification"

SOFTMAX, SIGMOID, NONE = "softmax", "sigmoid", "none"

_ANSWER_SCHEMA = {
    "type": "array",
    "description": "The `top_k` best labels, best first.",
    "items": {
        "type": "object",
        "required": ["label", "score"],
        "properties": {"label": {"type": "string"}, "score": {"type": "number"}},
    },
}


class TextClassificationParameters(OneRowParameters):
    """How many labels, and what their scores are."""

    top_k: int | None = Field(1, ge=1, description="How many labels, best first; null gives all.")
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = Field(
        None, description="What makes scores of the model's numbers; left out, what the model was trained for."
    )


def make(
    tokenizer_path: Path, input_names: tuple[str, ...], max_length: int, options: Mapping[str, Any]
) -> TextClassification:
    """The task of a bundle; BundleError where tokenizer and model do not fit, or it names no labels.

    Options: `labels` (number as text -> name), `problem_type` (of the model's configuration, None where unset).
    """
    named = options.get("labels") or {}
    labels = tuple(str(named[str(number)]) for number in range(len(named)) if str(number) in named)
    if not labels or len(labels) != len(named):
        raise BundleError(f"the bundle's labels are {named!r:.80}, expected a name for each of 0, 1, ...; trace again")
    return TextClassification(
        tokenizer_path, input_names, max_length, labels, default_function(options.get("problem_type"), len(labels))
    )


def default_function(problem_type: str | None, labels: int) -> str:
    """What makes scores of logits where the caller does not say it; the rule of transformers' pipeline."""
    if problem_type == "regression":
        return NONE
    # The softmax of one number is always 1.
    return SIGMOID if problem_type == "multi_label_classification" or labels == 1 else SOFTMAX


class TextClassification(OneRowTask):
    """`encode`: a text to one row; `decode`: its logits to labels with scores."""

    name = NAME
    parameters: type[Parameters] = TextClassificationParameters
    answer_schema: dict[str, Any] = _ANSWER_SCHEMA
    detail_schema: dict[str, Any] = _ANSWER_SCHEMA

    def __init__(
        self,
        tokenizer_path: Path,
        input_names: tuple[str, ...],
        max_length: int,
        labels: tuple[str, ...],
        function: str,
    ) -> None:
        super().__init__(tokenizer_path, input_names, max_length)
        self._labels = labels
        self._function = function

    def decode(self, encoded: Encoded, outputs: Sequence[Outputs], parameters: TextClassificationParameters) -> Any:
        """[{"label", "score"}], best first; of equal ones the label with the lower number first."""
        (output,) = outputs
        logits: list[float] = output["logits"].tolist()
        scores = _FUNCTIONS[parameters.function_to_apply or self._function](logits)
        # By logits: no function changes their order, and scores near 0 and 1 cannot always be told apart.
        ranked = sorted(range(len(logits)), key=lambda number: -logits[number])[: parameters.top_k]
        return [{"label": self._labels[number], "score": scores[number]} for number in ranked]

    def detail(self, answer: Any) -> Any:
        """The answer itself: a list of one."""
        return answer


# Plain numbers, not arrays: labels are few, and an array costs more than they do.
def _softmax(logits: list[float]) -> list[float]:
    highest = max(logits)
    weights = [math.exp(value - highest) for value in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def _sigmoid(logits: list[float]) -> list[float]:
    # exp of what is below 0 only: of a large number it overflows.
    return [1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value)) for value in logits]


_FUNCTIONS: dict[str, Callable[[list[float]], list[float]]] = {
    SOFTMAX: _softmax,
    SIGMOID: _sigmoid,
    NONE: lambda logits: logits,
}

"""The contract between the server and a task, and the reader of `parameters` that all tasks share.

A task turns one item (a JSON value) into rows for the engine, and the rows' outputs into one answer. It is
called from many threads at a time and keeps nothing between calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from corelane.errors import InvalidInputError
from corelane.runtimes.base import Outputs, Row
from corelane.tasks.text import describe, quote


class Parameters(BaseModel):
    """What the `parameters` of all tasks have in common: nothing unknown, converted, or changed later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True)
class Encoded:
    """One item, ready for the engine.

    `context` is the task's own and goes back into its `decode`. `tokens` counts the item's tokens, special
    ones included, before anything was cut; `truncated` says that something was.
    """

    rows: tuple[Row, ...]
    context: object
    truncated: bool
    tokens: int


class Task(Protocol):
    """One task over one tokenizer. Safe to call from many threads at once."""

    name: str
    parameters: type[Parameters]
    item_schema: dict[str, Any]  # of one item; the three schemas are JSON Schema
    answer_schema: dict[str, Any]  # of one item's answer
    detail_schema: dict[str, Any]  # of what `detail` makes of it
    query: dict[str, str]  # the query arguments of a static endpoint, with what they mean
    example: Any

    def from_query(self, seq_0: str | None, seq_1: str | None) -> Any:
        """The item that a static endpoint's two query arguments mean; the example where both are absent."""

    def encode(self, item: Any, parameters: Any) -> Encoded:
        """Rows of an item; InvalidInputError or TooLargeError where there can be none."""

    def decode(self, encoded: Encoded, outputs: Sequence[Outputs], parameters: Any) -> Any:
        """The answer; `outputs[i]` belongs to `encoded.rows[i]`, is cut to its true length and is finite."""

    def detail(self, answer: Any) -> Any:
        """What stands under "detail" in the answer of a static endpoint's GET."""


class Factory(Protocol):
    """Makes a task of a bundle: its tokenizer, its model's inputs in order, longest row, task options."""

    def __call__(
        self, tokenizer_path: Path, input_names: tuple[str, ...], max_length: int, options: Mapping[str, Any]
    ) -> Task: ...


def parse_parameters(task: Task, value: object) -> Parameters:
    """The `parameters` of a request as the task's model; InvalidInputError with one sentence."""
    model = task.parameters
    if value is None:
        return model()
    if not isinstance(value, dict):
        raise InvalidInputError(f"parameters must be an object, found {describe(value)}")
    for name in value:
        if name not in model.model_fields:  # before pydantic, which cannot carry every name that JSON can
            known = ", ".join(sorted(model.model_fields))
            raise InvalidInputError(f"parameters: {quote(name)} is not known to {task.name}; known are {known}")
    try:
        return model.model_validate(value)
    except ValidationError as err:
        name = str(err.errors(include_url=False, include_context=False, include_input=False)[0]["loc"][0])
        expected = _expected(model.model_json_schema()["properties"][name])
        raise InvalidInputError(f"parameters: {name} must be {expected}, found {describe(value[name])}") from None


_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "null": "null",
}


def _expected(schema: Mapping[str, Any]) -> str:
    """A field's JSON schema in words: "a whole number from 1 to 100"."""
    if "anyOf" in schema:
        return " or ".join(_expected(branch) for branch in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(choice) for choice in schema["enum"])
    words = _KINDS[schema["type"]]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{words} from {low} to {high}"
    if low is not None:
        return f"{words} of at least {low}"
    return words

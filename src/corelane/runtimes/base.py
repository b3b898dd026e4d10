"""The contract between the engine and a compiled model: shapes, rows in, arrays out.

A runtime is one compiled model on one core, with fixed shapes (batch, sequence). Twins implement it (`cpu`,
`simulated`, and later the Neuron stacks); the engine and the tracing know only this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Outputs = dict[str, Array]  # by output name


@dataclass(frozen=True, order=True, slots=True)
class Shape:
    """One compiled shape: `batch` rows of `sequence` tokens."""

    batch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.sequence}"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of the compiled model: (batch, sequence), filled up with `pad` past a row's end."""

    name: str
    dtype: str
    pad: int


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One output: (batch, sequence, ...) where `per_token`, else (batch, ...)."""

    name: str
    per_token: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch: 1-D arrays of `length` tokens each, in the order of the model's inputs."""

    length: int
    inputs: tuple[Array, ...]


class Runtime(Protocol):
    """A compiled model, loaded on its core. At most `in_flight` callers at a time."""

    in_flight: int
    shapes: tuple[Shape, ...]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]

    def infer(self, inputs: Mapping[str, Array]) -> Outputs:
        """Run one batch of exactly one of `shapes`; every output has the batch as its first dimension."""

    def close(self) -> None:
        """Free the core. Idempotent."""


def pad(rows: Sequence[Row], shape: Shape, specs: Sequence[InputSpec]) -> dict[str, Array]:
    """Lay rows into arrays of (shape.batch, shape.sequence); empty places repeat the first row.

    Repeating a real row, rather than zeros, keeps every place of the batch a valid input: an all-padding row would
    make attention divide by zero in some models.
    """
    if not 1 <= len(rows) <= shape.batch:
        raise ValueError(f"{len(rows)} rows for a batch of {shape.batch}: this is a bug in the caller")
    arrays: dict[str, Array] = {}
    for position, spec in enumerate(specs):
        array = np.full((shape.batch, shape.sequence), spec.pad, dtype=spec.dtype)
        for place, row in enumerate(rows):
            array[place, : row.length] = row.inputs[position]
        array[len(rows) :] = array[0]
        arrays[spec.name] = array
    return arrays


def cut(outputs: Mapping[str, Array], place: int, length: int, specs: Sequence[OutputSpec]) -> Outputs:
    """The outputs of one row, cut to its true length where an output is per token."""
    return {
        spec.name: outputs[spec.name][place, :length] if spec.per_token else outputs[spec.name][place] for spec in specs
    }

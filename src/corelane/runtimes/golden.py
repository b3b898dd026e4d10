"""Golden rows: inputs with the uncompiled model's answers. Replayed at start, and one by one while serving.

In the file, row 7 is `0007.in.<input>` and `0007.out.<output>`, without padding. The one bound of parity
stands here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corelane.errors import BundleError
from corelane.runtimes.base import Array, InputSpec, Outputs, OutputSpec, Row, Runtime, Shape, cut, pad

# The largest difference allowed between the compiled model and the uncompiled one, as `difference` counts it.
#
# float32: sums run in another order. Measured with the demo models, one core with AVX-512: 1.1e-6 at most; in bfloat16
# 3e-3 to 8e-3, without the mask 0.6 and more.
TOLERANCE_FLOAT32 = 1e-4
# int8: unit vectors within it have a cosine of at least 0.995 with the right ones. Measured with demo-embed: 0.046 at
# most (200 texts, the golden rows); with demo-qa 0.023, and 199 of 200 held-out answers are those of float32.
TOLERANCE_INT8 = 0.1
TOLERANCES = {"float32": TOLERANCE_FLOAT32, "int8": TOLERANCE_INT8}


def difference(expected: Mapping[str, Array], found: Mapping[str, Array]) -> float:
    """The largest error of any vector in any output: the length of the difference, relative to the right vector's
    length where that is above 1. A vector is what stands along an output's last axis.

    For unit vectors it is sqrt(2 - 2 * cosine). Infinite when anything is not finite or has another shape.
    """
    worst = 0.0
    for name, right in expected.items():
        given = found[name]
        if given.shape != right.shape or not np.isfinite(given).all() or not np.isfinite(right).all():
            return float("inf")
        if right.size:
            error = np.linalg.norm(np.subtract(given, right), axis=-1) / np.maximum(1.0, np.linalg.norm(right, axis=-1))
            worst = max(worst, float(error.max()))
    return worst


@dataclass(frozen=True)
class GoldenRow:
    """One row and its right answer (outputs cut to the row's length where they are per token)."""

    row: Row
    expected: Outputs
    tolerance: float

    def complaint(self, found: Mapping[str, Array]) -> str | None:
        """What is wrong with an answer to this row; None when it is right."""
        error = difference(self.expected, found)
        if error <= self.tolerance:
            return None
        return (
            f"a golden row of {self.row.length} tokens is answered with an error of {error:.2g}, at most"
            f" {self.tolerance:.2g} is allowed"
        )


@dataclass(frozen=True)
class Golden:
    """All golden rows, the shortest first."""

    rows: tuple[GoldenRow, ...]

    @classmethod
    def load(cls, path: Path, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec], tolerance: float) -> Golden:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            arrays = load_file(path)
            places = sorted({name.partition(".")[0] for name in arrays})
            rows = tuple(
                GoldenRow(
                    Row(
                        len(arrays[f"{place}.in.{inputs[0].name}"]),
                        tuple(arrays[f"{place}.in.{spec.name}"] for spec in inputs),
                    ),
                    {spec.name: arrays[f"{place}.out.{spec.name}"] for spec in outputs},
                    tolerance,
                )
                for place in places
            )
        except (OSError, SafetensorError, KeyError) as error:
            raise BundleError(
                f"{path} cannot be read as golden rows ({error}); trace the model again with `--retrace`"
            ) from error
        if not all(row.row.length and all(len(array) == row.row.length for array in row.row.inputs) for row in rows):
            raise BundleError(
                f"{path} has a golden row without a length of its own; trace the model again with `--retrace`"
            )
        if not rows:
            raise BundleError(f"{path} holds no golden row; trace the model again with `--retrace`")
        return cls(tuple(sorted(rows, key=lambda golden: golden.row.length)))

    def save(self, path: Path, inputs: Sequence[InputSpec]) -> None:
        from safetensors.numpy import save_file

        arrays = {}
        for place, golden in enumerate(self.rows):
            for spec, array in zip(inputs, golden.row.inputs, strict=True):
                arrays[f"{place:04d}.in.{spec.name}"] = np.ascontiguousarray(array)
            for name, array in golden.expected.items():
                arrays[f"{place:04d}.out.{name}"] = np.ascontiguousarray(array)
        save_file(arrays, path)


@dataclass(frozen=True)
class Checked:
    """One shape's replay: how many rows, their largest error, and the seconds of its fastest batch."""

    rows: int
    error: float
    seconds: float


@dataclass(frozen=True)
class Parity:
    shapes: dict[Shape, Checked]

    @property
    def error(self) -> float:
        return max(checked.error for checked in self.shapes.values())

    @property
    def costs(self) -> dict[Shape, float]:
        """Seconds per batch by shape: what the engine begins with."""
        return {shape: checked.seconds for shape, checked in self.shapes.items()}


def replay(
    runtime: Runtime,
    golden: Golden,
    *,
    thorough: bool = False,
    progress: Callable[[Shape, Checked], None] | None = None,
) -> Parity:
    """Run every shape once and compare; BundleError with the numbers when an answer is wrong. This is the
    warm-up too.

    Each shape gets one batch, of the longest rows that fit it; in the smallest batch size that is the row
    which fills the shape. `thorough` (tracing) runs every row that fits through every shape.
    """
    checked = {}
    # The largest first: memory then grows once, not shape by shape (304 MiB instead of 359 for demo-qa).
    for shape in sorted(runtime.shapes, key=lambda shape: (-shape.batch * shape.sequence, shape)):
        fitting = [row for row in reversed(golden.rows) if row.row.length <= shape.sequence]
        if not fitting:
            raise BundleError(f"No golden row fits the shape {shape}; trace the model again with `--retrace`")
        batches = [fitting[at : at + shape.batch] for at in range(0, len(fitting), shape.batch)]
        checked[shape] = _run(runtime, shape, batches if thorough else batches[:1])
        if progress is not None:
            progress(shape, checked[shape])
    return Parity(dict(sorted(checked.items())))


def _run(runtime: Runtime, shape: Shape, batches: Sequence[Sequence[GoldenRow]]) -> Checked:
    errors, seconds = [], []
    for batch in batches:
        arrays = pad([golden.row for golden in batch], shape, runtime.inputs)
        begun = time.perf_counter()
        outputs = runtime.infer(arrays)
        seconds.append(time.perf_counter() - begun)
        for name, array in outputs.items():
            if len(array) != shape.batch:  # OpenVINO answers nothing, in silence, where it misjudges the CPU
                raise BundleError(
                    f"the compiled model answers {len(array)} rows as {name} in shape {shape}; this machine's runtime"
                    " cannot compute it. Trace with precision=float32, or use another release of the runtime"
                )
        for place, golden in enumerate(batch):
            found = cut(outputs, place, golden.row.length, runtime.outputs)
            if complaint := golden.complaint(found):
                raise BundleError(
                    f"the compiled model answers wrongly in shape {shape}: {complaint}. Trace it again with"
                    " `--retrace`; if that does not help, this machine or its runtime computes differently"
                )
            errors.append(difference(golden.expected, found))
    return Checked(len(errors), max(errors), min(seconds))

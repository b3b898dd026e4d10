"""Golden rows: what counts as a wrong answer, and that a replay sees every shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from corelane.errors import BundleError
from corelane.runtimes.base import Array, InputSpec, Outputs, OutputSpec, Row, Shape
from corelane.runtimes.golden import Golden, GoldenRow, difference, replay

INPUTS = (InputSpec("input_ids", "int64", 0), InputSpec("attention_mask", "int64", 0))
OUTPUTS = (OutputSpec("twice", per_token=True), OutputSpec("total", per_token=False))


class Double:
    """Answers every token doubled, and the sum of each row; `spoil` may change an answer."""

    shapes = (Shape(1, 4), Shape(1, 8), Shape(3, 8))
    inputs = INPUTS
    outputs = OUTPUTS

    def __init__(self) -> None:
        self.batches: list[tuple[int, ...]] = []

    def infer(self, inputs: Mapping[str, Array]) -> Outputs:
        ids = (inputs["input_ids"] * inputs["attention_mask"]).astype(np.float32)
        self.batches.append(ids.shape)
        return self.spoil({"twice": ids * 2, "total": ids.sum(1, keepdims=True)})

    def spoil(self, outputs: Outputs) -> Outputs:
        return outputs

    def close(self) -> None:
        pass


def golden(*lengths: int) -> Golden:
    rows = []
    for length in lengths:
        ids = np.arange(1, length + 1)
        right = {"twice": ids.astype(np.float32) * 2, "total": np.array([ids.sum()], np.float32)}
        rows.append(GoldenRow(Row(length, (ids, np.ones(length, np.int64))), right, 1e-4))
    return Golden(tuple(rows))


def test_every_shape_is_run_once_the_largest_first() -> None:
    """Warm and checked, and memory grows once."""
    runtime = Double()
    parity = replay(runtime, golden(2, 4, 6, 8))
    assert runtime.batches == [(3, 8), (1, 8), (1, 4)]
    assert {str(shape): checked.rows for shape, checked in parity.shapes.items()} == {
        "1x4": 1,
        "1x8": 1,
        "3x8": 3,
    }
    assert parity.error == 0
    assert all(seconds > 0 for seconds in parity.costs.values())


def test_a_thorough_replay_runs_every_row_that_fits() -> None:
    """Tracing also sees short rows in long shapes, where a lost mask shows."""
    parity = replay(Double(), golden(2, 4, 6, 8), thorough=True)
    assert {str(shape): checked.rows for shape, checked in parity.shapes.items()} == {
        "1x4": 2,
        "1x8": 4,
        "3x8": 4,
    }


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_one_wrong_number_is_refused_with_the_shape(value: float) -> None:
    """A number that is not finite counts as wrong, which a plain comparison would let through."""

    class Wrong(Double):
        def spoil(self, outputs: Outputs) -> Outputs:
            if outputs["twice"].shape == (1, 8):
                outputs["twice"][0, 3] = value
            return outputs

    with pytest.raises(BundleError, match=r"shape 1x8.*8 tokens.*at most 0.0001"):
        replay(Wrong(), golden(2, 8))


def test_a_runtime_that_answers_nothing_is_refused_in_a_sentence() -> None:
    """Seen with 8-bit weights on a CPU that said more than it can; no exception told."""

    class Silent(Double):
        def spoil(self, outputs: Outputs) -> Outputs:
            return {name: array[:0] for name, array in outputs.items()}

    with pytest.raises(BundleError, match=r"answers 0 rows as twice in shape 3x8.*precision=float32"):
        replay(Silent(), golden(2, 8))


def test_what_stands_in_the_padding_does_not_matter() -> None:
    """Nobody reads it."""

    class Noisy(Double):
        def spoil(self, outputs: Outputs) -> Outputs:
            outputs["twice"][outputs["twice"] == 0] = np.nan
            return outputs

    replay(Noisy(), golden(2, 3), thorough=True)


def test_a_shape_that_no_row_fits_is_refused() -> None:
    """It would be served unchecked."""
    with pytest.raises(BundleError, match="shape 1x4"):
        replay(Double(), golden(8))


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([0.5, 0.25], [0.5, 0.5], 0.25),
        ([30.0, 42.0], [30.0, 40.0], 0.04),
        ([[0.6, 0.8], [30.0, 40.5]], [[0.6, 0.8], [30.0, 40.0]], 0.01),
        ([0.8, 0.6], [0.6, 0.8], (2 - 2 * 0.96) ** 0.5),
        ([1.0], [1.0, 1.0], np.inf),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([], [], 0.0),
    ],
    ids=["equal", "absolute-below-1", "relative-above-1", "worst-token", "cosine", "other-shape", "nan", "empty"],
)
def test_the_difference_is_a_length_and_relative_only_to_long_vectors(
    found: list[float], expected: list[float], error: float
) -> None:
    """Logits of 10 have float32 errors ten times those of a unit vector."""
    assert difference({"x": np.array(expected)}, {"x": np.array(found)}) == pytest.approx(error)


def test_golden_rows_are_read_back_as_they_were_saved(tmp_path: Path) -> None:
    """With the types that the runtime takes."""
    saved = golden(2, 5, 8)
    saved.save(tmp_path / "golden.safetensors", INPUTS)
    loaded = Golden.load(tmp_path / "golden.safetensors", INPUTS, OUTPUTS, 1e-4)
    assert [row.row.length for row in loaded.rows] == [2, 5, 8]
    for before, after in zip(saved.rows, loaded.rows, strict=True):
        assert difference(before.expected, after.expected) == 0
        for left, right in zip(before.row.inputs, after.row.inputs, strict=True):
            assert right.dtype == np.int64
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("data", [None, b"", b"\x00" * 64])
def test_a_golden_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, data: bytes | None) -> None:
    """Missing, empty or not of this form."""
    path = tmp_path / "golden.safetensors"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BundleError, match="golden rows"):
        Golden.load(path, INPUTS, OUTPUTS, 1e-4)


def test_a_golden_answer_that_is_not_finite_is_never_right() -> None:
    """A comparison with NaN is false either way, and must not pass for one that held."""
    nan = {"embedding": np.array([np.nan, 0.0], np.float32)}
    assert difference(nan, {"embedding": np.array([1.0, 0.0], np.float32)}) == float("inf")
    assert difference(nan, nan) == float("inf")

"""Which rows run next: always the oldest, and whatever shape makes a row cheapest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corelane.engine.chooser import choose
from corelane.runtimes.base import Shape

COSTS = {
    Shape(1, 32): 1.0,
    Shape(8, 32): 6.0,
    Shape(1, 128): 4.0,
    Shape(8, 128): 24.0,
}


@pytest.mark.parametrize(
    ("lengths", "shape", "positions"),
    [
        pytest.param([20], Shape(1, 32), (0,), id="one-short-row-takes-the-smallest-shape"),
        pytest.param([100], Shape(1, 128), (0,), id="one-long-row-takes-the-long-shape"),
        pytest.param([20] * 8, Shape(8, 32), tuple(range(8)), id="a-full-batch-is-cheaper-per-row"),
        pytest.param([20] * 9, Shape(8, 32), tuple(range(8)), id="the-ninth-waits"),
        pytest.param([20] * 4, Shape(1, 32), (0,), id="four-rows-cost-more-in-an-eight"),
        pytest.param([20, 100] * 8, Shape(8, 32), tuple(range(0, 16, 2)), id="short-rows-are-not-padded-to-long-ones"),
        pytest.param([100] + [20] * 7, Shape(8, 128), tuple(range(8)), id="an-old-long-row-takes-company-along"),
        pytest.param([32], Shape(1, 32), (0,), id="a-row-that-fills-the-shape-fits"),
    ],
)
def test_the_cheapest_batch_per_row_that_holds_the_oldest_row_is_chosen(lengths, shape, positions):
    choice = choose(lengths, COSTS)
    assert (choice.shape, choice.positions) == (shape, positions)


@given(st.lists(st.integers(1, 128), min_size=1, max_size=40))
def test_every_batch_holds_the_oldest_row_once_and_only_rows_that_fit(lengths):
    choice = choose(lengths, COSTS)
    assert choice.positions[0] == 0
    assert len(set(choice.positions)) == len(choice.positions) <= choice.shape.batch
    assert all(lengths[at] <= choice.shape.sequence for at in choice.positions)


def test_a_row_that_fits_no_shape_is_a_bug_and_says_so():
    with pytest.raises(ValueError, match="129 tokens fits none"):
        choose([129], COSTS)

"""Which rows run next: always the oldest, and whatever shape makes a row cheapest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corelane.engine.chooser import Plan, choose
from corelane.runtimes.base import Shape

PLAN = Plan(
    {
        Shape(1, 32): 1.0,
        Shape(8, 32): 6.0,
        Shape(1, 128): 4.0,
        Shape(8, 128): 24.0,
    }
)


@pytest.mark.parametrize(
    ("lengths", "shape", "positions"),
    [
        pytest.param([20], Shape(1, 32), (0,), id="one-short-row-takes-the-smallest-shape"),
        pytest.param([100], Shape(1, 128), (0,), id="one-long-row-takes-the-long-shape"),
        pytest.param([20] * 8, Shape(8, 32), tuple(range(8)), id="a-full-batch-is-cheaper-per-row"),
        pytest.param([20] * 9, Shape(8, 32), tuple(range(8)), id="the-ninth-waits"),
        pytest.param([20] * 4, Shape(1, 32), (0,), id="four-rows-cost-more-in-an-eight"),
        pytest.param([20, 100] * 8, Shape(8, 32), tuple(range(0, 16, 2)), id="short-rows-are-not-padded-to-long-ones"),
        pytest.param([100] + [20] * 7, Shape(1, 128), (0,), id="an-old-long-row-runs-alone-when-that-clears-sooner"),
        pytest.param([20, 100, 20, 100], Shape(1, 32), (0,), id="of-equal-totals-the-cheaper-per-row"),
        pytest.param([32], Shape(1, 32), (0,), id="a-row-that-fills-the-shape-fits"),
    ],
)
def test_the_batch_that_clears_the_line_at_the_lowest_cost_is_chosen(lengths, shape, positions):
    choice = choose(lengths, PLAN)
    assert (choice.shape, choice.positions) == (shape, positions)


def test_no_small_remainder_is_left_to_need_a_batch_of_its_own():
    """13 rows: 8 of them in the cheapest batch per row would leave 5 that cost nearly as much again."""
    plan = Plan({Shape(8, 256): 26.0, Shape(8, 384): 38.0, Shape(16, 256): 40.0, Shape(16, 384): 47.0})
    assert choose([172, 258, 326] + [100] * 10, plan).shape == Shape(16, 384)


def test_free_places_go_to_the_longest_rows_that_fit():
    """They are the ones that need the long shape; the short ones have a cheaper one."""
    plan = Plan({Shape(1, 32): 1.0, Shape(4, 32): 2.0, Shape(4, 128): 4.0})
    assert choose([100, 20, 90, 20, 95, 80, 20], plan).positions == (0, 2, 4, 5)


def test_of_rows_in_one_length_class_the_older_go_first():
    """They cost the same there: going by their exact lengths would only let short texts wait."""
    plan = Plan({Shape(1, 128): 1.0, Shape(4, 128): 2.0})
    assert choose([10, 20, 30, 40, 100, 110, 120], plan).positions == (0, 1, 2, 3)


@given(st.lists(st.integers(1, 128), min_size=1, max_size=64))
def test_every_batch_holds_the_oldest_row_once_and_only_rows_that_fit(lengths):
    choice = choose(lengths, PLAN)
    assert choice.positions[0] == 0
    assert list(choice.positions) == sorted(set(choice.positions))
    assert len(choice.positions) <= choice.shape.batch
    assert all(lengths[at] <= choice.shape.sequence for at in choice.positions)


def test_a_row_that_fits_no_shape_is_a_bug_and_says_so():
    with pytest.raises(ValueError, match="129 tokens fits none"):
        choose([129], PLAN)

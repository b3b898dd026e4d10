"""Nearest rank: every percentile is a sample, and none is invented."""

from __future__ import annotations

import random

import pytest

from corelane.load.percentiles import nearest_rank, summary


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        pytest.param(range(1, 21), 95, 19, id="p95 of 1 to 20 is not the maximum"),
        pytest.param(range(1, 21), 99, 20, id="p99 of 1 to 20"),
        pytest.param(range(1, 21), 50, 10, id="p50 of 1 to 20"),
        pytest.param(range(1, 101), 99, 99, id="p99 of 1 to 100"),
        pytest.param(range(1, 101), 7, 7, id="p7 of 1 to 100, where 0.07 * 100 is above 7"),
        pytest.param(range(1, 1001), 99.9, 999, id="p99.9 of 1 to 1000"),
        pytest.param(range(1, 101), 100, 100, id="p100 is the maximum"),
        pytest.param([10, 20, 30], 99, 30, id="p99 of three is the largest"),
        pytest.param([7], 50, 7, id="one sample is its own p50"),
        pytest.param([7], 99, 7, id="one sample is its own p99"),
        pytest.param([], 50, None, id="no sample, no number"),
    ],
)
def test_a_percentile_is_the_nearest_rank(samples: list[float], percent: float, expected: float | None) -> None:
    """The tables that other drivers got wrong by truncating or by interpolating."""
    assert nearest_rank(sorted(samples), percent) == expected


def test_a_percentile_is_the_smallest_sample_that_covers_its_share() -> None:
    """The definition itself, over samples with ties and of any number."""
    dice = random.Random(4)
    for _ in range(200):
        samples = [dice.randint(1, 30) for _ in range(dice.randint(1, 60))]
        for percent in (1, 50, 90, 99, 100):
            needed = percent * len(samples) / 100
            covering = [value for value in samples if sum(one <= value for one in samples) >= needed]
            assert nearest_rank(sorted(samples), percent) == min(covering)


def test_summary_of_nothing_has_no_numbers() -> None:
    """An endpoint that answered nothing has no latency; 0 ms would make it the fastest."""
    assert summary([]) == {"p50": None, "p90": None, "p99": None, "max": None}


def test_summary_names_what_it_has() -> None:
    """All four of one pass over the samples, which need no order."""
    assert summary(float(value) for value in range(100, 0, -1)) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_a_percentile_outside_of_0_to_100_is_a_bug(percent: float) -> None:
    """There is no such sample."""
    with pytest.raises(ValueError, match="percent="):
        nearest_rank([1.0], percent)

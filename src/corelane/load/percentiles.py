"""Nearest-rank percentiles over all samples: every number reported is a sample that was measured. Pure.

No buckets and no interpolation: p99 of three samples is the largest one, and of none there is no number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

REPORTED = (50, 90, 99)


def summary(samples_ms: Iterable[float]) -> dict[str, float | None]:
    """p50, p90, p99 and max, sorted once; every value None when there is no sample."""
    ordered = sorted(samples_ms)
    values: dict[str, float | None] = {f"p{percent}": nearest_rank(ordered, percent) for percent in REPORTED}
    return values | {"max": ordered[-1] if ordered else None}


def nearest_rank(ordered: Sequence[float], percent: float) -> float | None:
    """The smallest of the ascending samples that `percent` of them do not exceed; None when there is none."""
    if not 0 < percent <= 100:
        raise ValueError(f"percent={percent} is not above 0 and at most 100")
    if not ordered:
        return None
    # Exact: in floating point 0.07 * 100 is a little above 7, and rounding up takes the wrong sample.
    rank = math.ceil(Fraction(str(percent)) * len(ordered) / 100)
    return ordered[rank - 1]

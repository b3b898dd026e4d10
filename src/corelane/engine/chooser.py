"""Which waiting rows run next, in which compiled shape: a pure function.

Every batch contains the oldest waiting row, so no row waits more than two batches once it is the oldest. Among the
batches that do, the one with which the whole line is cleared at the lowest cost wins; of equals, the one that is
cheaper per row. Looking at the rest of the line matters: the cheapest batch per row can leave a remainder behind that
needs a whole batch for itself. Short texts are not padded to long shapes because a long one stands beside them: in a
shape's free places, the longest rows that fit go first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corelane.runtimes.base import Shape

# How far down the line the chooser looks, at least: eight full batches of the usual size. Looking further costs Python
# time per batch and finds nothing better.
LOOK_AHEAD_ROWS = 64

# Totals closer than this are equal: sums of the same costs in another order differ by rounding.
EQUAL = 1e-6


@dataclass(frozen=True, slots=True)
class Choice:
    """A shape, and the positions in the waiting line (oldest first) of the rows that fill it, ascending."""

    shape: Shape
    positions: tuple[int, ...]


class Plan:
    """What clearing rows costs, worked out once for the shapes' costs (seconds per batch)."""

    def __init__(self, costs: Mapping[Shape, float]) -> None:
        self.costs = dict(costs)
        self.look_ahead_rows = max(LOOK_AHEAD_ROWS, *(shape.batch for shape in costs))
        self.sequences = sorted({shape.sequence for shape in costs})
        self.shapes = [
            sorted((shape for shape in costs if shape.sequence == sequence), key=lambda shape: shape.batch)
            for sequence in self.sequences
        ]
        self.clear = [self._clearing(shapes) for shapes in self.shapes]  # [length class][rows] -> seconds

    def _clearing(self, shapes: Sequence[Shape]) -> list[float]:
        """The least cost of running 0, 1, 2, ... rows in these shapes, which differ in their batch alone."""
        least = [0.0]
        for rows in range(1, self.look_ahead_rows + 1):
            least.append(min(self.costs[shape] + least[max(0, rows - shape.batch)] for shape in shapes))
        return least

    def length_class(self, length: int) -> int:
        """The index of the shortest compiled sequence that holds a row of `length` tokens."""
        return bisect_left(self.sequences, length)

    def rest_s(self, counts: Sequence[int]) -> float:
        """What clearing so many rows of each length class costs: each apart, or all in the longest one's shapes."""
        rows = sum(counts)
        if not rows:
            return 0.0
        apart = sum(clear[count] for clear, count in zip(self.clear, counts, strict=True))
        longest = max(at for at, count in enumerate(counts) if count)
        return min(apart, self.clear[longest][rows])


def choose(lengths: Sequence[int], plan: Plan) -> Choice:
    """The next batch for rows of these lengths in tokens, oldest first; at most `plan.look_ahead_rows`.

    Raises ValueError when row 0 fits no shape: rows are checked when they are submitted.
    """
    classes = [plan.length_class(length) for length in lengths]
    oldest = classes[0]
    if oldest >= len(plan.sequences):
        raise ValueError(f"a row of {lengths[0]} tokens fits none of {plan.sequences}: a bug in the caller")
    counts = [0] * (len(plan.sequences) + 1)  # the last one: rows that are too long, which only a bug could queue
    for at in classes:
        counts[at] += 1

    best: Shape | None = None
    best_total, best_per_row = 0.0, 0.0
    for at in range(oldest, len(plan.sequences)):
        for shape in plan.shapes[at]:
            left = _without(counts, oldest, at, shape.batch)
            cost = plan.costs[shape]
            total = cost + plan.rest_s(left)
            per_row = cost / (len(lengths) - sum(left))
            slack = EQUAL * total
            if best is None or total < best_total - slack or (total <= best_total + slack and per_row < best_per_row):
                best, best_total, best_per_row = shape, total, per_row
    assert best is not None
    return Choice(best, _longest_first(classes, plan.length_class(best.sequence), best.batch))


def _without(counts: Sequence[int], oldest: int, longest: int, batch: int) -> list[int]:
    """The counts by class once a batch has taken the oldest row and then the longest ones up to class `longest`."""
    left = list(counts[:-1])
    left[oldest] -= 1
    places = batch - 1
    for at in range(longest, -1, -1):
        taken = min(places, left[at])
        left[at] -= taken
        places -= taken
        if not places:
            break
    return left


def _longest_first(classes: Sequence[int], longest: int, batch: int) -> tuple[int, ...]:
    """The oldest row, and in the other places the rows of the longest classes that fit; of one class the older."""
    fitting = [at for at in range(1, len(classes)) if classes[at] <= longest]
    if len(fitting) >= batch:
        fitting.sort(key=lambda at: -classes[at])
        fitting = sorted(fitting[: batch - 1])
    return (0, *fitting)

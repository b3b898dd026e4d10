"""Which waiting rows run next, in which compiled shape: a pure function.

The batch always contains the oldest waiting row; among the shapes that can hold it, the one with the lowest measured
cost per row wins. So no row waits more than two batches once it is the oldest, and short texts are not padded to long
shapes because a long one stands beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corelane.runtimes.base import Shape


@dataclass(frozen=True, slots=True)
class Choice:
    """A shape, and the positions in the waiting line (oldest first) of the rows that fill it."""

    shape: Shape
    positions: tuple[int, ...]


def choose(lengths: Sequence[int], costs: Mapping[Shape, float]) -> Choice:
    """The cheapest batch per row that contains row 0.

    `lengths` are the waiting rows' lengths in tokens, oldest first; `costs` are seconds per batch of each shape.
    Raises ValueError when row 0 fits no shape: rows are checked when they are submitted.
    """
    best: Choice | None = None
    best_cost = 0.0
    fitting: dict[int, list[int]] = {}  # by sequence: the positions that fit it
    for shape, cost in costs.items():
        if lengths[0] > shape.sequence:
            continue
        if shape.sequence not in fitting:
            fitting[shape.sequence] = [at for at, length in enumerate(lengths) if length <= shape.sequence]
        positions = fitting[shape.sequence][: shape.batch]
        per_row = cost / len(positions)
        if best is None or per_row < best_cost:
            best, best_cost = Choice(shape, tuple(positions)), per_row
    if best is None:
        raise ValueError(f"a row of {lengths[0]} tokens fits none of {[str(s) for s in costs]}: a bug in the caller")
    return best

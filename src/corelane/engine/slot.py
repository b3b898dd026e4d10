"""A slot: one place for a model (`model_M`) on the core, with its own waiting line."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corelane.engine.chooser import choose
from corelane.engine.ticket import Ticket
from corelane.runtimes.base import Outputs, Row, Runtime, Shape

# How far down the line the chooser looks. Eight full batches of the widest usual shape; looking further costs
# Python time per batch and finds nothing better.
LOOK_AHEAD_ROWS = 64

# How strongly the newest batch moves a shape's cost: a fifth follows a change within about ten batches.
COST_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class Sentinel:
    """A row whose right answer is known. It rides along with the callers' rows, so that a core which starts to
    answer wrongly is found under load as well. `complaint` returns what is wrong, or None."""

    row: Row
    complaint: Callable[[Outputs], str | None]


@dataclass(slots=True, eq=False)
class Slot:
    """`costs`: seconds per batch, by shape, from the warm-up on kept current. The core's lock guards `waiting`."""

    name: str
    runtime: Runtime
    costs: dict[Shape, float]
    sentinels: tuple[Sentinel, ...] = ()
    waiting: deque[tuple[Ticket, int]] = field(default_factory=deque, init=False)  # (ticket, its row's index)
    checked_at: float = field(default=0.0, init=False)  # when a sentinel last answered rightly
    next_sentinel: int = field(default=0, init=False)

    def take(self) -> tuple[Shape, list[tuple[Ticket, int]]] | None:
        """Remove the next batch from the line. None: nothing waits."""
        if not self.waiting:
            return None
        head = [self.waiting.popleft() for _ in range(min(LOOK_AHEAD_ROWS, len(self.waiting)))]
        choice = choose([ticket.rows[index].length for ticket, index in head], self.costs)
        chosen = set(choice.positions)
        self.waiting.extendleft(reversed([place for at, place in enumerate(head) if at not in chosen]))
        return choice.shape, [head[at] for at in choice.positions]

    def drop(self, tickets: Sequence[Ticket]) -> None:
        """Take all rows of these tickets out of the line."""
        gone = set(map(id, tickets))
        self.waiting = deque(place for place in self.waiting if id(place[0]) not in gone)

    def smallest_shape(self, length: int) -> Shape:
        """The cheapest shape for one row of `length` tokens."""
        return choose([length], self.costs).shape

    def note_cost(self, shape: Shape, seconds: float) -> None:
        """Move a shape's cost towards what its last batch took."""
        self.costs[shape] += COST_WEIGHT * (seconds - self.costs[shape])

    def seconds_per_row(self) -> float:
        """What a row costs at most in a full batch: at the cheapest shape of the longest sequence."""
        longest = max(shape.sequence for shape in self.costs)
        return min(cost / shape.batch for shape, cost in self.costs.items() if shape.sequence == longest)

"""A slot: one place for a model (`model_M`) on the core, with its own waiting line."""

from __future__ import annotations

from dataclasses import dataclass, field

from corelane.engine.chooser import Plan, choose
from corelane.engine.line import Line, Place
from corelane.engine.watch import Watch
from corelane.runtimes.base import Row, Runtime, Shape

# How strongly the newest batch moves a shape's cost: a fifth follows a change within about ten batches.
COST_WEIGHT = 0.2

# A batch that took many times its cost was paused, not slow: it counts as no more than this.
MOST_OF_COST = 3.0

# How far, with each batch of another shape, a cost goes back to what the warm-up measured: a shape that looks dear is
# not chosen, and so would never be measured again.
FORGET_SHARE = 0.005

# A plan is made anew when a cost has moved so far from the one that it was made with.
REPLAN_SHARE = 0.05


@dataclass(slots=True, eq=False)
class Batch:
    """Rows that run together, the oldest first."""

    slot: Slot
    shape: Shape
    places: list[Place]

    @property
    def rows(self) -> list[Row]:
        """The rows in the order of their places."""
        return [ticket.rows[index] for ticket, index in self.places]


@dataclass(slots=True, eq=False)
class Slot:
    """`costs`: seconds per batch, by shape, from the warm-up on kept current. The core's lock guards `waiting`."""

    name: str
    runtime: Runtime
    costs: dict[Shape, float]
    watch: Watch = field(default_factory=Watch)
    waiting: Line = field(init=False)
    largest_batch: int = field(init=False)
    plan: Plan = field(init=False)
    _first_costs: dict[Shape, float] = field(init=False)

    def __post_init__(self) -> None:
        self._first_costs = dict(self.costs)
        self.plan = Plan(self.costs)
        self.waiting = Line([shape.sequence for shape in self.costs])
        self.largest_batch = max(shape.batch for shape in self.costs)

    def take(self) -> Batch | None:
        """Remove the next batch from the line. None: nothing waits."""
        head = self.waiting.head(self.plan.look_ahead_rows)
        if not head:
            return None
        try:
            choice = choose([ticket.rows[index].length for ticket, index in head], self.plan)
        except BaseException:
            self.waiting.put_back(head)  # or nobody would ever answer them
            raise
        chosen = set(choice.positions)
        self.waiting.put_back([place for at, place in enumerate(head) if at not in chosen])
        return Batch(self, choice.shape, [head[at] for at in choice.positions])

    def has_full_batch(self) -> bool:
        """Whether as many rows wait as the largest batch holds: what is formed now will not be fuller later."""
        return len(self.waiting) >= self.largest_batch

    def smallest_shape(self, length: int) -> Shape:
        """The cheapest shape for one row of `length` tokens."""
        return choose([length], self.plan).shape

    def note_cost(self, shape: Shape, seconds: float) -> None:
        """Move a shape's cost towards what its last batch took, and the others' a little towards their first ones."""
        costs = self.costs
        took = min(seconds, MOST_OF_COST * costs[shape])
        for other, first in self._first_costs.items():
            costs[other] += FORGET_SHARE * (first - costs[other])
        costs[shape] += COST_WEIGHT * (took - costs[shape])
        planned = self.plan.costs
        if any(abs(cost - planned[other]) > REPLAN_SHARE * planned[other] for other, cost in costs.items()):
            self.plan = Plan(costs)

    def waiting_s(self) -> float:
        """How long the rows that wait will keep the core busy in full batches, each at its own length."""
        return sum(count * self.row_s(sequence) for sequence, count in self.waiting.counts.items() if count)

    def row_s(self, sequence: int) -> float:
        """What a row of this compiled length costs in the batch that is cheapest per row."""
        return min(cost / shape.batch for shape, cost in self.costs.items() if shape.sequence == sequence)

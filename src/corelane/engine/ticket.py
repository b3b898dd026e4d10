"""A ticket: the rows of one item on their way through the engine, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from corelane.errors import RequestError
from corelane.runtimes.base import Outputs, Row

Outcome = Outputs | RequestError


@dataclass(slots=True, eq=False)
class Ticket:
    """One item's rows and their outcomes, in the rows' order.

    `owner` is the submitter's own, untouched here: who gets the finished ticket knows by it who waits. Times are
    `time.perf_counter()` seconds.
    """

    rows: Sequence[Row]
    owner: Any = None
    outcomes: list[Outcome | None] = field(init=False)
    pending: int = field(init=False)
    abandoned: bool = field(default=False, init=False)
    submitted_at: float = field(default=0.0, init=False)
    started_at: float = field(default=0.0, init=False)  # its first row reached the core
    finished_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.outcomes = [None] * len(self.rows)
        self.pending = len(self.rows)

    @property
    def queue_s(self) -> float:
        """From being queued until the first row reached the core; for an unfinished ticket 0."""
        return max(0.0, self.started_at - self.submitted_at)

    @property
    def compute_s(self) -> float:
        """From the first row's start until the last row's end; for an unfinished ticket 0."""
        return max(0.0, self.finished_at - self.started_at)

    @property
    def error(self) -> RequestError | None:
        """The first row's error, if any row has one: an item is answered whole or not at all."""
        return next((outcome for outcome in self.outcomes if isinstance(outcome, RequestError)), None)

    @property
    def outputs(self) -> list[Outputs]:
        """The rows' outputs; only to be asked when there is no error."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, dict)]

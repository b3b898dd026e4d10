"""Sentinels: rows whose right answer is known, asked again and again while a runtime serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corelane.engine.ticket import Outcome
from corelane.errors import CoreLostError, RequestError
from corelane.runtimes.base import Outputs, Row


@dataclass(frozen=True, slots=True)
class Sentinel:
    """A row, and what is wrong with an answer to it (None: nothing)."""

    row: Row
    complaint: Callable[[Outputs], str | None]


class Watch:
    """The sentinels of one runtime, asked in turn, one at least every `period_s`; 0 turns them off.

    Slots that share a runtime share its watch. They ride along with the callers' rows, so that a core which begins to
    answer wrongly is found under load as well.
    """

    def __init__(self, sentinels: Sequence[Sentinel] = (), period_s: float = 0.0) -> None:
        self._sentinels = tuple(sentinels) if period_s > 0 else ()
        self._period_s = period_s
        self._next = 0
        self._right_at = time.perf_counter()

    @property
    def sentinel(self) -> Sentinel:
        """The one whose turn it is; only to be asked of a watch that is due at some time."""
        return self._sentinels[self._next % len(self._sentinels)]

    def due_in_s(self) -> float | None:
        """Seconds until a sentinel is due, 0 or less when it is; None: never."""
        if not self._sentinels:
            return None
        return self._right_at + self._period_s - time.perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether a sentinel must be asked now."""
        due_in_s = self.due_in_s()
        return due_in_s is not None and due_in_s <= 0

    def check(self, sentinel: Sentinel, outcome: Outcome) -> None:
        """Note a right answer; CoreLostError with the numbers for a wrong one."""
        complaint = str(outcome) if isinstance(outcome, RequestError) else sentinel.complaint(outcome)
        if complaint is not None:
            raise CoreLostError(f"the core began to answer wrongly: {complaint}")
        self._right_at = time.perf_counter()
        self._next += 1

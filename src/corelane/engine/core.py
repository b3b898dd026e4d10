"""The core: the one thread that runs batches, and the waiting room in front of it.

Work-conserving: when the core is free and rows wait, it runs. Slots take turns, so that a flood on one model does not
starve the other. An input that makes a batch fail is found by running its rows one by one, once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from corelane.engine.slot import Sentinel, Slot
from corelane.engine.ticket import Outcome, Ticket
from corelane.errors import (
    ComputeError,
    CoreLostError,
    OverloadedError,
    RequestError,
    TooLargeError,
    UnavailableError,
)
from corelane.runtimes.base import Outputs, Row, Shape, cut, pad

log = logging.getLogger(__name__)

# A batch older than both of these is stuck: no compiled shape takes ten times its own time.
STUCK_AFTER_S = 5.0
STUCK_AFTER_COSTS = 10.0

# What a caller is told to wait when the core is lost: about the time in which a server is started again.
RESTART_S = 2.0


class Core:
    """Owns the slots' runtimes: only its thread calls `infer`.

    `on_lost` is called on the core's thread, once, when the core cannot go on (a fatal error of the runtime, or a wrong
    sentinel); the rows that waited have been answered with UnavailableError by then. `sentinel_period_s` 0 turns the
    sentinels off.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        max_queue_rows: int,
        sentinel_period_s: float = 0.0,
        on_lost: Callable[[CoreLostError], None] = lambda error: None,
    ) -> None:
        self.slots = tuple(slots)
        self.max_queue_rows = max_queue_rows
        self.sentinel_period_s = sentinel_period_s
        self.lost: CoreLostError | None = None
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._turn = 0
        self._closing = False
        self._running: tuple[float, float] | None = None  # (since, after how many seconds it counts as stuck)
        self._thread = threading.Thread(target=self._run, name="core", daemon=True)

    def start(self) -> None:
        """Start the core's thread."""
        now = time.perf_counter()
        for slot in self.slots:
            slot.checked_at = now
        self._thread.start()

    def close(self) -> None:
        """Finish what waits, end the thread and free the runtimes."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        for runtime in {id(slot.runtime): slot.runtime for slot in self.slots}.values():
            runtime.close()

    @property
    def waiting_rows(self) -> int:
        """Rows that wait for the core now."""
        return sum(len(slot.waiting) for slot in self.slots)

    @property
    def is_running(self) -> bool:
        """Whether a batch is on the core now."""
        return self._running is not None

    def stuck_for_s(self) -> float:
        """For how long the running batch has been overdue; 0 when none is."""
        running = self._running
        if running is None:
            return 0.0
        since, limit = running
        return max(0.0, time.perf_counter() - since - limit)

    def predicted_wait_s(self, slot: Slot) -> float:
        """How long a row that is submitted now would wait, at most, as far as the measured costs tell."""
        return self.waiting_rows * slot.seconds_per_row()

    def check_rows(self, rows: int) -> None:
        """TooLargeError when a request of so many rows could never be queued."""
        if rows > self.max_queue_rows:
            raise TooLargeError(
                f"the request needs {rows} rows (one per text or window) and this server queues at most "
                f"{self.max_queue_rows} (max_queue_rows); send fewer or shorter items"
            )

    def submit(self, slot: Slot, tickets: Sequence[Ticket]) -> None:
        """Queue all rows of all tickets, or none: OverloadedError, UnavailableError, TooLargeError."""
        rows = sum(len(ticket.rows) for ticket in tickets)
        self.check_rows(rows)
        now = time.perf_counter()
        with self._changed:
            if self.lost is not None or self._closing:
                raise UnavailableError("this core is going down; try another core or come back", RESTART_S)
            waiting_rows = self.waiting_rows
            if waiting_rows + rows > self.max_queue_rows:
                raise OverloadedError(
                    f"{waiting_rows} rows wait and {rows} more pass the limit of {self.max_queue_rows}; come back",
                    max(rows * slot.seconds_per_row(), self.predicted_wait_s(slot) / 2),
                )
            for ticket in tickets:
                ticket.submitted_at = now
                slot.waiting.extend((ticket, index) for index in range(len(ticket.rows)))
            self._changed.notify()

    def abandon(self, slot: Slot, tickets: Sequence[Ticket]) -> None:
        """Their callers have gone or their deadline has passed: rows that still wait never reach the core."""
        with self._changed:
            for ticket in tickets:
                ticket.abandoned = True
            slot.drop(tickets)

    # --- the core's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self.lost is None:
            work = self._next()
            if work is None:
                return
            slot, shape, batch = work
            try:
                self._run_batch(slot, shape, batch)
            except CoreLostError as error:
                self._lose(error, batch)
            except Exception as error:  # the thread's edge: a bug of ours must not leave callers waiting for ever
                log.exception("a bug in the engine")
                self._lose(CoreLostError(f"the engine failed: {error!r}"), batch)

    def _next(self) -> tuple[Slot, Shape, list[tuple[Ticket, int]]] | None:
        """Wait for the next batch; an empty one is a sentinel that is due. None: the core is closing."""
        with self._changed:
            while True:
                for step in range(len(self.slots)):
                    at = (self._turn + step) % len(self.slots)
                    taken = self.slots[at].take()
                    if taken is not None:
                        self._turn = at + 1
                        return self.slots[at], *taken
                if self._closing:
                    return None
                due = self._due()
                if due is not None and due[0] <= 0:
                    slot = due[1]
                    return slot, slot.smallest_shape(self._sentinel(slot).row.length), []
                self._changed.wait(None if due is None else due[0])

    def _due(self) -> tuple[float, Slot] | None:
        """(seconds until the next sentinel is due, its slot), or None when there are no sentinels."""
        if self.sentinel_period_s <= 0:
            return None
        watched = [slot for slot in self.slots if slot.sentinels]
        if not watched:
            return None
        slot = min(watched, key=lambda s: s.checked_at)
        return slot.checked_at + self.sentinel_period_s - time.perf_counter(), slot

    @staticmethod
    def _sentinel(slot: Slot) -> Sentinel:
        return slot.sentinels[slot.next_sentinel % len(slot.sentinels)]

    def _run_batch(self, slot: Slot, shape: Shape, batch: list[tuple[Ticket, int]]) -> None:
        rows = [ticket.rows[index] for ticket, index in batch]
        rider = self._rider(slot, shape, rows)
        now = time.perf_counter()
        for ticket, _ in batch:
            ticket.started_at = ticket.started_at or now
        outcomes = self._infer(slot, shape, [*rows, rider.row] if rider else rows)
        if rider is not None:
            self._check(slot, rider, outcomes.pop())
        self._finish(batch, outcomes)
        if self._is_overdue(slot):  # no batch had a free place: the sentinel gets one of its own
            lone = self._sentinel(slot)
            self._check(slot, lone, self._infer(slot, slot.smallest_shape(lone.row.length), [lone.row])[0])

    def _rider(self, slot: Slot, shape: Shape, rows: list[Row]) -> Sentinel | None:
        """The sentinel that rides in a free place of this batch, if one is due and fits."""
        if len(rows) >= shape.batch or not self._is_overdue(slot):
            return None
        sentinel = self._sentinel(slot)
        return sentinel if sentinel.row.length <= shape.sequence else None

    def _is_overdue(self, slot: Slot) -> bool:
        if self.sentinel_period_s <= 0 or not slot.sentinels:
            return False
        return time.perf_counter() - slot.checked_at >= self.sentinel_period_s

    @staticmethod
    def _check(slot: Slot, sentinel: Sentinel, outcome: Outcome) -> None:
        complaint = str(outcome) if isinstance(outcome, RequestError) else sentinel.complaint(outcome)
        if complaint is not None:
            raise CoreLostError(f"{slot.name} began to answer wrongly: {complaint}")
        slot.checked_at = time.perf_counter()
        slot.next_sentinel += 1

    def _infer(self, slot: Slot, shape: Shape, rows: list[Row]) -> list[Outcome]:
        """One outcome per row. A batch that fails is run again row by row, so that only the culprit fails."""
        try:
            outputs = self._timed(slot, shape, rows)
        except CoreLostError:
            raise
        except Exception as error:  # whatever a runtime raises is the input's fault until rows alone fail too
            if len(rows) > 1:
                log.warning("%s: a batch of %d rows failed (%s); running them one by one", slot.name, len(rows), error)
                return [self._infer(slot, slot.smallest_shape(row.length), [row])[0] for row in rows]
            log.exception("%s: the model failed on a row of %d tokens", slot.name, rows[0].length)
            return [ComputeError("the model failed on this item; nothing else was affected")]
        specs = slot.runtime.outputs
        return [_finite(cut(outputs, place, row.length, specs)) for place, row in enumerate(rows)]

    def _timed(self, slot: Slot, shape: Shape, rows: list[Row]) -> Outputs:
        inputs = pad(rows, shape, slot.runtime.inputs)
        began = time.perf_counter()
        self._running = (began, max(STUCK_AFTER_S, STUCK_AFTER_COSTS * slot.costs[shape]))
        try:
            outputs = slot.runtime.infer(inputs)
        finally:
            self._running = None
        slot.note_cost(shape, time.perf_counter() - began)
        return outputs

    @staticmethod
    def _finish(batch: Sequence[tuple[Ticket, int]], outcomes: Sequence[Outcome]) -> None:
        now = time.perf_counter()
        for (ticket, index), outcome in zip(batch, outcomes, strict=True):
            if ticket.outcomes[index] is not None:
                continue  # answered before the core was lost
            ticket.outcomes[index] = outcome
            ticket.pending -= 1
            if ticket.pending == 0 and not ticket.abandoned:
                ticket.finished_at = now
                ticket.on_done(ticket)

    def _lose(self, error: CoreLostError, batch: list[tuple[Ticket, int]]) -> None:
        """Answer every row, this batch's and those that wait, then say that the core is lost."""
        with self._changed:
            self.lost = error
            rest = [place for slot in self.slots for place in slot.waiting]
            for slot in self.slots:
                slot.waiting.clear()
        log.error("core lost: %s", error)
        refusal = UnavailableError("this core was lost while the request waited; try again", RESTART_S)
        self._finish([*batch, *rest], [refusal] * (len(batch) + len(rest)))
        self._on_lost(error)


def _finite(outputs: Outputs) -> Outcome:
    """The outputs, or an error when any number is NaN or infinite: JSON has neither, and neither is an answer."""
    for name, values in outputs.items():
        if not np.isfinite(values).all():
            return ComputeError(f"the model's output {name!r} is not finite for this item")
    return outputs

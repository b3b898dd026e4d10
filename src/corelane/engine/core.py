"""The core: the threads that run batches on it, and the waiting room in front of them.

Work-conserving: when the core is free and rows wait, it runs. Slots take turns, so that a flood on one model does not
starve the other. An input that makes a batch fail is found by running its rows one by one, once.

Where a runtime takes two batches at a time (`in_flight`), the second is handed over while the first one runs, so that
the core never waits for us; unless it is full at once, it is formed as late as that allows, to be as full as it can be.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from corelane.engine.line import Place
from corelane.engine.slot import Batch, Slot
from corelane.engine.ticket import Outcome, Ticket
from corelane.engine.watch import Sentinel
from corelane.errors import (
    ComputeError,
    CoreLostError,
    OverloadedError,
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

# How long before the running batch's end the next one is formed: choosing, padding and handing over a batch of 8 rows
# takes about 0.3 ms of Python, and a busy event loop may hold the interpreter for as long again.
LEAD_S = 1e-3


@dataclass(slots=True, eq=False)
class Run:
    """One call of a runtime that is expected to keep the core busy for `cost_s`. Times are `time.perf_counter()`."""

    since: float
    cost_s: float
    begins: float = 0.0  # when the core takes it, as far as known

    @property
    def expected_end(self) -> float:
        return self.begins + self.cost_s

    @property
    def stuck_at(self) -> float:
        return self.begins + max(STUCK_AFTER_S, STUCK_AFTER_COSTS * self.cost_s)


@dataclass(slots=True)
class Rows:
    """What became of the rows, since the start: admitted = computed + dropped + refused + those waiting and running."""

    admitted: int = 0
    computed: int = 0  # a batch with them ended, whatever it gave
    dropped: int = 0  # their caller had gone, or their deadline passed, before they reached the core
    refused: int = 0  # the core was lost while they waited


class Core:
    """Owns the slots' runtimes: only its threads call `infer`, as many at a time as the runtime takes.

    `on_lost` is called once, on a thread of the core, when the core cannot go on (a fatal error of the runtime, or a
    wrong sentinel); the rows that waited have been answered with UnavailableError by then.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        max_queue_rows: int,
        on_lost: Callable[[CoreLostError], None] = lambda error: None,
    ) -> None:
        self.slots = tuple(slots)
        self.max_queue_rows = max_queue_rows
        self._on_lost = on_lost
        self._on_done: Callable[[list[Ticket]], None] = lambda tickets: None
        self.lost: CoreLostError | None = None
        self.rows = Rows()
        self._changed = threading.Condition()  # guards all below, and the slots' waiting lines
        self._turn = 0
        self._closing = False
        self._running: list[Run] = []  # in the order in which the core takes them
        self._last_end = 0.0
        in_flight = max(slot.runtime.in_flight for slot in self.slots)
        self._threads = [
            threading.Thread(target=self._run, name=f"core-{number}", daemon=True) for number in range(in_flight)
        ]

    def start(self, on_done: Callable[[list[Ticket]], None]) -> None:
        """Start the core's threads; `on_done` gets the tickets that a batch finished, on one of them."""
        self._on_done = on_done
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish what waits, end the threads and free the runtimes."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for runtime in {id(slot.runtime): slot.runtime for slot in self.slots}.values():
            runtime.close()

    @property
    def waiting_rows(self) -> int:
        """Rows that wait for the core now."""
        return sum(len(slot.waiting) for slot in self.slots)

    @property
    def is_running(self) -> bool:
        """Whether a batch is on the core now."""
        return bool(self._running)

    def stuck_for_s(self) -> float:
        """For how long the running batch has been overdue; 0 when none is."""
        running = self._running[:1]
        return max(0.0, time.perf_counter() - running[0].stuck_at) if running else 0.0

    def predicted_wait_s(self) -> float:
        """How long a row that is submitted now would wait, at most, as far as the measured costs tell."""
        queued_s = sum(slot.waiting_s() for slot in self.slots)
        running = self._running[-1:]
        return queued_s + (max(0.0, running[0].expected_end - time.perf_counter()) if running else 0.0)

    def check_rows(self, rows: int) -> None:
        """TooLargeError when a request of so many rows could never be queued."""
        if rows > self.max_queue_rows:
            raise TooLargeError(
                f"the request needs {rows} rows (one per text or window) and this server queues at most "
                f"{self.max_queue_rows} (max_queue_rows); send fewer or shorter items"
            )

    def submit(self, slot: Slot, tickets: Sequence[Ticket], patience_s: float | None = None) -> None:
        """Queue all rows of all tickets, or none: OverloadedError, UnavailableError, TooLargeError.

        `patience_s`: refuse at once when the rows would have to wait longer than that, by the measured costs.
        """
        rows = sum(len(ticket.rows) for ticket in tickets)
        self.check_rows(rows)
        now = time.perf_counter()
        with self._changed:
            if self.lost is not None or self._closing:
                raise UnavailableError("this core is going down; try another core or come back", RESTART_S)
            waiting_rows = self.waiting_rows
            if waiting_rows:
                self._admit(waiting_rows, rows, patience_s)
            self.rows.admitted += rows
            for ticket in tickets:
                ticket.submitted_at = now
                slot.waiting.add(ticket)
            self._changed.notify()

    def _admit(self, waiting_rows: int, rows: int, patience_s: float | None) -> None:
        """OverloadedError when the rows would pass the limit in rows, or wait longer than the caller would."""
        wait_s = self.predicted_wait_s()
        if waiting_rows + rows > self.max_queue_rows:
            excess = waiting_rows + rows - self.max_queue_rows
            raise OverloadedError(
                f"{waiting_rows} rows wait and {rows} more pass the limit of {self.max_queue_rows}; come back",
                wait_s * excess / waiting_rows,
            )
        if patience_s is not None and wait_s > patience_s:
            raise OverloadedError(
                f"{waiting_rows} rows wait, which takes about {wait_s * 1e3:.0f} ms, and the request's time is over"
                f" after {patience_s * 1e3:.0f} ms; come back",
                wait_s - patience_s,
            )

    def abandon(self, slot: Slot, tickets: Sequence[Ticket]) -> None:
        """Their callers have gone or their deadline has passed: rows that still wait never reach the core."""
        with self._changed:
            for ticket in tickets:
                ticket.abandoned = True
            self.rows.dropped += slot.waiting.drop(tickets)

    # --- the core's threads --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self.lost is None:
            batch = None
            try:
                taken = self._next()
                if taken is None:
                    return
                batch, run = taken
                self._run_batch(batch, run)
            except CoreLostError as error:
                self._lose(error, batch)
            except Exception as error:  # the thread's edge: a bug of ours must not leave callers waiting for ever
                log.exception("a bug in the engine")
                self._lose(CoreLostError(f"the engine failed: {error!r}"), batch)

    def _next(self) -> tuple[Batch, Run] | None:
        """Wait until a batch is to be formed, and form it; one without rows is for a sentinel. None: closing."""
        with self._changed:
            while self.lost is None:
                wait_s = self._hold_s()
                if wait_s is None or wait_s <= 0:
                    batch = self._form()
                    if batch is not None:
                        return batch, self._begin(batch.slot.costs[batch.shape])
                    if self._closing:
                        return None
                    wait_s = None if self._running else self._sentinel_due_s()
                self._changed.wait(wait_s)
        return None

    def _hold_s(self) -> float | None:
        """How long to wait before the next batch is formed, since the core is busy; None when it is not.

        No wait either when a batch is full already: waiting could not make it cheaper.
        """
        if not self._running or any(slot.has_full_batch() for slot in self.slots):
            return None
        return self._running[-1].expected_end - LEAD_S - time.perf_counter()

    def _form(self) -> Batch | None:
        """The next batch: of the slots in turn, else a sentinel that is due."""
        for step in range(len(self.slots)):
            at = (self._turn + step) % len(self.slots)
            batch = self.slots[at].take()
            if batch is not None:
                self._turn = at + 1
                return batch
        if not self._running and not self._closing:
            for slot in self.slots:
                if slot.watch.is_due:
                    return Batch(slot, slot.smallest_shape(slot.watch.sentinel.row.length), [])
        return None

    def _begin(self, cost_s: float) -> Run:
        now = time.perf_counter()
        run = Run(now, cost_s, max(now, self._running[-1].expected_end) if self._running else now)
        self._running.append(run)
        return run

    def _end(self, run: Run) -> float:
        """Note that a run is over; returns the seconds that the core spent on it."""
        now = time.perf_counter()
        with self._changed:
            took_s = now - max(run.since, self._last_end)
            self._last_end = now
            self._running.remove(run)
            if self._running:
                self._running[0].begins = now  # the core takes it now, whatever was expected
            self._changed.notify()
        return took_s

    def _run_batch(self, batch: Batch, run: Run) -> None:
        """Run a batch, hand out its outcomes, and then ask every sentinel that found no free place."""
        slot, shape = batch.slot, batch.shape
        rider = self._rider(batch)
        for ticket, _ in batch.places:
            ticket.started_at = ticket.started_at or run.since
        outcomes = self._infer(slot, shape, [*batch.rows, rider.row] if rider else batch.rows, run, batch.places)
        with self._changed:
            self.rows.computed += len(batch.places)
        if rider is not None:
            slot.watch.check(rider, outcomes.pop())
        self._finish(batch.places, outcomes)
        for other in self.slots:
            if other.watch.is_due:
                lone = other.watch.sentinel
                outcome = self._infer(other, other.smallest_shape(lone.row.length), [lone.row])[0]
                other.watch.check(lone, outcome)

    @staticmethod
    def _rider(batch: Batch) -> Sentinel | None:
        """The sentinel that rides in a free place of this batch, if one is due and fits."""
        watch = batch.slot.watch
        if len(batch.places) >= batch.shape.batch or not watch.is_due:
            return None
        return watch.sentinel if watch.sentinel.row.length <= batch.shape.sequence else None

    def _sentinel_due_s(self) -> float | None:
        """Seconds until the next sentinel is due; None when there is none to wait for."""
        due = [due_s for slot in self.slots if (due_s := slot.watch.due_in_s()) is not None]
        return max(0.0, min(due)) if due else None

    def _infer(
        self, slot: Slot, shape: Shape, rows: list[Row], run: Run | None = None, places: Sequence[Place] = ()
    ) -> list[Outcome]:
        """One outcome per row. A batch that fails is run again row by row, so that only the culprit fails.

        `places` are those of the first rows; the rest are sentinels.
        """
        try:
            outputs = self._timed(slot, shape, rows, run)
        except CoreLostError:
            raise
        except Exception as error:  # whatever a runtime raises is the input's fault until rows alone fail too
            if len(rows) == 1:
                log.exception("%s: the model failed on a row of %d tokens", slot.name, rows[0].length)
                return [ComputeError("the model failed on this item; nothing else was affected")]
            log.warning("%s: a batch of %d rows failed (%s); running them one by one", slot.name, len(rows), error)
            return [self._alone(slot, row, places[at : at + 1]) for at, row in enumerate(rows)]
        specs = slot.runtime.outputs
        return [_finite(cut(outputs, place, row.length, specs)) for place, row in enumerate(rows)]

    def _alone(self, slot: Slot, row: Row, place: Sequence[Place]) -> Outcome:
        """One row of a batch that failed, by itself; not at all when its caller has gone by now."""
        if place and place[0][0].abandoned:
            return ComputeError("the batch failed, and nobody waits for this item any more")
        return self._infer(slot, slot.smallest_shape(row.length), [row])[0]

    def _timed(self, slot: Slot, shape: Shape, rows: list[Row], run: Run | None) -> Outputs:
        """Run a batch, seen by the watchdog, and keep its shape's cost current."""
        if run is None:
            with self._changed:
                run = self._begin(slot.costs[shape])
        try:
            outputs = slot.runtime.infer(pad(rows, shape, slot.runtime.inputs))
        finally:
            took_s = self._end(run)
        slot.note_cost(shape, took_s)
        return outputs

    def _finish(self, places: Sequence[Place], outcomes: Sequence[Outcome]) -> None:
        """Hand out a batch's outcomes, and the tickets that have all of theirs now."""
        now = time.perf_counter()
        done = []
        for (ticket, index), outcome in zip(places, outcomes, strict=True):
            if ticket.outcomes[index] is not None:
                continue  # answered before the core was lost
            ticket.outcomes[index] = outcome
            ticket.pending -= 1
            if ticket.pending == 0 and not ticket.abandoned:
                ticket.finished_at = now
                done.append(ticket)
        if done:
            self._on_done(done)

    def _lose(self, error: CoreLostError, batch: Batch | None) -> None:
        """Answer every row, this batch's and those that wait, then say that the core is lost."""
        with self._changed:
            is_first = self.lost is None
            self.lost = self.lost or error
            places = list(batch.places) if batch else []
            places += [place for slot in self.slots for place in slot.waiting.clear()]
            self.rows.refused += len(places)
            self._changed.notify_all()
        log.error("core lost: %s", error)
        refusal = UnavailableError("this core was lost while the request waited; try again", RESTART_S)
        try:
            self._finish(places, [refusal] * len(places))
        finally:
            if is_first:
                self._on_lost(error)


def _finite(outputs: Outputs) -> Outcome:
    """The outputs, or an error when any number is NaN or infinite: JSON has neither, and neither is an answer."""
    for name, values in outputs.items():
        if not np.isfinite(values).all():
            return ComputeError(f"the model's output {name!r} is not finite for this item")
    return outputs

"""A model as the routes see it: a task in front of a slot. Text in, answers out, within a deadline."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import Any

from corelane.engine import RESTART_S, Core, Slot, Ticket
from corelane.errors import ComputeError, DeadlineError, InvalidInputError, RequestError, UnavailableError
from corelane.server.errors import CallerLeftError
from corelane.tasks import parse_parameters
from corelane.tasks.base import Encoded, Task

log = logging.getLogger(__name__)

# Work on the event loop up to these sizes: a hand-over to another thread costs about as much as the work itself.
INLINE_CHARACTERS = 4_000
INLINE_ROWS = 4

ENDING = "this core's server is ending; try another core or come back"

# A caller's disconnect is looked for after so long: most answers are there sooner, and the look costs a task.
WATCH_AFTER_S = 0.02


class Settled(Enum):
    """Why a request's wait is over."""

    DONE = "done"
    DEADLINE = "deadline"
    CALLER_LEFT = "caller left"
    ENDING = "ending"


class Wait:
    """A request that waits for its tickets. Used on the event loop only."""

    __slots__ = ("_left", "future")

    def __init__(self, tickets: int) -> None:
        self.future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._left = tickets

    def one_done(self) -> None:
        """A ticket has all its outcomes."""
        self._left -= 1
        if self._left == 0:
            self.settle(Settled.DONE)

    def settle(self, why: Settled) -> None:
        """End the wait; the first reason counts."""
        if not self.future.done():
            self.future.set_result(why)


def hand_out(tickets: Sequence[Ticket]) -> None:
    """To be called on the event loop with the tickets that the core finished."""
    for ticket in tickets:
        ticket.owner.one_done()


@dataclass(slots=True)
class Answers:
    """One request's answers in the order of its items, an error in the place of an item that has none.

    Times are seconds; queue and compute are those of the slowest item.
    """

    answers: list[Any]  # a JSON value, or a RequestError
    is_heavy: bool  # too many to be written out on the event loop
    truncated: list[int]  # the items whose text was cut
    timing: dict[str, float] = field(default_factory=dict)

    @property
    def all_failed(self) -> bool:
        """Whether no item has an answer."""
        return all(isinstance(answer, RequestError) for answer in self.answers)


@dataclass(frozen=True)
class Model:
    """`name` is the one in the URL (model_0), `label` that of its bundle (demo-qa@1)."""

    name: str
    label: str
    task: Task
    slot: Slot
    core: Core
    executor: Executor
    about: dict[str, Any]
    waits: set[Wait] = field(default_factory=set)  # the requests that wait for the core now

    def give_up(self) -> int:
        """Answer every request that still waits with UnavailableError, since this process is about to end: how many."""
        waits = tuple(self.waits)
        for wait in waits:
            wait.settle(Settled.ENDING)
        return len(waits)

    async def predict(
        self,
        items: Sequence[Any],
        parameters: Any,
        deadline: float | None,
        caller_left: Callable[[], Awaitable[None]] | None = None,
    ) -> Answers:
        """Answer all items. `deadline` is in `loop.time()` seconds; `caller_left` returns once the caller is gone.

        Raises RequestError for what concerns the request as a whole (its parameters, the queue), CallerLeftError.
        """
        self.core.check_rows(len(items))  # refused before any text is looked at
        parsed = parse_parameters(self.task, parameters)
        began = perf_counter()
        if _size_of(items) <= INLINE_CHARACTERS:
            encoded = self._encode(items, parsed)
        else:
            encoded = await self._encode_in_time(items, parsed, deadline, caller_left)
        encode_s = perf_counter() - began

        tickets = await self._compute([item for item in encoded if isinstance(item, Encoded)], deadline, caller_left)

        began = perf_counter()
        is_heavy = sum(len(ticket.rows) for ticket in tickets) > INLINE_ROWS
        answers = await self.offload(is_heavy, self._decode, encoded, tickets, parsed)
        return Answers(
            answers,
            is_heavy,
            [at for at, item in enumerate(encoded) if isinstance(item, Encoded) and item.truncated],
            {
                "encode": encode_s,
                "queue": max((ticket.queue_s for ticket in tickets), default=0.0),
                "compute": max((ticket.compute_s for ticket in tickets), default=0.0),
                "decode": perf_counter() - began,
            },
        )

    async def offload(self, is_heavy: bool, work: Callable[..., Any], *args: Any) -> Any:
        """Do the work here, or where it is heavy in a thread, so that the event loop turns meanwhile."""
        if not is_heavy:
            return work(*args)
        # Not on the threads that tokenize: an answer that is ready does not wait behind texts that are not.
        return await asyncio.get_running_loop().run_in_executor(None, work, *args)

    async def _encode_in_time(
        self,
        items: Sequence[Any],
        parameters: Any,
        deadline: float | None,
        caller_left: Callable[[], Awaitable[None]] | None,
    ) -> list[Encoded | RequestError]:
        """`_encode` in a thread, for no longer than anybody waits for it: what has not begun then never does."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self.executor, self._encode, items, parameters)
        watcher = None if caller_left is None else asyncio.ensure_future(caller_left())
        awaited: set[asyncio.Future[Any]] = {work} if watcher is None else {work, watcher}
        patience_s = None if deadline is None else max(0.0, deadline - loop.time())
        try:
            await asyncio.wait(awaited, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if watcher is not None and watcher.done():
                raise CallerLeftError
            raise DeadlineError(
                "the deadline passed while the text waited to be tokenized; ask again or allow more time"
            )
        finally:
            work.cancel()
            if watcher is not None:
                watcher.cancel()

    def _encode(self, items: Sequence[Any], parameters: Any) -> list[Encoded | RequestError]:
        encoded: list[Encoded | RequestError] = []
        for item in items:
            try:
                encoded.append(self.task.encode(item, parameters))
            except RequestError as error:
                # Without its traceback, which would keep the tokenized text alive for as long as the error.
                encoded.append(error.with_traceback(None))
        return encoded

    async def _compute(
        self,
        encoded: Sequence[Encoded],
        deadline: float | None,
        caller_left: Callable[[], Awaitable[None]] | None,
    ) -> list[Ticket]:
        """Run all rows; tickets that are not finished at the deadline, or when the caller leaves, are abandoned."""
        if not encoded:
            return []
        loop = asyncio.get_running_loop()
        wait = Wait(len(encoded))
        tickets = [Ticket(item.rows, wait) for item in encoded]
        patience_s = None if deadline is None else deadline - loop.time()
        if patience_s is not None and patience_s <= 0:
            raise DeadlineError("the deadline passed while the text was tokenized; ask again or allow more time")
        self.core.submit(self.slot, tickets, patience_s)

        watcher: asyncio.Task[None] | None = None

        async def watch_caller() -> None:
            assert caller_left is not None
            await caller_left()
            wait.settle(Settled.CALLER_LEFT)

        def start_watching() -> None:
            nonlocal watcher
            watcher = loop.create_task(watch_caller())

        timers = []
        if deadline is not None:
            timers.append(loop.call_at(deadline, wait.settle, Settled.DEADLINE))
        if caller_left is not None:
            timers.append(loop.call_later(WATCH_AFTER_S, start_watching))
        self.waits.add(wait)
        try:
            why = await wait.future
        finally:
            self.waits.discard(wait)
            for timer in timers:
                timer.cancel()
            if watcher is not None:
                watcher.cancel()
            unfinished = [ticket for ticket in tickets if ticket.pending]
            if unfinished:  # nobody waits for these any more
                self.core.abandon(self.slot, unfinished)
        if why is Settled.CALLER_LEFT:
            raise CallerLeftError
        if why is Settled.ENDING:
            raise UnavailableError(ENDING, RESTART_S)
        return tickets

    def _decode(
        self, encoded: Sequence[Encoded | RequestError], tickets: Sequence[Ticket], parameters: Any
    ) -> list[Any]:
        answers: list[Any] = []
        remaining = iter(tickets)
        for item in encoded:
            if isinstance(item, RequestError):
                answers.append(item)
                continue
            ticket = next(remaining)
            if ticket.pending:
                answers.append(
                    DeadlineError("the deadline passed before the answer was there; ask again or allow more time")
                )
            elif ticket.error is not None:
                answers.append(ticket.error)
            else:
                answers.append(self._decode_one(item, ticket, parameters))
        return answers

    def _decode_one(self, item: Encoded, ticket: Ticket, parameters: Any) -> Any:
        try:
            return self.task.decode(item, ticket.outputs, parameters)
        except Exception:  # a bug in one item's decoding must not take its neighbours along
            log.exception("%s: a bug in decoding an answer", self.name)
            return ComputeError("the model's output for this item could not be read; the log has the reason")


def _size_of(items: Sequence[Any]) -> int:
    """Characters of text in the items, roughly: strings, and strings in objects."""
    size = 0
    for item in items:
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            size += sum(len(value) for value in item.values() if isinstance(value, str))
    return size


_MILLISECONDS = re.compile(rb"0*[1-9][0-9]{0,8}")  # up to eleven days


def deadline_after(timeout_ms: int, header: bytes | None) -> float | None:
    """The deadline in `loop.time()` seconds, or None for none; the header `x-request-timeout-ms` can only lower it."""
    if header is not None:
        if not _MILLISECONDS.fullmatch(header):
            raise InvalidInputError(
                f"x-request-timeout-ms is {header.decode('latin-1')!r}; send a whole number of milliseconds above 0"
            )
        timeout_ms = min(int(header), timeout_ms or int(header))
    return asyncio.get_running_loop().time() + timeout_ms / 1000 if timeout_ms else None

"""The core: rows keep their order and their owner, one culprit fails alone, and nothing waits for ever."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from corelane.engine import Core, Sentinel, Slot, Ticket, Watch
from corelane.errors import ComputeError, CoreLostError, OverloadedError, TooLargeError, UnavailableError
from corelane.runtimes.base import Shape
from support.runtimes import DEADLINE_S, Gate, SumRuntime, row
from support.servers import until

SHAPES = (Shape(1, 4), Shape(4, 4), Shape(1, 16), Shape(4, 16))
COSTS = {Shape(1, 4): 1e-4, Shape(4, 4): 2e-4, Shape(1, 16): 4e-4, Shape(4, 16): 8e-4}


class Bench:
    """A started core with one slot, and a way to submit rows and wait for what became of them."""

    def __init__(self, before=None, sentinels=(), period_s=0.0, max_queue_rows=64, slots=1, in_flight=1, costs=COSTS):
        self.runtime = SumRuntime(SHAPES, before, in_flight)
        watch = Watch(sentinels, period_s)
        self.slots = [Slot(f"model_{n}", self.runtime, dict(costs), watch) for n in range(slots)]
        self.lost = threading.Event()
        self.core = Core(
            self.slots,
            max_queue_rows=max_queue_rows,
            on_lost=lambda error: self.lost.set(),
        )
        self.core.start(lambda tickets: [ticket.owner.set() for ticket in tickets])

    def submit(self, *rows, slot=0):
        done = threading.Event()
        ticket = Ticket(rows, done)
        self.core.submit(self.slots[slot], [ticket])
        return ticket, done

    def ask(self, *rows):
        ticket, done = self.submit(*rows)
        assert done.wait(DEADLINE_S)
        return ticket


@pytest.fixture
def bench(request):
    benches = []

    def make(**options):
        benches.append(Bench(**options))
        return benches[-1]

    yield make
    for made in benches:
        made.core.close()
        assert made.runtime.closed == 1, "slots that share a runtime close it once"


def sums(ticket):
    return [float(outputs["sum"][0]) for outputs in ticket.outputs]


def test_a_ticket_gets_its_own_rows_in_its_own_order(bench):
    ticket = bench().ask(row(1, 2), row(3), row(4, 5, 6, 7, 8))
    assert sums(ticket) == [3, 3, 30]


def test_outputs_per_token_are_cut_to_the_rows_true_length(bench):
    ticket = bench().ask(row(1, 2), row(3, 4, 5))
    assert [outputs["echo"].tolist() for outputs in ticket.outputs] == [[1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("rows", "batches"), [(1, [1]), (4, [4]), (5, [4, 1]), (9, [4, 4, 1])])
def test_only_compiled_batches_run_and_padding_reaches_no_caller(bench, rows, batches):
    """A burst of 5 on a batch of 4 runs as 4 and 1: a compiled model takes no other size."""
    made = bench()
    ticket = made.ask(*(row(n + 1) for n in range(rows)))
    assert sums(ticket) == [n + 1 for n in range(rows)]
    assert [batch for batch, _ in made.runtime.batches] == batches


def test_many_threads_each_get_their_own_answers(bench):
    made = bench(max_queue_rows=10_000)
    wrong = []

    def ask(number):
        rng = np.random.default_rng(number)
        for _ in range(50):
            tokens = rng.integers(1, 1000, rng.integers(1, 17))
            if sums(made.ask(row(*tokens))) != [tokens.sum()]:
                wrong.append(tokens)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not wrong


def test_a_row_that_breaks_the_forward_fails_alone(bench):
    def break_on_666(inputs):
        if (inputs["input_ids"] == 666).any():
            raise ValueError("bad input")

    gate = Gate()
    made = bench(before=lambda inputs: (gate(inputs), break_on_666(inputs)))
    made.submit(row(1))
    assert gate.entered.wait(DEADLINE_S)
    waiting = [made.submit(row(tokens)) for tokens in (10, 666, 20)]
    gate.opened.set()
    assert all(done.wait(DEADLINE_S) for _, done in waiting)
    good, culprit, other = (ticket for ticket, _ in waiting)
    assert sums(good) == [10]
    assert sums(other) == [20]
    assert isinstance(culprit.error, ComputeError)
    assert sums(made.ask(row(5))) == [5]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_whose_output_is_not_finite_is_an_error_and_its_neighbours_are_not(bench, value):
    made = bench()
    infer = made.runtime.infer

    def poisoned(inputs):
        outputs = infer(inputs)
        outputs["sum"][inputs["input_ids"][:, 0] == 7] = value
        return outputs

    made.runtime.infer = poisoned
    ticket = made.ask(row(1), row(7), row(2))
    assert [isinstance(outcome, ComputeError) for outcome in ticket.outcomes] == [False, True, False]


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(bench):
    gate = Gate()
    made = bench(before=gate, max_queue_rows=4)
    made.submit(row(1))
    assert gate.entered.wait(DEADLINE_S)
    made.submit(row(1), row(2), row(3))
    with pytest.raises(OverloadedError, match="3 rows wait and 2 more pass the limit of 4") as refused:
        made.submit(row(4), row(5))
    assert refused.value.retry_after_s > 0
    made.submit(row(4))
    gate.opened.set()


def test_a_request_that_could_never_be_queued_is_too_large(bench):
    with pytest.raises(TooLargeError, match=r"needs 5 rows .* at most 4"):
        bench(max_queue_rows=4).submit(*[row(1)] * 5)


def test_abandoned_rows_never_reach_the_core_and_make_room_at_once(bench):
    gate = Gate()
    made = bench(before=gate, max_queue_rows=4)
    made.submit(row(1))
    assert gate.entered.wait(DEADLINE_S)
    gone, _ = made.submit(row(11), row(12), row(13), row(14))
    made.core.abandon(made.slots[0], [gone])
    assert made.core.waiting_rows == 0
    _, done = made.submit(row(2))
    gate.opened.set()
    assert done.wait(DEADLINE_S)
    assert len(made.runtime.batches) == 2


def test_slots_take_turns_so_that_a_flood_on_one_does_not_starve_the_other(bench):
    gate = Gate()
    order = []

    def record(inputs):
        gate(inputs)
        order.append(int(inputs["input_ids"][0, 0]))

    made = bench(before=record, slots=2)
    made.submit(row(100))
    assert gate.entered.wait(DEADLINE_S)
    flood = [made.submit(row(100), row(100), row(100), row(100)) for _ in range(5)]
    _, done = made.submit(row(200), slot=1)
    gate.opened.set()
    assert done.wait(DEADLINE_S)
    assert all(flooded.wait(DEADLINE_S) for _, flooded in flood)
    assert order.index(200) <= 2


def sentinel(expected, *tokens):
    def complaint(outputs):
        found = float(outputs["sum"][0])
        return None if found == expected else f"expected {expected}, found {found}"

    return Sentinel(row(*tokens), complaint)


def test_a_sentinel_is_asked_again_and_again_on_an_idle_core(bench):
    asked = threading.Semaphore(0)
    made = bench(before=lambda inputs: asked.release(), sentinels=(sentinel(3, 1, 2),), period_s=0.01)
    for _ in range(3):
        assert asked.acquire(timeout=DEADLINE_S)
    assert not made.lost.is_set()


def counted(tokens, asked):
    def complaint(outputs):
        asked.append(float(outputs["sum"][0]))

    return Sentinel(row(*tokens), complaint)


def test_under_load_a_due_sentinel_rides_in_a_free_place_of_a_batch(bench):
    """It must not cost a batch of its own while there is padding to spare."""
    asked = []
    gate = Gate()
    made = bench(before=gate, sentinels=(counted((1, 2), asked),), period_s=0.05)
    made.submit(row(9))
    assert gate.entered.wait(DEADLINE_S)
    until("a sentinel is due", lambda: made.slots[0].watch.is_due)
    ticket, done = made.submit(row(1), row(2), row(3))
    gate.opened.set()
    assert done.wait(DEADLINE_S)
    until("the sentinel was answered", lambda: asked)
    assert sums(ticket) == [1, 2, 3]
    assert asked[0] == 3


@pytest.mark.parametrize("loaded", [0, 1])
def test_a_sentinel_gets_a_batch_of_its_own_when_every_batch_is_full(bench, loaded):
    """Whichever of the slots that share the runtime is loaded."""
    asked = []
    made = bench(sentinels=(counted((1, 2), asked),), period_s=0.02, slots=2, max_queue_rows=10_000)
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            if made.core.waiting_rows < 100:
                made.submit(row(5), row(6), row(7), row(8), slot=loaded)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        until("it was asked again and again", lambda: len(asked) > 3)
    finally:
        stop.set()
        flooding.join()


def test_a_core_that_begins_to_answer_wrongly_is_lost_and_nobody_waits_for_it(bench):
    gate = Gate()
    made = bench(before=gate, sentinels=(sentinel(4, 1, 2),), period_s=1e-6)
    assert gate.entered.wait(DEADLINE_S)
    waiting = [made.submit(row(n)) for n in range(1, 20)]
    gate.opened.set()
    assert made.lost.wait(DEADLINE_S)
    assert all(done.wait(DEADLINE_S) for _, done in waiting)
    assert "expected 4, found 3.0" in str(made.core.lost)
    with pytest.raises(UnavailableError):
        made.submit(row(1))


def test_a_fatal_error_of_the_runtime_answers_every_row_that_waits(bench):
    gate = Gate()

    def die(inputs):
        gate(inputs)
        raise CoreLostError("the device is gone")

    made = bench(before=die)
    waiting = [made.submit(row(n)) for n in range(1, 10)]
    gate.opened.set()
    assert all(done.wait(DEADLINE_S) for _, done in waiting)
    assert all(isinstance(ticket.error, UnavailableError) for ticket, _ in waiting)
    assert made.lost.is_set()


def test_costs_follow_what_batches_really_take(bench):
    made = bench()
    made.ask(row(1))
    assert made.slots[0].costs[Shape(1, 4)] != COSTS[Shape(1, 4)]


def test_closing_answers_what_waits_first(bench):
    gate = Gate()
    made = bench(before=gate)
    _, first = made.submit(row(1))
    assert gate.entered.wait(DEADLINE_S)
    _, second = made.submit(row(2))
    closer = threading.Thread(target=made.core.close)
    closer.start()
    gate.opened.set()
    closer.join(DEADLINE_S)
    made.runtime.closed -= 1  # the fixture closes once more
    assert first.is_set()
    assert second.is_set()


# A running batch is expected to take a minute: what is formed before its end was formed early.
SLOW = dict.fromkeys(SHAPES, 60.0)


def test_a_full_batch_is_handed_over_while_another_runs(bench):
    """Waiting could not make it fuller, and the core must not wait for us."""
    gate = Gate()
    made = bench(before=gate, in_flight=2, costs=SLOW)
    made.submit(row(1))
    assert gate.entered.wait(DEADLINE_S)
    made.submit(row(2), row(3), row(4), row(5))
    until("both are on the core", lambda: len(made.runtime.batches) == 2)
    gate.opened.set()


def test_a_batch_with_free_places_is_formed_no_sooner_than_it_must(bench):
    """Rows that come while the first batch runs still get the free places."""
    gate = Gate()
    made = bench(before=gate, in_flight=2, costs=SLOW)
    made.submit(row(1))
    assert gate.entered.wait(DEADLINE_S)
    _, early = made.submit(row(2))
    _, late = made.submit(row(3), row(4))
    gate.opened.set()
    assert early.wait(DEADLINE_S)
    assert late.wait(DEADLINE_S)
    assert len(made.runtime.batches) == 2


def test_a_request_that_would_wait_longer_than_its_caller_is_refused_at_once(bench):
    gate = Gate()
    made = bench(before=gate, costs=SLOW)
    made.submit(row(1))
    assert gate.entered.wait(DEADLINE_S)
    made.submit(row(2))
    with pytest.raises(OverloadedError, match="the request's time is over after 10000 ms") as refused:
        made.core.submit(made.slots[0], [Ticket([row(3)])], patience_s=10.0)
    assert 30 < refused.value.retry_after_s < 120
    gate.opened.set()


def test_a_bug_in_the_engine_answers_who_waits_and_is_a_lost_core(bench, monkeypatch):
    """No thread may end in silence: callers would wait for ever and the server would look ready."""
    made = bench()

    def broken():
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(made.slots[0]), "take", lambda slot: broken())
    ticket, done = made.submit(row(1))
    assert done.wait(DEADLINE_S)
    assert isinstance(ticket.error, UnavailableError)
    assert made.lost.wait(DEADLINE_S)


def test_a_listener_that_raises_does_not_hide_that_the_core_is_lost():
    lost = threading.Event()
    runtime = SumRuntime(SHAPES)
    core = Core([Slot("model_0", runtime, dict(COSTS))], max_queue_rows=4, on_lost=lambda error: lost.set())

    def broken(tickets):
        raise RuntimeError("the loop is closed")

    core.start(broken)
    core.submit(core.slots[0], [Ticket([row(1)])])
    assert lost.wait(DEADLINE_S)


def test_a_batch_that_waited_behind_another_is_not_called_stuck_for_that(bench, monkeypatch):
    monkeypatch.setattr("corelane.engine.core.STUCK_AFTER_S", 0.5)
    released = threading.Semaphore(0)
    made = bench(before=lambda inputs: released.acquire(timeout=DEADLINE_S), in_flight=2)
    _, first = made.submit(*[row(1)] * 4)
    _, second = made.submit(*[row(1)] * 4)
    until("the first one is overdue", lambda: made.core.stuck_for_s() > 0)
    released.release()
    until("one of them is done", lambda: first.is_set() or second.is_set())
    assert made.core.stuck_for_s() == 0
    released.release()


def test_one_pause_does_not_make_a_shape_dear_for_ever():
    """A shape that looks dear is not chosen, and so would never be measured again."""
    slot = Slot("model_0", SumRuntime(SHAPES), dict(COSTS))
    shape, other = Shape(1, 4), Shape(4, 4)
    slot.note_cost(shape, 4.0)
    assert slot.costs[shape] < 2 * COSTS[shape]
    for _ in range(1000):
        slot.note_cost(other, COSTS[other])
    assert slot.costs[shape] == pytest.approx(COSTS[shape], rel=0.05)
    for _ in range(100):
        slot.note_cost(shape, 3 * COSTS[shape])
    assert slot.costs[shape] == pytest.approx(3 * COSTS[shape], rel=0.1), "what is slow for good is known to be"

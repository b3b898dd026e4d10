"""The simulated core: batches one after another, never early, and a fixed answer whatever the order."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from corelane import bundle
from corelane.bundle import Bundle
from corelane.errors import BundleError
from corelane.runtimes import simulated
from corelane.runtimes.base import Shape, cut, pad
from corelane.runtimes.simulated import LATE_S, SimulatedRuntime, Turns
from support.runtimes import row
from support.traced import simulated as made

STEP_S = 1e-6


class Clock:
    """Time that passes only while somebody sleeps; a sleep of nothing takes a step."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds or STEP_S


def ends_by_the_rule(calls: list[tuple[float, float]]) -> list[float]:
    """(when called, time taken) -> when done, for a core with one batch at a time: begin when it is free, or now."""
    ends: list[float] = []
    for called, took in calls:
        begun = called if not ends or ends[-1] <= called else ends[-1]
        ends.append(begun + took)
    return ends


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return made(tmp_path_factory.mktemp("simulated"))


def test_200_batches_of_overlapping_callers_end_when_the_rule_says() -> None:
    """Many wait at a time, and none of them moves another's end; the core rests when nobody calls."""
    clock, chance = Clock(), random.Random(3)
    turns = Turns(clock.now, clock.sleep)
    calls, ends = [], []
    for _ in range(200):
        clock.time += chance.expovariate(1 / 4e-3)
        took = chance.choice((1.00e-3, 5.97e-3))
        calls.append((clock.time, took))
        ends.append(turns.book(took))
    assert ends == ends_by_the_rule(calls)
    idle = sum(called > before for (called, _), before in zip(calls[1:], ends, strict=False))
    assert 20 < idle < 180  # both cases were there


def test_200_batches_of_one_caller_end_when_the_rule_says(bert: Bundle) -> None:
    """Through the runtime itself; a wait ends at most a step of the clock late."""
    clock, chance = Clock(), random.Random(4)
    runtime = SimulatedRuntime(bert, Turns(clock.now, clock.sleep))
    calls, ends = [], []
    for _ in range(200):
        clock.time += chance.expovariate(1 / 2e-3)
        shape, took = chance.choice(((Shape(1, 128), 1.00e-3), (Shape(8, 128), 5.97e-3)))
        calls.append((clock.time, took))
        runtime.infer(pad([row(101, 5, 6, 102)], shape, runtime.inputs))
        ends.append(clock.time)
    late = np.array(ends) - np.array(ends_by_the_rule(calls))
    assert (late >= 0).all()
    assert late.max() < 2 * STEP_S


def test_a_wait_is_one_sleep_and_then_short_looks_at_the_clock() -> None:
    """The system wakes late: a sleep to the very end would make the core slower than stated."""
    clock = Clock()
    Turns(clock.now, clock.sleep).wait(clock.time + 5e-3)
    assert clock.sleeps[0] == pytest.approx(5e-3 - LATE_S)
    assert set(clock.sleeps[1:]) == {0}


def test_a_real_core_is_never_faster_than_stated(bert: Bundle) -> None:
    """Two callers at once share the core; on a loaded machine it may take longer, never less."""
    runtime = simulated.load(bert)
    one = pad([row(101, 5, 6, 102)], Shape(1, 128), runtime.inputs)
    callers = [threading.Thread(target=lambda: [runtime.infer(one) for _ in range(10)]) for _ in range(2)]
    began = time.perf_counter()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert time.perf_counter() - began >= 20 * 1.00e-3


def test_other_threads_run_while_a_caller_waits(tmp_path: Path) -> None:
    """As beside a real device, which computes without the interpreter."""
    runtime = simulated.load(made(tmp_path, "slow", times="1x16=300"))
    inputs = pad([row(101, 5, 6, 102)], Shape(1, 16), runtime.inputs)
    caller = threading.Thread(target=runtime.infer, args=(inputs,))
    caller.start()
    turns = 0
    while caller.is_alive():
        turns += 1
    assert turns > 1000


def test_the_answer_is_a_fixed_function_of_the_first_two_tokens(bert: Bundle) -> None:
    """So that a test can tell whose answer it was given."""
    runtime = simulated.load(bert)
    rows = [row(101, number, number + 3, 102) for number in range(8)]
    outputs = runtime.infer(pad(rows, Shape(8, 128), runtime.inputs))
    assert outputs["logits"].dtype == np.float32
    assert outputs["logits"].tolist() == [[number % 7, (number + 3) % 5] for number in range(8)]
    alone = runtime.infer(pad(rows[3:4], Shape(1, 128), runtime.inputs))
    assert cut(alone, 0, 4, runtime.outputs)["logits"].tolist() == [3, 1]


def test_a_shape_without_a_stated_time_is_our_own_bug(bert: Bundle) -> None:
    runtime = simulated.load(bert)
    with pytest.raises(ValueError, match="bug in the caller"):
        runtime.infer(pad([row(1, 2, 3)], Shape(2, 128), runtime.inputs))


def test_closing_twice_is_fine_and_using_it_then_is_not(bert: Bundle) -> None:
    runtime = simulated.load(bert)
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeError, match="after close"):
        runtime.infer(pad([row(1, 2, 3)], Shape(1, 128), runtime.inputs))


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_text("{"),
        lambda file: file.write_text(json.dumps({"1x128": 1.0})),
        lambda file: file.write_text(json.dumps({"1x128": 1.0, "8x128": None})),
    ],
    ids=["missing", "no-json", "a-shape-missing", "no-number"],
)
def test_a_bundle_without_a_time_for_each_shape_is_refused(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """A shape that takes no time would look like a fast server."""
    damaged = made(tmp_path)
    damage(damaged.path / simulated.TIMES)
    with pytest.raises(BundleError, match=r"times\.json does not state a time"):
        simulated.load(bundle.read(damaged.path))


def test_a_new_core_is_free_at_once() -> None:
    """Whatever the clock says: its zero is nobody's business."""
    clock = Clock()
    clock.time = -1e9
    end = Turns(clock.now, clock.sleep).book(1.0)
    assert math.isclose(end, -1e9 + 1.0)

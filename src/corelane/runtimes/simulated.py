"""A core that takes a stated time per shape and computes nothing: the server in front of it is all that is measured.

Batches run one after another, and whoever waits for one lets other threads run, as with a real device. The answer is
a fixed function of the input, so that order and isolation can be checked.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from corelane.bundle import SIMULATED, Bundle
from corelane.errors import BundleError
from corelane.runtimes.base import Array, InputSpec, Outputs, OutputSpec, Shape

STACK = SIMULATED

# The bundle's data file, {"1x128": 1.0}: milliseconds per batch of each shape.
TIMES = "times.json"

# The system wakes a sleeper late, by less than this; the rest of a wait is spent looking at the clock.
LATE_S = 2e-4

LABELS = 2


def logits(input_ids: Array) -> Array:
    """(..., sequence) -> (..., 2) float32, from the first two tokens behind the class token."""
    return np.stack((input_ids[..., 1] % 7, input_ids[..., 2] % 5), axis=-1).astype(np.float32)


class Turns:
    """When a core that takes one batch after another is done with each. Callers may overlap."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._free_at = -math.inf
        self._lock = threading.Lock()

    def book(self, seconds: float) -> float:
        """Take the core for so long, from the moment it is free; returns the end, which other callers do not move."""
        with self._lock:
            self._free_at = max(self._free_at, self._now()) + seconds
            return self._free_at

    def wait(self, end: float) -> None:
        """Return at `end`, never before, and as little after it as the system allows."""
        left = end - self._now() - LATE_S
        if left > 0:
            self._sleep(left)
        while self._now() < end:
            self._sleep(0)  # lets other threads run


class SimulatedRuntime:
    """See runtimes.base.Runtime. Two callers at a time, so that the next batch stands ready when one ends."""

    stack = STACK
    in_flight = 2

    def __init__(self, bundle: Bundle, turns: Turns | None = None) -> None:
        manifest = bundle.manifest
        self.shapes = tuple(sorted(Shape(batch, sequence) for batch, sequence in manifest.shapes))
        self.inputs = tuple(InputSpec(**spec) for spec in manifest.inputs)
        self.outputs = tuple(OutputSpec(**spec) for spec in manifest.outputs)
        self._seconds = _read_times(bundle, self.shapes)
        self._turns = turns or Turns()
        self._closed = False

    def infer(self, inputs: Mapping[str, Array]) -> Outputs:
        """Wait until the core is done with this batch of one of `shapes`, and answer the fixed function."""
        if self._closed:
            raise RuntimeError("infer after close: this is a bug in the caller")
        ids = inputs["input_ids"]
        seconds = self._seconds.get(ids.shape)
        if seconds is None:
            raise ValueError(f"a batch of {ids.shape}, stated are {list(self._seconds)}: this is a bug in the caller")
        self._turns.wait(self._turns.book(seconds))
        return {"logits": logits(ids)}

    def close(self) -> None:
        self._closed = True


def load(bundle: Bundle) -> SimulatedRuntime:
    """Load a verified bundle, on a core of its own."""
    return SimulatedRuntime(bundle)


def write_times(folder: Path, times_ms: Mapping[Shape, float]) -> None:
    """The data file of a bundle."""
    text = json.dumps({str(shape): ms for shape, ms in sorted(times_ms.items())}, indent=1)
    (folder / TIMES).write_text(text + "\n", encoding="utf-8")


def _read_times(bundle: Bundle, shapes: tuple[Shape, ...]) -> dict[tuple[int, ...], float]:
    try:
        times_ms = json.loads((bundle.path / TIMES).read_bytes())
        return {(shape.batch, shape.sequence): float(times_ms[str(shape)]) / 1e3 for shape in shapes}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(
            f"bundle {bundle.label}: {TIMES} does not state a time for each of its shapes ({error!r}); make it again"
            " with `corelane trace --simulate`"
        ) from error

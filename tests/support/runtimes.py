"""Runtimes whose answers follow from their input, so that order, isolation and padding can be checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np

from corelane.runtimes.base import Array, InputSpec, Outputs, OutputSpec, Row, Shape

DEADLINE_S = 10.0


def row(*tokens: int) -> Row:
    """A row of these token ids, all of them attended to."""
    return Row(len(tokens), (np.array(tokens), np.ones(len(tokens), np.int64)))


class SumRuntime:
    """Answers each row's sum of attended tokens, and echoes the tokens. `before` sees every batch first and may
    raise, wait or record."""

    inputs = (InputSpec("input_ids", "int64", 0), InputSpec("attention_mask", "int64", 0))
    outputs = (OutputSpec("sum", per_token=False), OutputSpec("echo", per_token=True))

    def __init__(
        self,
        shapes: tuple[Shape, ...],
        before: Callable[[Mapping[str, Array]], None] | None = None,
        in_flight: int = 1,
    ) -> None:
        self.shapes = shapes
        self.in_flight = in_flight
        self.before = before or (lambda inputs: None)
        self.batches: list[tuple[int, int]] = []
        self.closed = 0
        self._callers = threading.Semaphore(in_flight)

    def infer(self, inputs: Mapping[str, Array]) -> Outputs:
        assert self._callers.acquire(blocking=False), "more callers at once than allowed"
        try:
            ids, mask = inputs["input_ids"], inputs["attention_mask"]
            assert Shape(*ids.shape) in self.shapes
            self.batches.append((int(ids.shape[0]), int(ids.shape[1])))
            self.before(inputs)
            return {
                "sum": (ids * mask).sum(axis=1, keepdims=True).astype(np.float32),
                "echo": ids.astype(np.float32),
            }
        finally:
            self._callers.release()

    def close(self) -> None:
        self.closed += 1


class Gate:
    """Holds the first batch until opened, so that a test can say what waits while one runs."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, inputs: Mapping[str, Array]) -> None:
        self.entered.set()
        assert self.opened.wait(DEADLINE_S)

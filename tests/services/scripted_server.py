"""A core server, whole but for its model: `scripted_server.py PORT [CORE]` serves the sum task on a scripted runtime.

The texts of support/tasks.py make a forward raise, answer NaN, take SLOW_S, lose the core, or never return.
SCRIPTED_LOAD_S in the environment makes loading slow.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from corelane.engine import Core, Slot
from corelane.errors import CorelaneError, CoreLostError
from corelane.runtimes.base import Shape
from corelane.server.loading import Loaded
from corelane.server.model import Model
from corelane.server.process import run
from corelane.settings import load
from support.runtimes import SumRuntime
from support.tasks import HANG, LOSE, NAN, RAISE, SLOW, TOKENS, SumTask

SLOW_S = 1.0
SHAPES = (Shape(1, 16), Shape(4, 16))


class ScriptedRuntime(SumRuntime):
    def infer(self, inputs):
        outputs = super().infer(inputs)
        ids = inputs["input_ids"]
        if (ids == TOKENS[RAISE]).any():
            raise ValueError("scripted to raise")
        if (ids == TOKENS[LOSE]).any():
            raise CoreLostError("scripted to be lost")
        if (ids == TOKENS[SLOW]).any():
            time.sleep(SLOW_S)
        if (ids == TOKENS[HANG]).any():
            threading.Event().wait()
        outputs["sum"][ids[:, 0] == TOKENS[NAN]] = float("nan")
        return outputs


def load_scripted(settings, executor, on_lost):
    print("loading", flush=True)
    time.sleep(float(os.environ.get("SCRIPTED_LOAD_S", "0")))
    runtime = ScriptedRuntime(SHAPES)
    slots = [Slot(f"model_{n}", runtime, dict.fromkeys(SHAPES, 1e-3)) for n in range(settings.num_models_per_server)]
    core = Core(slots, max_queue_rows=settings.max_queue_rows, on_lost=on_lost)
    about = {"name": "sum", "version": 1, "task": "sum", "model": "scripted"}
    models = [Model(slot.name, "sum@1", SumTask(), slot, core, executor, about) for slot in slots]
    return Loaded(models, core, {})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    try:
        number = int(sys.argv[2]) if len(sys.argv) > 2 else 0
        sys.exit(run(load(Path(os.environ["CORELANE_CONFIG"]).parent), number, int(sys.argv[1]), load_scripted))
    except CorelaneError as error:
        print(f"corelane: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

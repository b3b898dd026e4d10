"""precision=int8: the weights as 8-bit integers, by NNCF. Needs nncf, which only tracing imports.

The activations stay float32 in the model. Where the CPU has integer instructions, OpenVINO rounds them too, as it
computes and in groups of 32 (runtimes/cpu.py), so that no calibration texts are needed and an outlier spoils only its
own group. Rounding the activations by fixed scales from calibration texts was a third faster with all-MiniLM-L6-v2;
with texts of ours it answered 83% of the held-out questions as float32 does, where this answers 99.5%.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
from types import ModuleType
from typing import Any

import numpy as np

from corelane.errors import BundleError, ConfigError
from corelane.models import QUESTION_ANSWERING, TEXT_CLASSIFICATION
from corelane.runtimes import cpu
from corelane.runtimes.base import Outputs, Runtime, cut, pad
from corelane.runtimes.golden import Golden

# Of the golden rows, the share that must get the answer of the uncompiled model.
LEAST_SAME_ANSWERS = 0.9

# The tasks whose answer is the place of the highest number in each output.
_PICKING = frozenset({QUESTION_ANSWERING, TEXT_CLASSIFICATION})


def import_nncf() -> ModuleType:
    """NNCF, without its telemetry and without its words: stdout holds the bundle's path alone."""
    cpu.load_openvino()  # hides the telemetry package, without which NNCF sends nothing
    try:
        nncf = importlib.import_module("nncf")
    except ImportError as error:
        raise ConfigError(
            f"precision=int8 needs nncf for tracing, and {error.name} is not installed; run `pip install"
            " 'corelane[int8]'`, or set precision=float32"
        ) from error
    nncf.set_log_level(logging.ERROR)
    return nncf


def compress(model: Any) -> Any:
    """The same OpenVINO model with 8-bit weights: one scale and one zero point per output channel."""
    nncf = import_nncf()
    with contextlib.redirect_stdout(io.StringIO()):  # its progress bar
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)


def same_answers(runtime: Runtime, golden: Golden, task: str) -> tuple[int, int] | None:
    """(golden rows answered as the uncompiled model answers them, of so many); None where an answer is no choice."""
    if task not in _PICKING:
        return None
    same = 0
    for golden_row in golden.rows:
        shape = min(shape for shape in runtime.shapes if shape.sequence >= golden_row.row.length)
        outputs = runtime.infer(pad([golden_row.row], shape, runtime.inputs))
        same += _picks(cut(outputs, 0, golden_row.row.length, runtime.outputs)) == _picks(golden_row.expected)
    return same, len(golden.rows)


def check_answers(runtime: Runtime, golden: Golden, task: str) -> str:
    """A sentence for the report; BundleError when too many answers have changed."""
    counted = same_answers(runtime, golden, task)
    if counted is None:
        return ""
    same, rows = counted
    if same < LEAST_SAME_ANSWERS * rows:
        raise BundleError(
            f"in int8 it answers {same} of {rows} golden rows as in float32, and at least {LEAST_SAME_ANSWERS:.0%} is"
            " demanded"
        )
    return f"{same} of {rows} golden rows get the answer of float32 (at least {LEAST_SAME_ANSWERS:.0%} demanded)"


def _picks(outputs: Outputs) -> list[int]:
    return [int(np.argmax(outputs[name])) for name in sorted(outputs)]

"""The CPU twin: OpenVINO. One compiled model with free dimensions serves all shapes from one copy of the
weights.

Measured with all-MiniLM-L6-v2 on one core: within 4% of models compiled for each shape, at 218 MiB instead of
606. Imports neither torch nor transformers, nor OpenVINO's converter.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from corelane.bundle import Bundle
from corelane.errors import BundleError
from corelane.runtimes.base import Array, InputSpec, Outputs, OutputSpec, Shape

STACK = "openvino"
DEVICE = "CPU"


def load_openvino() -> Any:
    """`import openvino` without its telemetry: by default the import itself sends an event over the network.

    OpenVINO does without the package `openvino_telemetry` where it is not installed, so we hide it from this
    process; its own way to opt out is a file in the user's home, which is not ours to write. The converter is
    left out as well (8 MiB and 50 ms); who needs it imports `openvino.tools.ovc` after this.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: "not installed"
    if "openvino" in sys.modules:
        return sys.modules["openvino"]
    converter = "openvino.tools.ovc"
    sys.modules[converter] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        del sys.modules[converter]
    return openvino


def version() -> str:
    return str(load_openvino().get_version())


def compile_options(threads: int) -> dict[str, Any]:
    return {
        # Without it OpenVINO chooses bfloat16 where the CPU has it, and answers differ from machine to
        # machine.
        "INFERENCE_PRECISION_HINT": "f32",
        # Of a bundle with 8-bit weights: activations are rounded in groups of so many, where the CPU has integer
        # instructions. Larger groups are up to 20% faster and answer worse (tracing/quantize.py).
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        # The whole process is pinned by who starts it.
        "ENABLE_CPU_PINNING": False,
    }


class CpuRuntime:
    """See runtimes.base.Runtime. `infer` is for one thread at a time and releases the GIL while it
    computes."""

    stack = STACK
    in_flight = 1

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        manifest = bundle.manifest
        self.shapes = tuple(sorted(Shape(batch, sequence) for batch, sequence in manifest.shapes))
        self.inputs = tuple(InputSpec(**spec) for spec in manifest.inputs)
        self.outputs = tuple(OutputSpec(**spec) for spec in manifest.outputs)
        self._sizes = {(shape.batch, shape.sequence) for shape in self.shapes}
        openvino = load_openvino()
        _check_version(bundle, str(openvino.get_version()))
        try:
            core = openvino.Core()
            model = core.read_model(bundle.model_path)
            self._check_ports(model)
            compiled = core.compile_model(model, DEVICE, compile_options(threads))
            self._request = compiled.create_infer_request()
        except RuntimeError as error:
            raise BundleError(
                f"bundle {bundle.label}: OpenVINO cannot load {bundle.model_path} ({_first_line(error)});"
                " trace the model again with `--retrace`"
            ) from error

    def infer(self, inputs: Mapping[str, Array]) -> Outputs:
        """Run one batch of one of `shapes`. The arrays returned are copies: they belong to the caller."""
        if self._request is None:
            raise RuntimeError("infer after close: this is a bug in the caller")
        size = next(iter(inputs.values())).shape
        if size not in self._sizes:
            raise ValueError(f"a batch of {size}, compiled are {self._sizes}: this is a bug in the caller")
        # Shared inputs are not only faster: copied ones fail when a batch is larger than the one before.
        results = self._request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        # Without the copy the next batch would write over these answers.
        return {spec.name: np.array(results[spec.name]) for spec in self.outputs}

    def close(self) -> None:
        self._request = None

    def _check_ports(self, model: Any) -> None:
        found = ({port.any_name for port in model.inputs}, {port.any_name for port in model.outputs})
        expected = ({spec.name for spec in self.inputs}, {spec.name for spec in self.outputs})
        if found != expected:
            raise RuntimeError(f"its inputs and outputs are {found}, the manifest has {expected}")


def load(bundle: Bundle, *, threads: int = 1) -> CpuRuntime:
    """Load a verified bundle on this process's CPU."""
    return CpuRuntime(bundle, threads=threads)


def _check_version(bundle: Bundle, running: str) -> None:
    """OpenVINO reads what older releases wrote, and promises nothing for newer ones."""
    traced = bundle.manifest.versions.get(STACK, "")
    if _release(traced) > _release(running):
        raise BundleError(
            f"bundle {bundle.label} was traced with OpenVINO {traced} and this server has the older"
            f" {running};"
            " upgrade openvino here, or trace the model again with `--retrace`"
        )


def _release(text: str) -> tuple[int, ...]:
    """2026.4.1-21919-abc -> (2026, 4)."""
    numbers = text.partition("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]

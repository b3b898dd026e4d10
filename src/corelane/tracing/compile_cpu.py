"""torch -> OpenVINO: one file pair with free dimensions, which is data only and so fits every CPU."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from corelane.errors import BundleError
from corelane.runtimes import cpu
from corelane.runtimes.base import InputSpec
from corelane.tracing import quantize
from corelane.tracing.wrap import Wrapped

STACK = cpu.STACK


def compile_model(wrapped: Wrapped, folder: Path, precision: str = "float32") -> Counter[str]:
    """Write model.xml and model.bin into `folder`; returns how often each operator stands in the compiled
    model."""
    openvino = cpu.load_openvino()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns of every Python number it takes for constant
        from openvino.tools.ovc import convert_model

        try:
            with torch.no_grad():
                model = convert_model(wrapped.module, example_input=_example(wrapped.inputs))
        except Exception as error:  # the converter raises what the model's own code raises
            raise BundleError(
                f"the model cannot be compiled for the CPU ({type(error).__name__}: {error!s:.300});"
                " choose another model"
            ) from error
    for port, output in zip(model.outputs, wrapped.outputs, strict=True):
        port.get_tensor().set_names({output.name})
    if precision == "int8":
        model = quantize.compress(model)
    # Left alone it would store the weights as float16.
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    return Counter(operator.get_type_name() for operator in model.get_ops())


def _example(inputs: Sequence[InputSpec]) -> dict[str, torch.Tensor]:
    """Two rows of eight tokens, one of them padded, so that no branch for "nothing is masked" is recorded."""
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    by_name = {"input_ids": torch.where(mask == 1, 5, inputs[0].pad), "attention_mask": mask}
    return {spec.name: by_name.get(spec.name, torch.zeros_like(mask)) for spec in inputs}

"""Which runtime loads which bundle: one row per stack. A twin is imported when it is needed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from corelane.bundle import SIMULATED, Bundle
from corelane.errors import BundleError, ConfigError
from corelane.runtimes.base import Runtime


@dataclass(frozen=True)
class Twin:
    """`module` has `load(bundle) -> Runtime`; `chips` are those it runs on, None for any."""

    module: str
    chips: frozenset[str] | None


TWINS = {
    "openvino": Twin("corelane.runtimes.cpu", frozenset({"cpu"})),
    SIMULATED: Twin("corelane.runtimes.simulated", None),
}


def twin_of(bundle: Bundle, chip: str) -> Twin:
    """The twin for a bundle; BundleError for a stack that this release does not have, ConfigError for the chip."""
    stack = bundle.manifest.stack
    twin = TWINS.get(stack)
    if twin is None:
        raise BundleError(
            f"bundle {bundle.label} was traced for the stack {stack}, and this release runs {', '.join(TWINS)};"
            " trace the model again with `--retrace`"
        )
    if twin.chips is not None and chip not in twin.chips:
        raise ConfigError(
            f"CHIP_TYPE={chip} was asked for, and the stack {stack} of bundle {bundle.label} runs on"
            f" {', '.join(sorted(twin.chips))} only; set CHIP_TYPE, or serve another bundle"
        )
    return twin


def load(bundle: Bundle, chip: str) -> Runtime:
    """Load a verified bundle on this process's core."""
    runtime: Runtime = importlib.import_module(twin_of(bundle, chip).module).load(bundle)
    return runtime

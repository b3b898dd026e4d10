"""One table says which runtime loads a bundle, and on which chips."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from corelane.bundle import Bundle
from corelane.errors import BundleError, ConfigError
from corelane.runtimes import twins
from support.traced import simulated


def test_every_twin_of_the_table_has_its_stacks_name() -> None:
    """A bundle names its stack as the runtime that traced it does."""
    for stack, twin in twins.TWINS.items():
        assert stack == importlib.import_module(twin.module).STACK


def test_a_bundle_is_loaded_by_the_twin_of_its_stack(tiny_bundle: Bundle, tmp_path: Path) -> None:
    for bundle, in_flight in ((tiny_bundle, 1), (simulated(tmp_path), 2)):
        runtime = twins.load(bundle, "cpu")
        assert runtime.in_flight == in_flight
        runtime.close()


def test_an_unknown_stack_is_refused_with_the_known_ones(tiny_bundle: Bundle) -> None:
    """Made by a newer release."""
    newer = dataclasses.replace(tiny_bundle.manifest, stack="abacus")
    with pytest.raises(BundleError, match=r"stack abacus.*openvino, simulated"):
        twins.load(dataclasses.replace(tiny_bundle, manifest=newer), "cpu")


def test_a_chip_that_the_twin_does_not_run_on_is_refused(tiny_bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=r"CHIP_TYPE=inf2.*runs on cpu only"):
        twins.load(tiny_bundle, "inf2")

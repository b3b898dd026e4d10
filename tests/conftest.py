"""Fixtures shared by all tests."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corelane import bundle
from corelane.bundle import Bundle
from support.traced import tiny_bert, traced


@pytest.fixture(scope="session")
def demo_qa_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """demo-qa, really traced, in few shapes."""
    root = tmp_path_factory.mktemp("demo-qa")
    return traced(root, model_name="demo-qa", batch_sizes="1,4", sequence_lengths="64,128,384")


@pytest.fixture(scope="session")
def demo_embed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """demo-embed, really traced, in few shapes."""
    root = tmp_path_factory.mktemp("demo-embed")
    return traced(root, model_name="demo-embed", batch_sizes="1,4", sequence_lengths="32,64,128")


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A random question-answering model of a few kilobytes, really traced. Never damage it: see `copied`."""
    root = tmp_path_factory.mktemp("tiny")
    tiny_bert(root / "model")
    return traced(root, model_name="./model", compiled_model="tiny", batch_sizes="1,2", sequence_lengths="16,32")


@pytest.fixture
def copied(tiny_bundle: Bundle, tmp_path: Path) -> Callable[..., Bundle]:
    """Makes a copy of the tiny bundle that a test may damage."""

    def copy(**changes: Any) -> Bundle:
        target = tmp_path / "traced-models" / "tiny" / "1"
        shutil.copytree(tiny_bundle.path, target)
        if changes:
            bundle.write_manifest(target, dataclasses.replace(tiny_bundle.manifest, **changes))
        return bundle.read(target)

    return copy

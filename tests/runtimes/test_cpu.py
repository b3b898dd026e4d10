"""The CPU twin: the original's answers in every shape, whatever shares the batch; light, and silent on the
network."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from corelane.bundle import Bundle
from corelane.errors import BundleError
from corelane.runtimes import cpu
from corelane.runtimes.base import Row, Shape, cut, pad
from corelane.runtimes.cpu import CpuRuntime
from corelane.runtimes.golden import Golden, difference, replay
from support.offline import WATCH


@pytest.fixture(scope="module")
def embed(demo_embed_bundle: Bundle) -> Iterator[CpuRuntime]:
    runtime = cpu.load(demo_embed_bundle)
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def answering(demo_qa_bundle: Bundle) -> Iterator[CpuRuntime]:
    runtime = cpu.load(demo_qa_bundle)
    yield runtime
    runtime.close()


def golden(bundle: Bundle, runtime: CpuRuntime) -> Golden:
    return Golden.load(bundle.golden_path, runtime.inputs, runtime.outputs, bundle.manifest.tolerance)


def encode(bundle: Bundle, *text: str) -> Row:
    from tokenizers import Tokenizer

    encoding = Tokenizer.from_file(str(bundle.tokenizer_path)).encode(*text)
    columns = (encoding.ids, encoding.attention_mask, encoding.type_ids)
    return Row(len(encoding.ids), tuple(np.array(column, np.int64) for column in columns))


def test_every_shape_gives_the_uncompiled_models_answers(demo_qa_bundle: Bundle, answering: CpuRuntime) -> None:
    """What a server checks at its start."""
    parity = replay(answering, golden(demo_qa_bundle, answering))
    assert set(parity.shapes) == {Shape(batch, length) for batch in (1, 4) for length in (64, 128, 384)}
    assert parity.error < 1e-5


def test_a_vector_depends_neither_on_its_neighbours_nor_on_the_shape(
    demo_embed_bundle: Bundle, embed: CpuRuntime
) -> None:
    """Pooling with the mask: alone, beside a long text, and in every length."""
    short = encode(demo_embed_bundle, "four words of text")
    long = encode(demo_embed_bundle, "a long text that shares the batch " * 15)
    assert 100 < long.length <= 128
    vectors = [embed.infer(pad([short], shape, embed.inputs))["embedding"][0] for shape in embed.shapes]
    both = pad([long, short], Shape(4, 128), embed.inputs)
    vectors.append(embed.infer(both)["embedding"][1])
    for vector in vectors:
        np.testing.assert_allclose(vector, vectors[0], atol=1e-6)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_a_text_that_is_empty_after_normalisation_has_a_finite_vector(
    demo_embed_bundle: Bundle, embed: CpuRuntime
) -> None:
    """Its two special tokens remain, and nothing is divided by zero."""
    empty = encode(demo_embed_bundle, " \u200b ")
    vector = embed.infer(pad([empty], Shape(1, 32), embed.inputs))["embedding"]
    assert vector.shape == (1, 384)
    assert np.isfinite(vector).all()


def test_shapes_may_come_in_any_order(demo_qa_bundle: Bundle, answering: CpuRuntime) -> None:
    """Small after large after small: no buffer keeps anything of the batch before."""
    rows = golden(demo_qa_bundle, answering).rows
    for shape in (*answering.shapes, *reversed(answering.shapes)):
        row = next(row for row in reversed(rows) if row.row.length <= shape.sequence)
        outputs = answering.infer(pad([row.row], shape, answering.inputs))
        for place in range(shape.batch):
            assert row.complaint(cut(outputs, place, row.row.length, answering.outputs)) is None


def test_answers_belong_to_the_caller(demo_qa_bundle: Bundle, answering: CpuRuntime) -> None:
    """The next batch does not write over them."""
    rows = golden(demo_qa_bundle, answering).rows
    first = answering.infer(pad([rows[0].row], Shape(1, 64), answering.inputs))
    kept = {name: array.copy() for name, array in first.items()}
    answering.infer(pad([rows[1].row], Shape(1, 64), answering.inputs))
    assert difference(kept, first) == 0
    assert all(array.flags.writeable and array.flags.owndata for array in first.values())


def test_a_shape_that_was_not_compiled_is_our_own_bug(answering: CpuRuntime) -> None:
    """OpenVINO would take it; the measured costs and the checks would not hold."""
    arrays = {spec.name: np.ones((2, 64), np.int64) for spec in answering.inputs}
    with pytest.raises(ValueError, match="bug in the caller"):
        answering.infer(arrays)


def test_closing_twice_is_fine_and_using_it_then_is_not(tiny_bundle: Bundle) -> None:
    """`close` is idempotent."""
    runtime = cpu.load(tiny_bundle)
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeError, match="after close"):
        runtime.infer({spec.name: np.ones((1, 16), np.int64) for spec in runtime.inputs})


@pytest.mark.parametrize("name", ["model.xml", "model.bin"])
@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "folder"])
def test_a_compiled_model_that_cannot_be_loaded_is_refused(
    copied: Callable[..., Bundle], name: str, damage: str
) -> None:
    """Even unverified it is a sentence, not a crash."""
    made = copied()
    path = made.path / name
    size = path.stat().st_size
    if damage == "cut":
        os.truncate(path, size // 2)
    elif damage == "empty":
        os.truncate(path, 0)
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    with pytest.raises(BundleError, match="OpenVINO cannot load"):
        cpu.load(made)


def test_a_model_with_other_inputs_than_its_manifest_is_refused(copied: Callable[..., Bundle]) -> None:
    """Two bundles mixed up."""
    made = copied(inputs=({"name": "input_ids", "dtype": "int64", "pad": 0},))
    with pytest.raises(BundleError, match="token_type_ids"):
        cpu.load(made)


def test_a_bundle_of_a_newer_openvino_is_refused_with_both_versions(tiny_bundle: Bundle) -> None:
    """Older ones are read; nothing is promised for newer ones."""
    newer = dataclasses.replace(tiny_bundle.manifest, versions={"openvino": "2099.1.0-1-releases"})
    with pytest.raises(BundleError, match=rf"2099.1.0.*{cpu.version()[:6]}"):
        cpu.load(dataclasses.replace(tiny_bundle, manifest=newer))
    older = dataclasses.replace(tiny_bundle.manifest, versions={"openvino": "2025.1.0-1-releases"})
    cpu.load(dataclasses.replace(tiny_bundle, manifest=older)).close()


def test_float32_is_asked_for(tiny_bundle: Bundle) -> None:
    """OpenVINO computes in bfloat16 by itself where the CPU can, and answers would differ between
    machines."""
    openvino = cpu.load_openvino()
    compiled = openvino.Core().compile_model(tiny_bundle.model_path, cpu.DEVICE, cpu.compile_options(1))
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1


# Serves a bundle in a fresh process.
SERVE = (
    WATCH
    + """
import json, sys
from pathlib import Path
from corelane import bundle
from corelane.runtimes import cpu, golden
made = bundle.read(Path(sys.argv[1]))
bundle.verify(made, chip="cpu", stack=cpu.STACK)
runtime = cpu.load(made)
rows = golden.Golden.load(made.golden_path, runtime.inputs, runtime.outputs, made.manifest.tolerance)
golden.replay(runtime, rows)
heavy = [name for name in ("torch", "transformers", "openvino.tools.ovc") if name in sys.modules]
if "convert" in sys.argv:
    from openvino.tools.ovc import convert_model
print(json.dumps({"attempts": finished(), "heavy": heavy}))
"""
)


def served(bundle: Bundle, home: Path, *arguments: str) -> dict[str, list[str]]:
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {"HOME": str(home)}
    command = [sys.executable, "-c", SERVE, str(bundle.path), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def test_serving_loads_neither_torch_nor_transformers(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """Half the memory and most of the start time."""
    assert served(tiny_bundle, tmp_path)["heavy"] == []


@pytest.mark.parametrize("arguments", [(), ("convert",)], ids=["serving", "tracing"])
def test_nothing_is_sent_and_nothing_is_left_in_the_home(
    tiny_bundle: Bundle, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """OpenVINO's import sends an event and leaves an id in ~/intel, unless it is kept from it."""
    assert served(tiny_bundle, tmp_path, *arguments)["attempts"] == []
    assert list(tmp_path.iterdir()) == []

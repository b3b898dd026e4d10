"""precision=int8: smaller, close enough, said in the report, and refused where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from corelane import bundle, tasks
from corelane.bundle import Bundle
from corelane.errors import BundleError, ConfigError
from corelane.runtimes import cpu
from corelane.runtimes.base import Array, Outputs, Row, cut, pad
from corelane.runtimes.golden import TOLERANCE_INT8, Golden
from corelane.tracing import quantize
from corelane.tracing.trace import trace
from support.offline import OFFLINE_TRACE
from support.traced import settings, tiny_bert, tiny_classifier, traced

SMALL = {"batch_sizes": "1,2", "sequence_lengths": "16,32"}
HELD_OUT = Path(__file__).resolve().parents[1] / "data" / "heldout.json"


@pytest.fixture(scope="module")
def answering_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """demo-qa in int8, really traced."""
    root = tmp_path_factory.mktemp("demo-qa-int8")
    return traced(root, model_name="demo-qa", precision="int8", batch_sizes="1,4", sequence_lengths="64,384")


def test_the_weights_are_a_quarter_and_the_bundle_says_why_it_may_be_served(
    answering_bundle: Bundle, demo_qa_bundle: Bundle
) -> None:
    """Bound and result in the report, precision, bound and NNCF's version in the manifest."""
    sizes = [(made.path / "model.bin").stat().st_size for made in (answering_bundle, demo_qa_bundle)]
    assert sizes[0] < 0.27 * sizes[1]
    manifest = answering_bundle.manifest
    assert (manifest.precision, manifest.tolerance) == ("int8", TOLERANCE_INT8)
    assert manifest.versions["nncf"]
    report = json.loads((answering_bundle.path / "report.json").read_bytes())
    assert report["precision"] == "int8"
    assert all(1e-4 < shape["error"] < TOLERANCE_INT8 for shape in report["shapes"])
    assert "golden rows get the answer of float32" in report["answers"]
    page = (answering_bundle.path / "report.md").read_text(encoding="utf-8")
    assert f"Answers: {report['answers']}." in page
    assert f"| {TOLERANCE_INT8:.0e} |" in page


def test_a_server_takes_it_as_any_other(answering_bundle: Bundle) -> None:
    """Verified whole, and not stale."""
    found = bundle.find(answering_bundle.path.parents[1], "demo-qa")
    bundle.verify(found, chip="cpu", stack=cpu.STACK)
    inputs = found.manifest.trace_inputs
    assert bundle.stale_keys(found, inputs) == []
    assert bundle.stale_keys(found, {**inputs, "precision": "float32"}) == [("precision", "int8", "float32")]


def test_a_vector_of_int8_has_a_cosine_above_995_thousandths(tmp_path: Path, demo_embed_bundle: Bundle) -> None:
    """What the bound promises, for texts that no golden row has."""
    shapes = {"batch_sizes": "1,4", "sequence_lengths": "32,128"}
    made = traced(tmp_path, model_name="demo-embed", precision="int8", **shapes)
    assert json.loads((made.path / "report.json").read_bytes())["answers"] == ""  # a vector is no choice
    items = json.loads(HELD_OUT.read_bytes())["items"][::10]
    vectors = []
    for each in (demo_embed_bundle, made):
        runtime = cpu.load(each)
        names = tuple(spec.name for spec in runtime.inputs)
        task = tasks.get("feature-extraction")(each.tokenizer_path, names, 128, each.manifest.task_options)
        rows = [task.encode(item["context"], task.parameters()).rows[0] for item in items]
        vectors.append([_alone(runtime, row)["embedding"] for row in rows])
    cosines = (np.array(vectors[0]) * np.array(vectors[1])).sum(1)
    assert 0.995 < cosines.min() < 1 - 1e-5


@pytest.mark.slow
def test_held_out_questions_keep_their_answers(answering_bundle: Bundle) -> None:
    """199 of 200 on a CPU with AVX-512 VNNI."""
    runtime = cpu.load(answering_bundle)
    names = tuple(spec.name for spec in runtime.inputs)
    options = answering_bundle.manifest.task_options
    task = tasks.get("question-answering")(answering_bundle.tokenizer_path, names, 384, options)
    parameters = task.parameters()
    items = json.loads(HELD_OUT.read_bytes())["items"]
    same = 0
    for item in items:
        encoded = task.encode({key: item[key] for key in ("question", "context")}, parameters)
        answer = task.decode(encoded, [_alone(runtime, row) for row in encoded.rows], parameters)
        same += (answer["answer"], answer["start"]) == (item["reference"]["answer"], item["reference"]["start"])
    assert same >= 0.97 * len(items)


def _alone(runtime: cpu.CpuRuntime, row: Row) -> Outputs:
    """A row's outputs in the shortest shape of one row."""
    shape = min(shape for shape in runtime.shapes if shape.sequence >= row.length)
    return cut(runtime.infer(pad([row], shape, runtime.inputs)), 0, row.length, runtime.outputs)


# --- where it is not close enough -----------------------------------------------------------------


class Spoiled:
    """The runtime of a bundle, with so many of its answers changed."""

    def __init__(self, runtime: cpu.CpuRuntime, wrong: int) -> None:
        self.shapes, self.inputs, self.outputs = runtime.shapes, runtime.inputs, runtime.outputs
        self._runtime = runtime
        self._wrong = wrong

    def infer(self, inputs: Mapping[str, Array]) -> Outputs:
        outputs = self._runtime.infer(inputs)
        if self._wrong:
            self._wrong -= 1
            outputs = {name: -array for name, array in outputs.items()}
        return outputs

    def close(self) -> None:
        self._runtime.close()


def test_one_changed_answer_in_ten_is_demanded_at_most(demo_qa_bundle: Bundle) -> None:
    """Numbers may be near and the answer another one."""
    runtime = cpu.load(demo_qa_bundle)
    golden = Golden.load(demo_qa_bundle.golden_path, runtime.inputs, runtime.outputs, TOLERANCE_INT8)
    rows = len(golden.rows)
    task = "question-answering"
    assert quantize.same_answers(runtime, golden, task) == (rows, rows)
    assert quantize.check_answers(runtime, golden, "feature-extraction") == ""
    with pytest.raises(BundleError, match=rf"{rows - 2} of {rows} golden rows.*90% is demanded"):
        quantize.check_answers(Spoiled(runtime, 2), golden, task)


def test_a_model_that_int8_changes_too_much_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out is named."""
    tiny_bert(tmp_path / "model")
    monkeypatch.setitem(trace.__globals__["TOLERANCES"], "int8", 1e-6)
    with pytest.raises(BundleError, match=r"nothing is kept.*error of .*precision=float32"):
        traced(tmp_path, model_name="./model", precision="int8", **SMALL)
    assert list((tmp_path / "traced-models").iterdir()) == []


def test_a_classifier_is_compared_by_its_labels(tmp_path: Path) -> None:
    """Each golden row's first label."""
    tiny_classifier(tmp_path / "model")
    made = traced(tmp_path, model_name="./model", precision="int8", **SMALL)
    assert "of float32" in json.loads((made.path / "report.json").read_bytes())["answers"]


# --- what it needs --------------------------------------------------------------------------------


def test_without_nncf_the_extra_is_named_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 does not need it."""
    tiny_bert(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "nncf", None)
    lines: list[str] = []
    with pytest.raises(ConfigError, match=r"nncf.*pip install 'corelane\[int8\]'.*precision=float32"):
        trace(settings(tmp_path, model_name="./model", precision="int8", **SMALL), progress=lines.append)
    assert lines == []
    traced(tmp_path, model_name="./model", precision="float32", **SMALL)


def test_nncf_sends_nothing_and_says_nothing(tmp_path: Path) -> None:
    """Left alone it reports each use over the network, and draws a table and a progress bar."""
    tiny_classifier(tmp_path / "model")
    settings(tmp_path, model_name="./model", precision="int8", **SMALL)
    home = tmp_path / "home"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {"HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE_TRACE, str(tmp_path)],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-1] == "attempts: []"
    assert all(line.startswith(("loading", "compil", "shape", "bundle")) for line in lines[:-1])
    assert done.stderr == ""
    assert list(home.iterdir()) == []

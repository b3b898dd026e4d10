"""Tracing end to end: fresh, stale and forced; limits; parity; and that a failure leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corelane import bundle, models
from corelane.bundle import Bundle
from corelane.errors import BundleError, ConfigError
from corelane.runtimes import cpu
from corelane.runtimes.base import Shape, cut, pad
from corelane.runtimes.golden import Golden
from corelane.tracing import compile_cpu
from corelane.tracing.trace import trace
from support.offline import OFFLINE_TRACE
from support.traced import sentence_files, settings, tiny_bert, tiny_classifier, tiny_roberta, traced

SMALL = {"batch_sizes": "1,2", "sequence_lengths": "16,32"}


# --- what is in a bundle --------------------------------------------------------------------------


def test_the_manifest_says_what_was_traced(demo_embed_bundle: Bundle) -> None:
    """Everything a server, a task and a later configuration need to know."""
    manifest = demo_embed_bundle.manifest
    assert demo_embed_bundle.label == "demo-embed@1"
    assert (manifest.task, manifest.precision, manifest.chip, manifest.stack) == (
        "feature-extraction", "float32", "cpu", "openvino",
    )  # fmt: skip
    assert manifest.shapes == ((1, 32), (1, 64), (1, 128), (4, 32), (4, 64), (4, 128))
    assert manifest.task_options == {
        "pooled": True,
        "pooling": "mean",
        "normalized": True,
        "dimension": 384,
        "pad_token_id": 0,
        "max_seq_length": 256,
    }
    assert manifest.inputs == (
        {"name": "input_ids", "dtype": "int64", "pad": 0},
        {"name": "attention_mask", "dtype": "int64", "pad": 0},
        {"name": "token_type_ids", "dtype": "int64", "pad": 0},
    )
    assert manifest.outputs == ({"name": "embedding", "per_token": False},)
    assert manifest.versions["openvino"] == cpu.version()
    assert manifest.trace_inputs["sequence_lengths"] == "32,64,128"
    assert "0.1.0" in manifest.source_fingerprint


def test_a_new_bundle_passes_every_check_of_a_server(demo_qa_bundle: Bundle) -> None:
    """Found by name, verified whole."""
    found = bundle.find(demo_qa_bundle.path.parents[1], "demo-qa")
    assert found == demo_qa_bundle
    bundle.verify(found, chip="cpu", stack=cpu.STACK)


def test_the_bundles_tokenizer_neither_cuts_nor_pads(demo_embed_bundle: Bundle, tiny_bundle: Bundle) -> None:
    """Padding is ours, and cutting is the task's to say."""
    for made in (demo_embed_bundle, tiny_bundle):
        written = json.loads(made.tokenizer_path.read_bytes())
        assert written["truncation"] is None
        assert written["padding"] is None


def test_every_length_has_a_golden_row_that_fills_it(demo_qa_bundle: Bundle) -> None:
    """A fault at the last position shows only there."""
    manifest = demo_qa_bundle.manifest
    runtime = cpu.load(demo_qa_bundle)
    rows = Golden.load(demo_qa_bundle.golden_path, runtime.inputs, runtime.outputs, manifest.tolerance).rows
    lengths = {row.row.length for row in rows}
    assert {64, 128, 384} <= lengths
    assert min(lengths) < 64
    assert all(set(row.row.inputs[2]) == {0, 1} for row in rows)  # both segments


def test_the_report_has_every_shape_with_its_error(demo_qa_bundle: Bundle) -> None:
    """For a person and for a program."""
    report = json.loads((demo_qa_bundle.path / "report.json").read_bytes())
    assert [entry["shape"] for entry in report["shapes"]] == [
        "1x64",
        "1x128",
        "1x384",
        "4x64",
        "4x128",
        "4x384",
    ]
    assert all(0 < entry["error"] < report["tolerance"] for entry in report["shapes"])
    assert report["operators"]["not_compiled"] == {}
    assert report["operators"]["compiled"]["MatMul"] > 30
    assert "| 4x384 |" in (demo_qa_bundle.path / "report.md").read_text(encoding="utf-8")


def test_the_weights_are_kept_once_and_in_float32(demo_qa_bundle: Bundle) -> None:
    """Six shapes, one copy; half precision would be half as large."""
    base = Path(models.resolve("demo-qa").path or "") / "model.safetensors"
    size = (demo_qa_bundle.path / "model.bin").stat().st_size
    assert 0.98 < size / base.stat().st_size < 1.02


# --- fresh, stale, again --------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    tiny_bert(tmp_path / "model")
    return tmp_path


def test_a_fresh_bundle_is_returned_as_it_is(tiny: Path) -> None:
    """Running twice equals running once, and it is said."""
    first = traced(tiny, model_name="./model", **SMALL)
    lines: list[str] = []
    again = trace(settings(tiny, model_name="./model", **SMALL), progress=lines.append)
    assert again == first
    assert lines == [f"bundle model@1 is up to date: {first.path}"]


def test_a_stale_bundle_is_refused_with_the_keys_that_differ(tiny: Path) -> None:
    """And with the way out."""
    traced(tiny, model_name="./model", **SMALL)
    with pytest.raises(BundleError, match=r"batch_sizes \(traced '1,2', now '1,4'\).*--retrace"):
        traced(tiny, model_name="./model", batch_sizes="1,4", sequence_lengths="16,32")


def test_changed_files_of_the_model_make_its_bundle_stale(tiny: Path) -> None:
    """Same name, other weights."""
    traced(tiny, model_name="./model", **SMALL)
    tiny_bert(tiny / "model", seed=1)
    with pytest.raises(BundleError, match="model files"):
        traced(tiny, model_name="./model", **SMALL)


def test_retrace_makes_the_next_version_even_of_a_damaged_one(tiny: Path) -> None:
    """It is the way out that every refusal names."""
    first = traced(tiny, model_name="./model", **SMALL)
    (first.path / "manifest.json").write_text("{")
    with pytest.raises(BundleError, match="damaged"):
        traced(tiny, model_name="./model", **SMALL)
    second = trace(settings(tiny, model_name="./model", **SMALL), retrace=True)
    assert second.label == "model@2"
    assert bundle.find(second.path.parents[1], "model") == second


def test_a_pinned_version_cannot_be_traced_anew(tiny: Path) -> None:
    """The number would be another than the one that is served."""
    with pytest.raises(ConfigError, match=r"pins a version.*compiled_model=m"):
        traced(tiny, model_name="./model", compiled_model="m@1", **SMALL)


def test_compiled_model_names_the_bundle(tiny: Path) -> None:
    """Two bundles of one model need two names."""
    assert traced(tiny, model_name="./model", compiled_model="mine", **SMALL).label == "mine@1"


# --- limits of the model --------------------------------------------------------------------------


@pytest.mark.parametrize(("pad_token_id", "limit"), [(1, 512), (3, 510)])
def test_a_roberta_is_traced_up_to_its_usable_length(tmp_path: Path, pad_token_id: int, limit: int) -> None:
    """One more is refused; the full length works, with the model's own padding id and without segments."""
    tiny_roberta(tmp_path / "model", pad_token_id=pad_token_id)
    for asked in (514, 513, limit + 1):
        with pytest.raises(ConfigError, match=f"at most {limit}"):
            traced(tmp_path, model_name="./model", batch_sizes=1, sequence_lengths=asked)
    made = traced(tmp_path, model_name="./model", batch_sizes="1,2", sequence_lengths=f"64,{limit}")
    assert made.manifest.inputs == (
        {"name": "input_ids", "dtype": "int64", "pad": pad_token_id},
        {"name": "attention_mask", "dtype": "int64", "pad": 0},
    )
    runtime = cpu.load(made)
    rows = Golden.load(made.golden_path, runtime.inputs, runtime.outputs, made.manifest.tolerance).rows
    full = rows[-1]
    assert full.row.length == limit
    outputs = runtime.infer(pad([full.row], Shape(1, limit), runtime.inputs))
    assert full.complaint({name: array[0] for name, array in outputs.items()}) is None


def test_a_sentence_model_is_pooled_as_its_files_state(tmp_path: Path) -> None:
    """The length its authors made it for bounds the default lengths."""
    tiny_bert(tmp_path / "model", head=False)
    sentence_files(tmp_path / "model", {"pooling_mode": ["cls", "max"]}, modules=("Pooling",))
    made = traced(tmp_path, model_name="./model", batch_sizes=1)
    assert made.manifest.shapes == ((1, 16), (1, 24), (1, 32), (1, 40), (1, 48))
    options = made.manifest.task_options
    assert (options["pooling"], options["dimension"], options["normalized"]) == ("cls+max", 64, False)


def test_an_encoder_without_sentence_files_gives_every_tokens_state(tmp_path: Path) -> None:
    """As Hugging Face's feature extraction does."""
    tiny_bert(tmp_path / "model", head=False)
    made = traced(tmp_path, model_name="./model", **SMALL)
    assert made.manifest.task_options["pooled"] is False
    assert made.manifest.outputs == ({"name": "last_hidden_state", "per_token": True},)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tiny: Path) -> None:
    """OpenVINO would answer a token past the table with some number."""
    config = json.loads((tiny / "model" / "tokenizer.json").read_bytes())
    config["model"]["vocab"]["zz"] = 500
    (tiny / "model" / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="token ids up to 500"):
        traced(tiny, model_name="./model", **SMALL)


@pytest.mark.parametrize(("values", "chip"), [({}, "inf2"), ({}, "trn2")])
def test_another_chip_is_refused(tiny: Path, values: dict[str, Any], chip: str) -> None:
    """Never compiled for the CPU in silence."""
    (tiny / ".env").write_text(f"CHIP_TYPE={chip}\n")
    with pytest.raises(ConfigError, match=f"CHIP_TYPE={chip}"):
        traced(tiny, model_name="./model", **values)


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_compiled_model_that_answers_otherwise_is_not_kept(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence has shape, error and bound; the folder is as before."""
    real = compile_cpu.compile_model

    def spoiled(wrapped: Any, folder: Path, precision: str) -> Any:
        wrapped.module.model.qa_outputs.bias += 0.01
        return real(wrapped, folder, precision)

    monkeypatch.setattr(compile_cpu, "compile_model", spoiled)
    with pytest.raises(BundleError, match=r"nothing is kept.*shape 2x32.*error of 0\.0.*at most 0\.0001"):
        traced(tiny, model_name="./model", **SMALL)
    assert list((tiny / "traced-models").iterdir()) == []


def test_a_model_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """Not even a hidden folder."""
    tiny_bert(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="tokenizer"):
        traced(tmp_path, model_name="./model", **SMALL)
    assert not list((tmp_path / "traced-models").glob("*/.*"))


def test_without_torch_the_sentence_says_what_to_install(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A serving installation has none."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("torch", "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "corelane.tracing.wrap", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'corelane\[trace\]'"):
        traced(tiny, model_name="./model", **SMALL)


# --- classes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [{}, {"id2label": {0: "bad", 1: "so-so", 2: "good"}}, {"num_labels": 1}])
def test_a_classifier_is_served_with_the_scores_that_torch_gives(tmp_path: Path, labels: dict[str, Any]) -> None:
    """Its own labels in their order, through the compiled model and the task; the pipeline of transformers is right."""
    from transformers import PreTrainedTokenizerFast, pipeline

    from corelane.tasks import get, parse_parameters

    folder = tiny_classifier(tmp_path / "model", **labels)
    made = traced(tmp_path, model_name="./model", **SMALL)
    assert made.manifest.task == "text-classification"
    runtime = cpu.load(made)
    names = tuple(spec.name for spec in runtime.inputs)
    options = {**made.manifest.task_options, "labels": made.manifest.labels}
    task = get("text-classification")(made.tokenizer_path, names, 32, options)
    with models.quiet():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(made.tokenizer_path))
        right = pipeline("text-classification", str(folder), tokenizer=tokenizer, device="cpu")
    for text in ("a fine day", "no.", "the cat sat on a mat"):
        for parameters in ({"top_k": None}, {"top_k": 2, "function_to_apply": "none"}):
            asked = parse_parameters(task, parameters)
            encoded = task.encode(text, asked)
            (row,) = encoded.rows
            outputs = cut(runtime.infer(pad([row], Shape(1, 32), runtime.inputs)), 0, row.length, runtime.outputs)
            found = task.decode(encoded, [outputs], asked)
            expected = right(text, **parameters)
            assert [entry["label"] for entry in found] == [entry["label"] for entry in expected]
            assert [entry["score"] for entry in found] == pytest.approx(
                [entry["score"] for entry in expected], abs=1e-4
            )


def test_how_scores_are_made_is_kept_in_the_bundle(tmp_path: Path) -> None:
    """The model's configuration is not there any more when it is served."""
    tiny_classifier(tmp_path / "model", problem_type="multi_label_classification")
    made = traced(tmp_path, model_name="./model", **SMALL)
    assert made.manifest.task_options["problem_type"] == "multi_label_classification"
    assert made.manifest.labels == {"0": "LABEL_0", "1": "LABEL_1"}


# --- the process ----------------------------------------------------------------------------------


def test_tracing_a_folder_uses_no_network_and_prints_only_its_own_lines(tiny: Path) -> None:
    """No hub, no telemetry, nothing in the home; no library's advice between the lines of progress."""
    settings(tiny, model_name="./model", **SMALL)
    home = tiny / "home"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {"HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE_TRACE, str(tiny)],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-1] == "attempts: []"
    assert all(line.startswith(("loading", "compil", "shape", "bundle")) for line in lines[:-1])
    assert done.stderr == ""
    assert not (home / "intel").exists()


def test_a_fresh_bundle_is_found_without_torch(tiny: Path) -> None:
    """`deploy.sh` with nothing to do must not wait for its import."""
    traced(tiny, model_name="./model", **SMALL)
    code = (
        "import sys; from pathlib import Path; from corelane.settings import load;"
        "from corelane.tracing.trace import trace; trace(load(Path(sys.argv[1]), {}));"
        "print([name for name in ('torch', 'transformers', 'openvino') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tiny)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_trace_model_py_is_the_command(tiny: Path) -> None:
    """The container step and the command line are one."""
    script = Path(__file__).parents[2] / "trace-model" / "trace-model.py"
    settings(tiny, model_name="./model", **SMALL)
    environment = os.environ | {"PYTHONPATH": str(Path(bundle.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tiny, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == tiny / "traced-models" / "model" / "1"


# --- embeddings against the reference -------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # the other library's own
def test_cosines_are_those_of_sentence_transformers(demo_embed_bundle: Bundle) -> None:
    """Any two of the texts, in one padded batch and one by one, within 1e-4."""
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

    from corelane.tracing.examples import QUESTIONS, TEXTS, row_of

    texts = [*TEXTS, *QUESTIONS, "x", "Hello there! " * 30]
    reference = SentenceTransformer(str(models.resolve("demo-embed").path), device="cpu").encode(texts)
    tokenizer = Tokenizer.from_file(str(demo_embed_bundle.tokenizer_path))
    runtime = cpu.load(demo_embed_bundle)
    rows = [row_of(tokenizer.encode(text), runtime.inputs) for text in texts]
    alone = [runtime.infer(pad([row], Shape(1, 128), runtime.inputs))["embedding"][0] for row in rows]
    shared = [
        vector
        for at in range(0, len(rows), 4)
        for vector in runtime.infer(pad(rows[at : at + 4], Shape(4, 128), runtime.inputs))["embedding"][
            : len(rows[at : at + 4])
        ]
    ]
    expected = reference @ reference.T
    for vectors in (np.array(alone), np.array(shared)):
        np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-4)


def test_copying_a_bundle_keeps_it_good(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """It is a folder of files, and nothing in it names the machine it was made on."""
    target = tmp_path / "elsewhere" / "tiny" / "1"
    shutil.copytree(tiny_bundle.path, target)
    moved = bundle.find(tmp_path / "elsewhere", "tiny")
    bundle.verify(moved, chip="cpu", stack=cpu.STACK)
    cpu.load(moved).close()
    for path in target.rglob("*"):
        assert path.is_dir() or str(tiny_bundle.path).encode() not in path.read_bytes()

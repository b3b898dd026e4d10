"""`trace --simulate`: published or stated times become a bundle like any other, said to be simulated everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from corelane import bundle
from corelane.errors import BundleError, ConfigError
from corelane.runtimes import simulated
from corelane.runtimes.base import Shape
from corelane.runtimes.golden import Golden, replay
from corelane.tracing import simulate
from corelane.tracing.published import PUBLISHED
from corelane.tracing.trace import trace
from support.traced import settings, tiny_bert, traced
from support.traced import simulated as made


def test_the_bundle_is_whole_and_answers_its_golden_rows(tmp_path: Path) -> None:
    """A server can tell it from a real one only by its stack."""
    found = made(tmp_path)
    assert found == bundle.find(tmp_path / "traced-models", "inf2-bert-base")
    bundle.verify(found, chip="cpu", stack="simulated")
    runtime = simulated.load(found)
    golden = Golden.load(found.golden_path, runtime.inputs, runtime.outputs, found.manifest.tolerance)
    parity = replay(runtime, golden)
    assert parity.error == 0
    assert parity.costs[Shape(1, 128)] >= 1.00e-3
    assert parity.costs[Shape(8, 128)] >= 5.97e-3
    manifest = found.manifest
    assert (manifest.task, manifest.labels) == ("text-classification", {"0": "LABEL_0", "1": "LABEL_1"})


def test_report_and_progress_say_that_it_is_simulated(tmp_path: Path) -> None:
    """With the source of the times, so that nobody takes them for ours."""
    lines: list[str] = []
    found = simulate.simulate(settings(tmp_path), "inf2-bert-base", progress=lines.append)
    assert lines[0].startswith("SIMULATED")
    assert "compiled_model=inf2-bert-base" in lines[1]
    report = json.loads((found.path / "report.json").read_bytes())
    assert report["simulated"] is True
    assert "bert-base-uncased on inf2.xlarge" in report["source"]
    assert [(row["shape"], row["stated_ms"], row["rows_per_s"]) for row in report["shapes"]] == [
        ("1x128", 1.0, 1000.0),
        ("8x128", 5.97, 1340.0),
    ]
    page = (found.path / "report.md").read_text()
    assert "**SIMULATED" in page
    assert "| 8x128 | 5.97 |" in page


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_full_batch_takes_longer_than_one_row_and_less_than_its_rows_one_by_one(name: str) -> None:
    """Every row of the table: a slip of a digit shows here."""
    times = PUBLISHED[name].times_ms
    one, many = sorted(times)
    assert one == Shape(1, 128)
    assert times[one] < times[many] < many.batch * times[one]
    assert name.split("-")[0] in PUBLISHED[name].source


def test_times_can_be_stated(tmp_path: Path) -> None:
    """For a chip or a model that is not in the table, under any name."""
    found = made(tmp_path, "my-core", times="1x32=0.5, 4x32=1.25,4x64=2", bundle_name="mine")
    assert found.label == "mine@1"
    assert found.manifest.model == "simulated my-core"
    assert found.manifest.shapes == ((1, 32), (4, 32), (4, 64))
    assert json.loads((found.path / "times.json").read_bytes()) == {"1x32": 0.5, "4x32": 1.25, "4x64": 2.0}
    assert json.loads((found.path / "report.json").read_bytes())["source"] == "stated by hand"


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ("1x128", "'1x128' is not of the form"),
        ("1x128=", "not of the form"),
        ("1x128=0", "not of the form"),
        ("1x128=-1", "not of the form"),
        ("1x128=1.2.3", "not of the form"),
        ("0x128=1", "not of the form"),
        ("1x128=1,", "'' is not of the form"),
        ("1x4=1", "1x4 has too few tokens"),
        ("1x128=1,1x128=2", "1x128 stands there twice"),
    ],
)
def test_times_of_another_form_are_refused(times: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate.parse_times(times)
    assert words in str(caught.value)


def test_a_name_without_published_times_is_refused_with_those_that_have_some(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"inf9-bert .*inf2-bert-base.*--times"):
        made(tmp_path, "inf9-bert")


def test_the_same_again_is_the_same_bundle_and_other_times_are_a_new_version(tmp_path: Path) -> None:
    """Running twice equals running once; whatever else the configuration says makes nothing stale."""
    first = made(tmp_path)
    more = settings(tmp_path, batch_sizes="1,2", sequence_lengths=64, task="question-answering")
    assert simulate.simulate(more, "inf2-bert-base") == first
    assert bundle.stale_keys(first, bundle.trace_inputs(more), "other") == []
    assert made(tmp_path, times="1x128=2").label == "inf2-bert-base@2"
    assert simulate.simulate(settings(tmp_path), "inf2-bert-base", times="1x128=2", retrace=True).manifest.version == 3


def test_the_tokenizer_is_that_of_a_configured_folder(tmp_path: Path) -> None:
    """Its texts have its lengths; without one, the demo model's."""
    tiny_bert(tmp_path / "model")
    own = simulate.simulate(settings(tmp_path, model_name="./model"), "own", times="1x32=1")
    demo = made(tmp_path, "demo", times="1x32=1")
    assert "wordpiece" not in own.tokenizer_path.read_text().lower()
    assert "wordpiece" in demo.tokenizer_path.read_text().lower()


def test_a_model_is_never_traced_over_a_simulation_nor_the_other_way_round(tmp_path: Path) -> None:
    """The newest version under a name must not change its nature."""
    tiny_bert(tmp_path / "model")
    small = {"model_name": "./model", "batch_sizes": 1, "sequence_lengths": 16}
    made(tmp_path, "a", times="1x32=1")
    with pytest.raises(ConfigError, match="bundle a is simulated"):
        trace(settings(tmp_path, compiled_model="a", **small), retrace=True)
    traced(tmp_path, compiled_model="b", **small)
    with pytest.raises(ConfigError, match="bundle b is a traced model"):
        made(tmp_path, "b", times="1x32=1")


def test_a_model_that_is_called_like_a_simulation_is_not_taken_for_it(tmp_path: Path) -> None:
    """`trace` would otherwise say that the model's bundle is up to date."""
    tiny_bert(tmp_path / "model")
    made(tmp_path, "model", times="1x32=1")
    with pytest.raises(BundleError, match="model@1 is simulated and stands where the model's own would"):
        traced(tmp_path, model_name="./model")


def test_the_command_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    """It works where only serving is installed, with the demo model's files."""
    settings(tmp_path)
    code = (
        "import sys; from corelane.cli import main;"
        "code = main(['trace', '--simulate', 'trn1-bert-base', '--name', 'n']);"
        "print(code, [name for name in ('torch', 'transformers', 'openvino') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(tmp_path / "traced-models" / "n" / "1"), "0 []"]


def test_its_options_alone_are_refused(tmp_path: Path) -> None:
    """`--name` of a model's bundle is the key compiled_model."""
    settings(tmp_path)
    command = [sys.executable, "-m", "corelane", "trace", "--name", "x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--simulate NAME" in done.stderr

"""Bundles: versions, the strict manifest, everything that must not be loaded, and the atomic writer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from corelane import bundle
from corelane.bundle import Bundle, Manifest, Writer
from corelane.errors import BundleError, ConfigError, MissingBundleError

Copy = Callable[..., Bundle]

MANIFEST = Manifest(
    name="m",
    version=1,
    model="demo-qa",
    revision="",
    task="question-answering",
    labels={},
    task_options={"pad_token_id": 0},
    shapes=((1, 16), (2, 16)),
    inputs=({"name": "input_ids", "dtype": "int64", "pad": 0},),
    outputs=({"name": "start_logits", "per_token": True},),
    precision="float32",
    chip="cpu",
    stack="openvino",
    versions={"openvino": "2026.1.0"},
    instruction_set=None,
    compiler_arguments="",
    trace_inputs={"model_name": "demo-qa", "batch_sizes": "1,2"},
    source_fingerprint="f",
    created="2026-01-01T00:00:00+00:00",
    tolerance=1e-4,
    files={},
)


def write(root: Path, name: str = "m", content: str = "weights") -> Bundle:
    with Writer(root, name) as writer:
        (writer.folder / "model.bin").write_text(content)
        return writer.commit(MANIFEST)


def verify(found: Bundle, chip: str = "cpu", stack: str = "openvino") -> None:
    bundle.verify(found, chip=chip, stack=stack)


# --- finding --------------------------------------------------------------------------------------


def test_what_was_written_is_read_back_equal(tmp_path: Path) -> None:
    """Tuples, numbers and nulls survive JSON."""
    made = write(tmp_path)
    assert bundle.find(tmp_path, "m") == made
    assert made.label == "m@1"
    verify(made)


def test_the_newest_version_is_the_highest_number(tmp_path: Path) -> None:
    """As text, 9 would be newer than 10."""
    for _ in range(10):
        write(tmp_path)
    assert bundle.find(tmp_path, "m").manifest.version == 10
    assert bundle.find(tmp_path, "m@9").manifest.version == 9


def test_no_bundle_at_all_is_an_error_of_its_own_that_names_what_exists(tmp_path: Path) -> None:
    """A deployment traces on this one, and on no other."""
    write(tmp_path, "other")
    with pytest.raises(MissingBundleError, match="other"):
        bundle.find(tmp_path, "m")
    with pytest.raises(MissingBundleError, match="no bundle at all"):
        bundle.find(tmp_path / "nowhere", "m")


def test_a_version_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    """It is a mistake in the configuration, not a reason to trace."""
    write(tmp_path)
    write(tmp_path)
    with pytest.raises(BundleError, match="1, 2") as caught:
        bundle.find(tmp_path, "m@3")
    assert not isinstance(caught.value, MissingBundleError)


@pytest.mark.parametrize("label", ["", "../m", "m@", "m@x", "m@0", "m@1@2", ".partial-x", "a/b"])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, label: str) -> None:
    """A name never leads out of the folder of bundles."""
    with pytest.raises(ConfigError, match="NAME@VERSION"):
        bundle.find(tmp_path, label)


def test_a_single_traced_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    """The sample's configuration names one."""
    with pytest.raises(ConfigError, match="Neuron"):
        bundle.find(tmp_path, "compiled-model-bs-4.pt")


# --- the manifest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Manifest)] + ["format", "checksum"])
def test_a_manifest_without_one_of_its_fields_is_refused(tmp_path: Path, field: str) -> None:
    """A default made up on reading would be served as if it had been traced."""
    made = write(tmp_path)
    values = json.loads((made.path / "manifest.json").read_bytes())
    del values[field]
    (made.path / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(BundleError, match=field):
        bundle.read(made.path)


def test_a_manifest_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    """What an older release does not know may matter."""
    made = write(tmp_path)
    values = json.loads((made.path / "manifest.json").read_bytes()) | {"quantised": True}
    (made.path / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(BundleError, match="unknown fields: 'quantised'"):
        bundle.read(made.path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shapes", []),
        ("shapes", [[1]]),
        ("shapes", [[0, 16]]),
        ("shapes", [[True, 16]]),
        ("version", "1"),
        ("inputs", [{"name": "x"}]),
        ("outputs", [{"name": "x", "per_token": 1}]),
        ("tolerance", 2.0),
        ("files", {"a": 1}),
        ("task", None),
        ("format", 2),
    ],
)
def test_a_manifest_with_a_value_of_the_wrong_form_is_refused(tmp_path: Path, field: str, value: object) -> None:
    """Named here, and not as a type error in the middle of a start."""
    made = write(tmp_path)
    values = json.loads((made.path / "manifest.json").read_bytes()) | {field: value}
    (made.path / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(BundleError, match=field):
        bundle.read(made.path)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_manifest_that_is_no_json_object_is_refused(tmp_path: Path, data: bytes) -> None:
    """Cut short, or another file altogether."""
    made = write(tmp_path)
    (made.path / "manifest.json").write_bytes(data)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        bundle.read(made.path)


# --- verifying ------------------------------------------------------------------------------------


def test_a_whole_bundle_passes(copied: Copy) -> None:
    """The control for all tests below."""
    verify(copied())


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"chip": "inf1"}, ("inf1", "cpu")), ({"stack": "neuronx-2.1"}, ("neuronx-2.1", "openvino"))],
    ids=["chip", "stack"],
)
def test_another_chip_or_stack_is_refused_with_expected_and_found(
    copied: Copy, changes: dict[str, str], words: tuple[str, ...]
) -> None:
    """Whoever copied the bundle here needs both values."""
    with pytest.raises(BundleError) as caught:
        verify(copied(**changes))
    assert all(word in str(caught.value) for word in words)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_one_flipped_bit_in_any_file_is_found(copied: Copy) -> None:
    """The manifest included: it guards the others and itself."""
    made = copied()
    for relative in made.manifest.files:
        path = made.path / relative
        for place in (0, path.stat().st_size // 2, path.stat().st_size - 1):
            flip(path, place)
            with pytest.raises(BundleError, match=rf"{relative}.*expected.*found"):
                verify(made)
            flip(path, place)
    verify(made)


def test_one_flipped_bit_anywhere_in_the_manifest_is_found(copied: Copy) -> None:
    """Every byte of it, save that one blank more or less means nothing in JSON."""
    made = copied()
    manifest = made.path / "manifest.json"
    whole = manifest.read_bytes()
    for place in range(len(whole)):
        flip(manifest, place)
        same = _loads_or_none(manifest.read_bytes()) == json.loads(whole)
        if not same:
            with pytest.raises(BundleError):
                verify(bundle.read(made.path))
        manifest.write_bytes(whole)


def _loads_or_none(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_a_file_cut_at_half_is_refused(copied: Copy) -> None:
    """A full disk or a broken copy."""
    made = copied()
    size = (made.path / "model.bin").stat().st_size
    os.truncate(made.path / "model.bin", size // 2)
    with pytest.raises(BundleError, match=r"model\.bin"):
        verify(made)


def test_a_missing_file_is_refused_by_name(copied: Copy) -> None:
    """And not as an error of the runtime that wanted it."""
    made = copied()
    (made.path / "model.bin").unlink()
    with pytest.raises(BundleError, match=r"misses model\.bin"):
        verify(made)


def test_a_stray_file_is_refused_by_name(copied: Copy) -> None:
    """Nobody vouches for it."""
    made = copied()
    (made.path / "tokenizer" / "extra.json").write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer/extra\.json"):
        verify(made)


def test_a_folder_in_a_files_place_is_refused(copied: Copy) -> None:
    """The sample's users met this as a TypeError."""
    made = copied()
    (made.path / "model.bin").unlink()
    (made.path / "model.bin").mkdir()
    with pytest.raises(BundleError, match="a folder where the file"):
        verify(made)


@pytest.mark.parametrize("name", ["model.bin", "tokenizer"])
def test_a_link_is_refused(copied: Copy, tmp_path: Path, name: str) -> None:
    """It leads out of what was checked, even when it leads to the right bytes."""
    made = copied()
    (made.path / name).rename(tmp_path / "elsewhere")
    (made.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="a link"):
        verify(made)


@pytest.mark.parametrize("place", ["", "..", "model.bin", "tokenizer", "manifest.json"])
def test_what_every_user_may_write_is_refused(copied: Copy, place: str) -> None:
    """Another user could swap the model after it was checked."""
    made = copied()
    path = made.path / place
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(BundleError, match="every user of this machine may write"):
        verify(made)


def test_what_another_user_owns_is_refused(copied: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner can change it at any time; root is trusted anyway."""
    made = copied()
    if os.geteuid() == 0:
        os.chown(made.path / "model.bin", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(BundleError, match="12345"):
        verify(made)


def test_a_bundle_under_another_name_is_refused(copied: Copy) -> None:
    """It would answer as name@version, and be another."""
    made = copied()
    moved = made.path.rename(made.path.with_name("2"))
    with pytest.raises(BundleError, match=r"tiny@1 .*tiny@2"):
        verify(bundle.read(moved))


# --- stale or fresh -------------------------------------------------------------------------------


def test_the_keys_that_differ_are_named_with_both_values(tmp_path: Path) -> None:
    """A key that one side lacks counts as empty."""
    made = write(tmp_path)
    today = {"model_name": "demo-qa", "batch_sizes": "1,8", "task": "x"}
    assert bundle.stale_keys(made, today, "f") == [("batch_sizes", "1,2", "1,8"), ("task", "", "x")]


def test_changed_model_files_are_named_too(tmp_path: Path) -> None:
    """Same settings, other weights in the folder."""
    made = write(tmp_path)
    same = made.manifest.trace_inputs
    assert bundle.stale_keys(made, same, "other") == [("model files", "f", "other")]
    assert bundle.stale_keys(made, same) == []


# --- writing --------------------------------------------------------------------------------------


def test_without_a_commit_nothing_is_left(tmp_path: Path) -> None:
    """A failed trace is as if it had not been."""
    with contextlib.suppress(ZeroDivisionError), Writer(tmp_path, "m") as writer:
        (writer.folder / "model.bin").write_text("x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_only_what_the_next_one_removes(tmp_path: Path) -> None:
    """A hidden folder is no version, and does not pile up."""
    code = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from corelane.bundle import Writer
        with Writer(Path(sys.argv[1]), "m") as writer:
            (writer.folder / "model.bin").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [path.name.startswith(".partial-") for path in (tmp_path / "m").iterdir()] == [True]
    with pytest.raises(MissingBundleError):
        bundle.find(tmp_path, "m")
    write(tmp_path)
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["1"]


def test_two_writers_at_once_make_two_versions(tmp_path: Path) -> None:
    """The second neither removes the first one's work nor writes over it."""
    with Writer(tmp_path, "m") as first, Writer(tmp_path, "m") as second:
        (first.folder / "model.bin").write_text("first")
        (second.folder / "model.bin").write_text("second")
        labels = [second.commit(MANIFEST).label, first.commit(MANIFEST).label]
    assert labels == ["m@1", "m@2"]
    assert (tmp_path / "m" / "2" / "model.bin").read_text() == "first"


def test_a_bundle_is_not_writable_by_others_whatever_the_umask(tmp_path: Path) -> None:
    """Else a server would refuse what was traced a moment ago."""
    before = os.umask(0)
    try:
        made = write(tmp_path / "new")
    finally:
        os.umask(before)
    verify(made)
    assert (made.path / "model.bin").stat().st_mode & 0o777 == 0o664


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """A file stands where the folder should."""
    (tmp_path / "models").write_text("")
    with pytest.raises(ConfigError, match="path_to_traced_models"):
        write(tmp_path / "models")

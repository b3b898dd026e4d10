"""The bundle: the folder that tracing makes and a server loads. Written atomically, read strictly, verified
whole.

    <root>/<name>/<version>/   manifest.json   what it is, and the sha256 of every other file
                               model.xml, model.bin, tokenizer/, golden.safetensors, report.json, report.md

Versions are integers; the newest is the highest number. A leaf: standard library only, so that the command
line can read a bundle before anything else is installed. What the files mean is for runtimes and tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corelane.errors import BundleError, ConfigError, MissingBundleError

FORMAT = 1
MANIFEST = "manifest.json"
# The stack of a bundle without a model: a core that takes stated times (runtimes/simulated.py).
SIMULATED = "simulated"
PARTIAL_PREFIX = ".partial-"

# The settings a bundle depends on: when one of them changes, the bundle is stale.
TRACE_KEYS = (
    "model_name",
    "model_revision",
    "task",
    "batch_sizes",
    "sequence_lengths",
    "precision",
    "chip_type",
    "compiler_args",
    "auto_cast",
    "auto_cast_type",
    "optlevel",
    "lnc",
)
# How a change of the model's own files is named among the stale keys.
FILES_KEY = "model files"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[1-9][0-9]*")
_HASH_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself. `files`: relative path (with /) -> sha256 of every file but the
    manifest."""

    name: str
    version: int
    model: str
    revision: str
    task: str
    labels: dict[str, str]
    task_options: dict[str, Any]
    shapes: tuple[tuple[int, int], ...]  # (batch, sequence)
    inputs: tuple[dict[str, Any], ...]  # {"name", "dtype", "pad"}, in the order of a row's arrays
    outputs: tuple[dict[str, Any], ...]  # {"name", "per_token"}
    precision: str
    chip: str
    stack: str
    versions: dict[str, str]
    instruction_set: str | None  # None: data only, no native code inside
    compiler_arguments: str
    trace_inputs: dict[str, str]
    source_fingerprint: str
    created: str  # UTC, ISO 8601
    tolerance: float  # the bound on `golden` errors, see runtimes/golden.py
    files: dict[str, str]


@dataclass(frozen=True)
class Bundle:
    path: Path
    manifest: Manifest

    @property
    def label(self) -> str:
        return f"{self.manifest.name}@{self.manifest.version}"

    @property
    def is_simulated(self) -> bool:
        return self.manifest.stack == SIMULATED

    @property
    def model_path(self) -> Path:
        return self.path / "model.xml"

    @property
    def tokenizer_path(self) -> Path:
        return self.path / "tokenizer" / "tokenizer.json"

    @property
    def golden_path(self) -> Path:
        return self.path / "golden.safetensors"


# --- finding and reading --------------------------------------------------------------------------


def split_label(label: str) -> tuple[str, int | None]:
    """`NAME[@VERSION]` -> (name, version or None)."""
    if label.endswith(".pt"):
        raise ConfigError(
            f"compiled_model={label} asks for a single traced .pt file, and only the Neuron chips run those;"
            " on chip_type=cpu trace the model with `corelane trace` and name its bundle"
        )
    name, at, version = label.partition("@")
    if not _NAME.fullmatch(name) or (at and not _VERSION.fullmatch(version)):
        raise ConfigError(
            f"compiled_model={label} is not of the form NAME or NAME@VERSION, with a name of letters, digits,"
            " dots, dashes and underscores, and a version number from 1 on"
        )
    return name, int(version) if at else None


def versions(root: Path, name: str) -> list[int]:
    """The versions that stand under a name, ascending by number."""
    try:
        entries = list((root / name).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(entry.name) for entry in entries if _VERSION.fullmatch(entry.name))


def names(root: Path) -> list[str]:
    """The names under which at least one version stands."""
    try:
        entries = sorted(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [entry.name for entry in entries if _NAME.fullmatch(entry.name) and versions(root, entry.name)]


def find(root: Path, label: str) -> Bundle:
    """The bundle `NAME` (its newest version) or `NAME@VERSION`; MissingBundleError when NAME has none at
    all."""
    name, version = split_label(label)
    known = versions(root, name)
    if not known:
        others = ", ".join(names(root)) or "no bundle at all"
        raise MissingBundleError(f"no bundle {name} in {root} ({others} there); make it with `corelane trace`")
    if version is not None and version not in known:
        raise BundleError(f"bundle {label} does not exist in {root}; its versions are {_list(known)}")
    return read(root / name / str(known[-1] if version is None else version))


def read(path: Path) -> Bundle:
    """The bundle in this folder. Every field of the manifest must be there, and no other."""
    file = path / MANIFEST
    try:
        raw = json.loads(file.read_bytes())
    except OSError as error:
        raise BundleError(f"{file} cannot be read ({error.strerror}); trace the model again") from error
    except ValueError as error:
        raise BundleError(f"{file} is damaged ({error}); trace the model again") from error
    return Bundle(path, _parse(raw, file))


def _parse(raw: Any, file: Path) -> Manifest:
    again = "trace the model again, with `--retrace`"
    if not isinstance(raw, dict):
        raise BundleError(f"{file} holds no JSON object; {again}")
    if raw.get("format") != FORMAT:
        raise BundleError(f"{file} has format {raw.get('format')!r} and this release reads format {FORMAT}; {again}")
    fields = dataclasses.fields(Manifest)
    expected = {field.name for field in fields} | {"format", "checksum"}
    if missing := sorted(expected - raw.keys()):
        raise BundleError(f"{file} lacks {', '.join(missing)}; {again}")
    if unknown := sorted(raw.keys() - expected):
        raise BundleError(f"{file} has unknown fields: {', '.join(map(repr, unknown))}; {again}")
    values = {field.name: raw[field.name] for field in fields}
    for name, (is_right, wanted) in _FIELD_FORMS.items():
        if not is_right(values[name]):
            raise BundleError(f"{file}: {name} is {values[name]!r:.80}, expected {wanted}; {again}")
    for name in set(values) - _FIELD_FORMS.keys():
        if not isinstance(values[name], str):
            raise BundleError(f"{file}: {name} is {values[name]!r:.80}, expected a text; {again}")
    values["shapes"] = tuple((batch, sequence) for batch, sequence in values["shapes"])
    values["inputs"] = tuple(values["inputs"])
    values["outputs"] = tuple(values["outputs"])
    return Manifest(**values)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _is_shapes(value: Any) -> bool:
    return bool(value) and isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_is_count, pair)) for pair in value
    )  # fmt: skip


def _is_specs(**kinds: type) -> Any:
    def check(value: Any) -> bool:
        return bool(value) and isinstance(value, list) and all(
            isinstance(spec, dict)
            and spec.keys() == kinds.keys()
            and all(type(spec[key]) is kind for key, kind in kinds.items())
            for spec in value
        )  # fmt: skip

    return check


# Fields that are more than a plain text: what is right, and how it is called in the sentence.
_FIELD_FORMS: dict[str, tuple[Any, str]] = {
    "version": (_is_count, "a number from 1 on"),
    "labels": (_is_texts, "an object of texts"),
    "task_options": (lambda value: isinstance(value, dict), "an object"),
    "shapes": (_is_shapes, "a list of [batch, sequence]"),
    "inputs": (_is_specs(name=str, dtype=str, pad=int), "a list of {name, dtype, pad}"),
    "outputs": (_is_specs(name=str, per_token=bool), "a list of {name, per_token}"),
    "versions": (_is_texts, "an object of texts"),
    "instruction_set": (lambda value: value is None or isinstance(value, str), "a text or null"),
    "trace_inputs": (_is_texts, "an object of texts"),
    "tolerance": (lambda value: type(value) is float and 0 < value < 1, "a number between 0 and 1"),
    "files": (_is_texts, "an object of sha256 sums"),
}


# --- verifying ------------------------------------------------------------------------------------


def verify(bundle: Bundle, *, chip: str, stack: str) -> None:
    """Refuse a bundle that is for another chip or stack, that others may change, or that has changed since
    tracing."""
    for what, expected, found in (
        ("chip", chip, bundle.manifest.chip),
        ("stack", stack, bundle.manifest.stack),
    ):
        if expected != found:
            raise BundleError(
                f"bundle {bundle.label} was traced for {what} {found} and this server runs {what} {expected};"
                f" trace the model again with chip_type={chip}"
            )
    _verify_identity(bundle)
    present = _walk(bundle)
    listed = set(bundle.manifest.files)
    if missing := sorted(listed - present):
        raise _damaged(bundle, f"misses {_list(missing)}")
    if stray := sorted(present - listed - {MANIFEST}):
        raise _damaged(bundle, f"has files that its manifest does not list: {_list(stray)}")
    for relative, expected in sorted(bundle.manifest.files.items()):
        found = sha256(bundle.path / relative)
        if found != expected:
            raise _damaged(
                bundle,
                f"has a changed {relative} (sha256 expected {expected[:12]}..., found {found[:12]}...)",
            )
    recorded = json.loads((bundle.path / MANIFEST).read_bytes()).get("checksum")
    if recorded != checksum(bundle.manifest):
        raise _damaged(bundle, f"has a {MANIFEST} that was changed after tracing: its own checksum is wrong")


def _verify_identity(bundle: Bundle) -> None:
    """The manifest speaks of the folder it stands in: a copied or renamed bundle would answer under a wrong
    name."""
    standing = f"{bundle.path.parent.name}@{bundle.path.name}"
    if bundle.label != standing:
        raise _damaged(bundle, f"stands in the folder of {standing}")


def _walk(bundle: Bundle) -> set[str]:
    """Relative paths of all files inside; refuses links, special files, and whatever others may write."""
    _check_owner(bundle, bundle.path.parent, os.stat(bundle.path.parent))
    present = set()
    for folder, folders, files in os.walk(bundle.path, followlinks=False):
        here = Path(folder)
        _check_owner(bundle, here, os.stat(here))
        for name in (*folders, *files):
            path = here / name
            relative = path.relative_to(bundle.path).as_posix()
            status = os.lstat(path)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                kind = "a link" if stat.S_ISLNK(status.st_mode) else "no plain file"
                raise _damaged(bundle, f"has {relative}, which is {kind}")
            if stat.S_ISREG(status.st_mode):
                _check_owner(bundle, path, status)
                present.add(relative)
            elif relative in bundle.manifest.files:
                raise _damaged(bundle, f"has a folder where the file {relative} belongs")
    return present


def _check_owner(bundle: Bundle, path: Path, status: os.stat_result) -> None:
    if status.st_mode & stat.S_IWOTH:
        raise BundleError(
            f"bundle {bundle.label} is not safe to load: every user of this machine may write {path}"
            f" (mode {stat.S_IMODE(status.st_mode):04o}, expected without the others' write bit); check it"
            " and"
            f" run `chmod -R o-w {bundle.path.parent}`"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise BundleError(
            f"bundle {bundle.label} is not safe to load: {path} belongs to user {status.st_uid}, expected"
            " root"
            f" or user {os.geteuid()}, who runs this; check it and change its owner"
        )


def _damaged(bundle: Bundle, what: str) -> BundleError:
    return BundleError(f"bundle {bundle.label} in {bundle.path} {what}; trace the model again with `--retrace`")


def _list(values: list[Any]) -> str:
    shown = ", ".join(map(str, values[:5]))
    return shown if len(values) <= 5 else f"{shown} and {len(values) - 5} more"


# --- is it still what the configuration asks for? -------------------------------------------------


def trace_inputs(settings: Any) -> dict[str, str]:
    """The settings that a bundle depends on, as texts."""
    return {key: _text(getattr(settings, key)) for key in TRACE_KEYS}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def stale_keys(
    bundle: Bundle, trace_inputs: Mapping[str, str], source_fingerprint: str | None = None
) -> list[tuple[str, str, str]]:
    """(key, the bundle's value, today's value) of all that differ. Without a fingerprint the model's files
    are not compared: a server needs only the bundle. Nothing of the configuration decides a simulated one."""
    if bundle.is_simulated:
        return []
    then = bundle.manifest.trace_inputs
    keys = dict.fromkeys((*trace_inputs, *then))
    changed = [(key, then.get(key, ""), trace_inputs.get(key, "")) for key in keys]
    if source_fingerprint is not None:
        changed.append((FILES_KEY, bundle.manifest.source_fingerprint, source_fingerprint))
    return [change for change in changed if change[1] != change[2]]


def stale_error(bundle: Bundle, changed: list[tuple[str, str, str]]) -> BundleError:
    """The sentence for a bundle whose trace inputs are not today's."""
    differences = ", ".join(
        f"{key} (traced {was or 'empty'!r:.60}, now {now or 'empty'!r:.60})" for key, was, now in changed
    )
    return BundleError(
        f"bundle {bundle.label} is stale, these differ from today's configuration: {differences};"
        " run with `--retrace` to make a new version, or set them back"
    )


def check_asked_for(bundle: Bundle, compiled_model: str) -> None:
    """A simulated bundle is served only where compiled_model names it, never because a model is called the same."""
    if bundle.is_simulated and not compiled_model:
        raise BundleError(
            f"bundle {bundle.label} is simulated and stands where the model's own would; set"
            f" compiled_model={bundle.manifest.name} to serve the simulation, or another name for the model's bundle"
        )


# --- writing --------------------------------------------------------------------------------------


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_HASH_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror})") from error
    return digest.hexdigest()


def checksum(manifest: Manifest) -> str:
    """sha256 of the manifest's values, whatever the white space in the file: a flipped bit in it is found as
    well."""
    canonical = json.dumps(dataclasses.asdict(manifest), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    values = {"format": FORMAT, **dataclasses.asdict(manifest), "checksum": checksum(manifest)}
    (folder / MANIFEST).write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")


class Writer:
    """Makes one version: files go into `folder`, a hidden sibling; `commit` renames it into place.

    Left without a commit, nothing remains. After a crash only a `.partial-*` folder does, and the next Writer
    of that name removes it: a live writer holds a lock on its folder, a dead one does not. On the CPU one
    compilation serves all shapes and takes seconds, so there is no finished part worth keeping for a second
    attempt.
    """

    def __init__(self, root: Path, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot be a bundle's name: letters, digits, dots, dashes, underscores")
        self._home = root / name
        self._name = name
        self._lock: int | None = None
        self.folder = Path()

    def __enter__(self) -> Writer:
        try:
            self._home.mkdir(mode=0o775, parents=True, exist_ok=True)
            home = os.open(self._home, os.O_RDONLY)
            try:
                fcntl.flock(home, fcntl.LOCK_EX)  # nobody tidies up between our folder's making and its lock
                self._remove_dead()
                self.folder = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=self._home))
                self._lock = os.open(self.folder, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            finally:
                os.close(home)
        except OSError as error:
            raise ConfigError(
                f"no bundle can be written to {self._home} ({error.strerror}); see path_to_traced_models"
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        if self.folder.name.startswith(PARTIAL_PREFIX):
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # stays when it holds versions
                self._home.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def commit(self, manifest: Manifest) -> Bundle:
        """Fill in `version` and `files`, put the manifest beside the files, and make the folder the next
        version."""
        files = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path != self.folder / MANIFEST:
                files[path.relative_to(self.folder).as_posix()] = sha256(path)
                _flush(path)
        while True:
            version = max(versions(self._home.parent, self._name), default=0) + 1
            final = dataclasses.replace(manifest, name=self._name, version=version, files=files)
            write_manifest(self.folder, final)
            self._set_modes()
            _flush(self.folder / MANIFEST)
            target = self._home / str(version)
            try:
                self.folder.rename(target)
            except OSError:
                if not target.exists():
                    raise
                continue  # another trace took this number just now
            self.folder = target
            _flush(self._home)
            return Bundle(target, final)

    def _set_modes(self) -> None:
        """Some libraries write private files: the umask decides who may read a bundle, and others never write
        it."""
        mode = 0o777 & ~_umask() & ~stat.S_IWOTH
        self.folder.chmod(mode)
        for path in self.folder.rglob("*"):
            path.chmod(mode if path.is_dir() else mode & 0o666)

    def _remove_dead(self) -> None:
        for leftover in self._home.glob(PARTIAL_PREFIX + "*"):
            handle = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            finally:
                os.close(handle)
            shutil.rmtree(leftover, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    """A power cut after the rename must not leave a version with empty files."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

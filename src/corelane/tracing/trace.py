"""A configured model -> a bundle: resolve, load, compile, compare with the original in every shape, write."""

from __future__ import annotations

import importlib
import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from corelane import __version__, bundle, models
from corelane.bundle import Bundle, Manifest
from corelane.errors import BundleError, ConfigError, MissingBundleError
from corelane.runtimes import cpu
from corelane.runtimes.base import Row, Shape
from corelane.runtimes.golden import TOLERANCE_FLOAT32, Checked, Golden, GoldenRow, Parity, replay
from corelane.tracing import report, shapes
from corelane.tracing.examples import golden_rows

if TYPE_CHECKING:
    from corelane.tracing.wrap import Wrapped

Progress = Callable[[str], None]

# Kept beside tokenizer.json: which of its tokens are special, and why.
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")


def trace(settings: Any, *, retrace: bool = False, progress: Progress | None = None) -> Bundle:
    """The configured model's bundle: the one that is there if it is fresh, else (or with `retrace`) a new
    version.

    `progress` gets a line per step. BundleError: the one that is there is stale or damaged, or the compiled
    model is not close enough to the original; nothing is left behind then.
    """
    say: Progress = progress or (lambda line: None)
    _refuse_what_is_not_carried(settings)
    root = settings.path_to_traced_models
    name, version = bundle.split_label(models.bundle_label(settings.compiled_model, settings.model_name, settings.root))
    source = models.resolve(settings.model_name, settings.model_revision, root=settings.root)
    if not retrace and (present := _present(root, settings, source, name, version)):
        say(f"bundle {present.label} is up to date: {present.path}")
        return present
    if version is not None:
        raise ConfigError(
            f"compiled_model={settings.compiled_model} pins a version, and a new trace gets the next free"
            " number;"
            f" set compiled_model={name}"
        )
    wrapping = _import_tracing()
    with models.quiet(), bundle.Writer(root, name) as writer:
        made = writer.commit(_make(settings, source, wrapping, name, writer.folder, say))
    say(f"bundle {made.label} is ready: {made.path}")
    return made


def _refuse_what_is_not_carried(settings: Any) -> None:
    if settings.chip_type != "cpu":
        raise ConfigError(
            f"CHIP_TYPE={settings.chip_type} cannot be traced for yet, this version compiles for cpu; set CHIP_TYPE=cpu"
        )
    if settings.precision != "float32":
        raise ConfigError(
            f"precision={settings.precision} is not carried yet, this version compiles in float32; set"
            " precision=float32"
        )


def _present(root: Path, settings: Any, source: models.Source, name: str, version: int | None) -> Bundle | None:
    """The bundle that is there, fresh and whole; None when there is none."""
    try:
        present = bundle.find(root, name if version is None else f"{name}@{version}")
    except MissingBundleError:
        return None
    changed = bundle.stale_keys(present, bundle.trace_inputs(settings), source.fingerprint)
    if changed:
        raise bundle.stale_error(present, changed)
    bundle.verify(present, chip=settings.chip_type, stack=cpu.STACK)
    return present


def _make(
    settings: Any, source: models.Source, wrapping: ModuleType, name: str, folder: Path, say: Progress
) -> Manifest:
    """Fill `folder` and return the manifest for it, but for version and checksums."""
    say(f"loading {source.name}")
    loaded = models.load(source, settings.task)
    wrapped = wrapping.wrap(loaded)
    sequences = _sequences(settings, loaded)
    _check_vocabulary(source, loaded)

    rows = golden_rows(loaded.tokenizer, loaded.task, wrapped.inputs, sequences)
    golden = Golden(tuple(GoldenRow(row, _reference(wrapped, row), TOLERANCE_FLOAT32) for row in rows))
    golden.save(folder / "golden.safetensors", wrapped.inputs)
    _write_tokenizer(loaded, folder / "tokenizer")

    say(f"compiling for {loaded.task}, batch sizes {_list(settings.batch_sizes)}, sequence lengths {_list(sequences)}")
    begun = time.perf_counter()
    operators = _compile(wrapped, folder)
    compile_s = time.perf_counter() - begun
    size_bytes = sum((folder / file).stat().st_size for file in ("model.xml", "model.bin"))
    say(f"compiled in {compile_s:.1f} s, {size_bytes / 2**20:.1f} MiB")

    manifest = Manifest(
        name=name,
        version=1,
        model=settings.model_name,
        revision=loaded.revision,
        task=loaded.task,
        labels={},
        task_options=wrapped.task_options | _limits(loaded),
        shapes=tuple((batch, sequence) for batch in sorted(settings.batch_sizes) for sequence in sequences),
        inputs=tuple({"name": spec.name, "dtype": spec.dtype, "pad": spec.pad} for spec in wrapped.inputs),
        outputs=tuple({"name": spec.name, "per_token": spec.per_token} for spec in wrapped.outputs),
        precision=settings.precision,
        chip=settings.chip_type,
        stack=cpu.STACK,
        versions=_versions(),
        instruction_set=None,
        compiler_arguments="",
        trace_inputs=bundle.trace_inputs(settings),
        source_fingerprint=source.fingerprint,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tolerance=TOLERANCE_FLOAT32,
        files={},
    )
    parity = _check(Bundle(folder, manifest), golden, say)
    report.write(folder, manifest, report.Report(compile_s, size_bytes, operators, Counter(), parity))
    return manifest


def _import_tracing() -> ModuleType:
    """tracing.wrap, which imports torch: only when there is something to trace."""
    try:
        importlib.import_module("transformers")
        return importlib.import_module("corelane.tracing.wrap")
    except ImportError as error:
        raise ConfigError(
            f"tracing needs torch and transformers, and {error.name} is not installed; run `pip install"
            " 'corelane[trace]'`"
        ) from error


def _compile(wrapped: Wrapped, folder: Path) -> Counter[str]:
    from corelane.tracing import compile_cpu

    return compile_cpu.compile_model(wrapped, folder)


def _sequences(settings: Any, loaded: models.Loaded) -> tuple[int, ...]:
    return shapes.choose_sequences(
        settings.sequence_lengths,
        loaded.task,
        limit=shapes.usable_sequence(loaded.config),
        max_seq_length=loaded.sentence.max_seq_length if loaded.sentence else None,
    )


def _limits(loaded: models.Loaded) -> dict[str, Any]:
    """Where the model's own files say to cut a text: a longer one would get another vector than its
    authors'."""
    return {"max_seq_length": loaded.sentence.max_seq_length} if loaded.sentence else {}


def _check_vocabulary(source: models.Source, loaded: models.Loaded) -> None:
    """A token id past the embedding table is an error in torch and a silent wrong answer elsewhere."""
    highest = max(loaded.tokenizer.get_vocab().values(), default=0)
    rows = getattr(loaded.config, "vocab_size", None)
    if rows is not None and highest >= rows:
        raise ConfigError(
            f"model_name={source.name}: its tokenizer has token ids up to {highest} and its weights know"
            f" {rows};"
            " bring the tokenizer that belongs to it"
        )


def _write_tokenizer(loaded: models.Loaded, folder: Path) -> None:
    folder.mkdir()
    loaded.tokenizer.save(str(folder / "tokenizer.json"))
    for name in TOKENIZER_FILES:
        if (loaded.tokenizer_dir / name).is_file():
            shutil.copyfile(loaded.tokenizer_dir / name, folder / name)


def _reference(wrapped: Wrapped, row: Row) -> dict[str, Any]:
    """The uncompiled model's answer: one row by itself, without padding, in float32."""
    import torch

    inputs = {
        spec.name: torch.from_numpy(array).unsqueeze(0) for spec, array in zip(wrapped.inputs, row.inputs, strict=True)
    }
    with torch.no_grad():
        answers = wrapped.module(**inputs)
    return {spec.name: answer[0].numpy() for spec, answer in zip(wrapped.outputs, answers, strict=True)}


def _check(draft: Bundle, golden: Golden, say: Progress) -> Parity:
    """Every golden row through every shape of the compiled model, as a server would run it."""
    runtime = cpu.load(draft)

    def tell(shape: Shape, checked: Checked) -> None:
        say(
            f"shape {shape}: {checked.rows} rows, largest error {checked.error:.1e} (at most"
            f" {draft.manifest.tolerance:.0e}), {checked.seconds * 1e3:.1f} ms a batch"
        )

    try:
        return replay(runtime, golden, thorough=True, progress=tell)
    except BundleError as error:
        raise BundleError(f"{draft.manifest.model} was not traced, nothing is kept: {error}") from error
    finally:
        runtime.close()


def _versions() -> dict[str, str]:
    import tokenizers
    import torch
    import transformers

    return {
        "corelane": __version__,
        cpu.STACK: cpu.version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "python": platform.python_version(),
    }


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))

"""A configured model -> a bundle: resolve, load, compile, compare with the original in every shape, write."""

from __future__ import annotations

import contextlib
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
from corelane.runtimes.golden import TOLERANCES, Checked, Golden, GoldenRow, Parity, replay
from corelane.settings import Settings
from corelane.tracing import quantize, report, shapes
from corelane.tracing.examples import golden_rows

if TYPE_CHECKING:
    from corelane.tracing.wrap import Wrapped

Progress = Callable[[str], None]

# Kept beside tokenizer.json: which of its tokens are special, and why.
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")


def trace(settings: Settings, *, retrace: bool = False, progress: Progress | None = None) -> Bundle:
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
    _refuse_simulated(root, name)
    wrapping = import_tracing()
    if settings.precision == "int8":
        quantize.import_nncf()  # what is missing is said before the model is loaded
    with models.quiet(), bundle.Writer(root, name) as writer:
        made = writer.commit(_make(settings, source, wrapping, name, writer.folder, say))
    say(f"bundle {made.label} is ready: {made.path}")
    return made


def _refuse_what_is_not_carried(settings: Settings) -> None:
    if settings.chip_type != "cpu":
        raise ConfigError(
            f"CHIP_TYPE={settings.chip_type} cannot be traced for yet, this version compiles for cpu; set CHIP_TYPE=cpu"
        )


def _refuse_simulated(root: Path, name: str) -> None:
    """The versions under one name are all of a model, or all simulated: what is newest must not change its nature."""
    with contextlib.suppress(BundleError):  # missing, or too damaged to tell: the new version takes its place
        if bundle.find(root, name).is_simulated:
            raise ConfigError(
                f"the bundle {name} is simulated and this would trace a model over it; make the simulation anew with"
                " `corelane trace --simulate`, or set compiled_model to another name"
            )


def _present(root: Path, settings: Settings, source: models.Source, name: str, version: int | None) -> Bundle | None:
    """The bundle that is there, fresh and whole; None when there is none."""
    try:
        present = bundle.find(root, name if version is None else f"{name}@{version}")
    except MissingBundleError:
        return None
    bundle.check_asked_for(present, settings.compiled_model)
    changed = bundle.stale_keys(present, bundle.trace_inputs(settings), source.fingerprint)
    if changed:
        raise bundle.stale_error(present, changed)
    bundle.verify(present, chip=settings.chip_type, stack=present.manifest.stack)
    return present


def _make(
    settings: Settings, source: models.Source, wrapping: ModuleType, name: str, folder: Path, say: Progress
) -> Manifest:
    """Fill `folder` and return the manifest for it, but for version and checksums."""
    say(f"loading {source.name}")
    loaded = models.load(source, settings.task)
    wrapped = wrapping.wrap(loaded)
    lengths = sequences(settings, loaded)
    _check_vocabulary(source, loaded)

    rows = golden_rows(loaded.tokenizer, loaded.task, wrapped.inputs, lengths)
    tolerance = TOLERANCES[settings.precision]
    golden = Golden(tuple(GoldenRow(row, _reference(wrapped, row), tolerance) for row in rows))
    golden.save(folder / "golden.safetensors", wrapped.inputs)
    write_tokenizer(loaded.tokenizer, loaded.tokenizer_dir, folder / "tokenizer")

    say(f"compiling for {loaded.task}, batch sizes {_list(settings.batch_sizes)}, sequence lengths {_list(lengths)}")
    begun = time.perf_counter()
    operators = _compile(wrapped, folder, settings.precision)
    compile_s = time.perf_counter() - begun
    size_bytes = sum((folder / file).stat().st_size for file in ("model.xml", "model.bin"))
    say(f"compiled in {compile_s:.1f} s, {size_bytes / 2**20:.1f} MiB")

    manifest = Manifest(
        name=name,
        version=1,
        model=settings.model_name,
        revision=loaded.revision,
        task=loaded.task,
        labels=wrapped.labels,
        task_options=wrapped.task_options | limits(loaded),
        shapes=tuple((batch, sequence) for batch in sorted(settings.batch_sizes) for sequence in lengths),
        inputs=tuple({"name": spec.name, "dtype": spec.dtype, "pad": spec.pad} for spec in wrapped.inputs),
        outputs=tuple({"name": spec.name, "per_token": spec.per_token} for spec in wrapped.outputs),
        precision=settings.precision,
        chip=settings.chip_type,
        stack=cpu.STACK,
        versions=_versions(settings.precision),
        instruction_set=None,
        compiler_arguments="",
        trace_inputs=bundle.trace_inputs(settings),
        source_fingerprint=source.fingerprint,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tolerance=tolerance,
        files={},
    )
    parity, answers = _check(Bundle(folder, manifest), golden, say)
    report.write(folder, manifest, report.Report(compile_s, size_bytes, operators, Counter(), parity, answers))
    return manifest


def import_tracing() -> ModuleType:
    """tracing.wrap, which imports torch: only when there is something to trace."""
    try:
        importlib.import_module("transformers")
        return importlib.import_module("corelane.tracing.wrap")
    except ImportError as error:
        raise ConfigError(
            f"tracing needs torch and transformers, and {error.name} is not installed; run `pip install"
            " 'corelane[trace]'`"
        ) from error


def _compile(wrapped: Wrapped, folder: Path, precision: str) -> Counter[str]:
    from corelane.tracing import compile_cpu

    return compile_cpu.compile_model(wrapped, folder, precision)


def sequences(settings: Settings, loaded: models.Loaded) -> tuple[int, ...]:
    """The lengths that the configured model is compiled for."""
    return shapes.choose_sequences(
        settings.sequence_lengths,
        loaded.task,
        limit=shapes.usable_sequence(loaded.config),
        max_seq_length=loaded.sentence.max_seq_length if loaded.sentence else None,
    )


def limits(loaded: models.Loaded) -> dict[str, Any]:
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


def write_tokenizer(tokenizer: Any, origin: Path, folder: Path) -> None:
    """`tokenizer.json` as it is in memory, and from `origin` the files beside it."""
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in TOKENIZER_FILES:
        if (origin / name).is_file():
            shutil.copyfile(origin / name, folder / name)


def _reference(wrapped: Wrapped, row: Row) -> dict[str, Any]:
    """The uncompiled model's answer: one row by itself, without padding, in float32."""
    import torch

    inputs = {
        spec.name: torch.from_numpy(array).unsqueeze(0) for spec, array in zip(wrapped.inputs, row.inputs, strict=True)
    }
    with torch.no_grad():
        answers = wrapped.module(**inputs)
    return {spec.name: answer[0].numpy() for spec, answer in zip(wrapped.outputs, answers, strict=True)}


def _check(draft: Bundle, golden: Golden, say: Progress) -> tuple[Parity, str]:
    """Every golden row through every shape of the compiled model, as a server would run it. In int8, a sentence on
    the answers too."""
    runtime = cpu.load(draft)

    def tell(shape: Shape, checked: Checked) -> None:
        say(
            f"shape {shape}: {checked.rows} rows, largest error {checked.error:.1e} (at most"
            f" {draft.manifest.tolerance:.0e}), {checked.seconds * 1e3:.1f} ms a batch"
        )

    try:
        parity = replay(runtime, golden, thorough=True, progress=tell)
        answers = ""
        if draft.manifest.precision == "int8":
            answers = quantize.check_answers(runtime, golden, draft.manifest.task)
        return parity, answers
    except BundleError as error:
        advice = "" if draft.manifest.precision == "float32" else "; set precision=float32 for this model"
        raise BundleError(f"{draft.manifest.model} was not traced, nothing is kept: {error}{advice}") from error
    finally:
        runtime.close()


def _versions(precision: str) -> dict[str, str]:
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
        **({"nncf": str(quantize.import_nncf().__version__)} if precision == "int8" else {}),
    }


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))

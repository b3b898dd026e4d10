"""`corelane trace --simulate`: a bundle without a model, whose batches take stated times. Needs neither torch nor
transformers."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from corelane import __version__, bundle, models
from corelane.bundle import SIMULATED, Bundle, Manifest
from corelane.errors import BundleError, ConfigError, MissingBundleError
from corelane.runtimes import simulated
from corelane.runtimes.base import InputSpec, OutputSpec, Row, Shape
from corelane.runtimes.golden import TOLERANCE_FLOAT32, Golden, GoldenRow, Parity, replay
from corelane.settings import Settings
from corelane.tracing.examples import golden_rows
from corelane.tracing.published import PUBLISHED
from corelane.tracing.shapes import SHORTEST_SEQUENCE
from corelane.tracing.trace import Progress, write_tokenizer

# What was published was measured with ids and a mask.
INPUTS = (InputSpec("input_ids", "int64", 0), InputSpec("attention_mask", "int64", 0))
OUTPUTS = (OutputSpec("logits", per_token=False),)

_NOTICE = "SIMULATED: no model is computed. Batches take stated times, and answers are a fixed function of the tokens."
_STATED = "stated by hand"
_TIME = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})=([0-9.]+)")


def simulate(
    settings: Settings,
    name: str,
    *,
    bundle_name: str = "",
    times: str = "",
    retrace: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """The bundle of a simulated core: the one that is there if it is the same, else a new version.

    `name` is one of tracing/published.py, or any where `times` gives all: `1x128=1.00,8x128=5.97`, in ms.
    """
    say: Progress = progress or (lambda line: None)
    times_ms, source = _times(name, times)
    root, label = settings.path_to_traced_models, bundle_name or name
    origin = _tokenizer_folder(settings)
    tokenizer = models.read_tokenizer(origin)
    fingerprint = _fingerprint(times_ms, tokenizer)
    present = _present(root, label)
    if present is not None and not retrace and _is_same(present, settings.chip_type, fingerprint):
        bundle.verify(present, chip=settings.chip_type, stack=SIMULATED)
        say(f"bundle {present.label} is up to date: {present.path}")
        return present
    say(_NOTICE)
    with bundle.Writer(root, label) as writer:
        manifest = _manifest(settings, name, times_ms, fingerprint)
        simulated.write_times(writer.folder, times_ms)
        write_tokenizer(tokenizer, origin, writer.folder / "tokenizer")
        golden = _golden(tokenizer, sorted({shape.sequence for shape in times_ms}))
        golden.save(writer.folder / "golden.safetensors", INPUTS)
        parity = _check(Bundle(writer.folder, manifest), golden)
        _report(writer.folder, manifest, times_ms, source, parity)
        made = writer.commit(manifest)
    say(f"bundle {made.label} is ready: {made.path}; it is served where compiled_model={made.manifest.name}")
    return made


def _times(name: str, text: str) -> tuple[dict[Shape, float], str]:
    """(ms per batch of each shape, where they come from)."""
    if text:
        return parse_times(text), _STATED
    if name not in PUBLISHED:
        raise ConfigError(
            f"--simulate {name} is not one of those with published times: {', '.join(PUBLISHED)}; name one of them,"
            " or state the times, such as --times 1x128=1.00,8x128=5.97 (ms)"
        )
    return PUBLISHED[name].times_ms, PUBLISHED[name].source


def parse_times(text: str) -> dict[Shape, float]:
    """`1x128=1.00,8x128=5.97` -> milliseconds per batch, by shape (rows x tokens)."""
    times: dict[Shape, float] = {}
    for part in text.split(","):
        found = _TIME.fullmatch(part.strip())
        try:
            ms = float(found[3]) if found else math.nan
        except ValueError:
            ms = math.nan
        if not found or not 0 < ms < math.inf:
            raise ConfigError(f"--times {text}: {part!r} is not of the form 8x128=5.97 (rows x tokens = ms per batch)")
        shape = Shape(int(found[1]), int(found[2]))
        if shape.sequence < SHORTEST_SEQUENCE:
            raise ConfigError(f"--times {text}: {shape} has too few tokens; a text needs {SHORTEST_SEQUENCE} at least")
        if shape in times:
            raise ConfigError(f"--times {text}: {shape} stands there twice; give it one time")
        times[shape] = ms
    return times


def _tokenizer_folder(settings: Settings) -> Path:
    """The configured model's, where it is a folder; else the demo model's, which needs no hub."""
    source = models.resolve(settings.model_name, settings.model_revision, root=settings.root)
    path = source.path if source.kind == "folder" else models.resolve("demo-embed").path
    assert path is not None
    return path


def _fingerprint(times_ms: Mapping[Shape, float], tokenizer: Any) -> str:
    stated = ", ".join(f"{shape} {ms} ms" for shape, ms in sorted(times_ms.items()))
    return f"{stated}, tokenizer sha256:{hashlib.sha256(tokenizer.to_str().encode()).hexdigest()}"


def _present(root: Path, name: str) -> Bundle | None:
    try:
        present = bundle.find(root, name)
    except MissingBundleError:
        return None
    if not present.is_simulated:
        raise ConfigError(
            f"the bundle {name} is a traced model and this would put a simulation over it; give another --name"
        )
    return present


def _is_same(present: Bundle, chip: str, fingerprint: str) -> bool:
    return (present.manifest.chip, present.manifest.source_fingerprint) == (chip, fingerprint)


def _manifest(settings: Settings, name: str, times_ms: Mapping[Shape, float], fingerprint: str) -> Manifest:
    import tokenizers

    return Manifest(
        name=name,
        version=1,
        model=f"simulated {name}",
        revision="",
        task=models.TEXT_CLASSIFICATION,
        labels={str(number): f"LABEL_{number}" for number in range(simulated.LABELS)},
        task_options={"pad_token_id": INPUTS[0].pad, "problem_type": "single_label_classification"},
        shapes=tuple((shape.batch, shape.sequence) for shape in sorted(times_ms)),
        inputs=tuple({"name": spec.name, "dtype": spec.dtype, "pad": spec.pad} for spec in INPUTS),
        outputs=tuple({"name": spec.name, "per_token": spec.per_token} for spec in OUTPUTS),
        precision="float32",
        chip=settings.chip_type,
        stack=SIMULATED,
        versions={
            "corelane": __version__,
            "tokenizers": tokenizers.__version__,
            "python": platform.python_version(),
        },
        instruction_set=None,
        compiler_arguments="",
        trace_inputs={},
        source_fingerprint=fingerprint,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tolerance=TOLERANCE_FLOAT32,
        files={},
    )


def _golden(tokenizer: Any, sequences: list[int]) -> Golden:
    rows = golden_rows(tokenizer, models.TEXT_CLASSIFICATION, INPUTS, sequences)
    return Golden(tuple(GoldenRow(row, _expected(row), TOLERANCE_FLOAT32) for row in rows))


def _expected(row: Row) -> dict[str, Any]:
    return {"logits": simulated.logits(row.inputs[0])}


def _check(draft: Bundle, golden: Golden) -> Parity:
    """Every golden row through every shape, as a server would run it: the tokenizer and the times fit together."""
    runtime = simulated.load(draft)
    try:
        return replay(runtime, golden, thorough=True)
    except BundleError as error:
        raise BundleError(f"{draft.manifest.model} was not made, nothing is kept: {error}") from error
    finally:
        runtime.close()


def _report(folder: Path, manifest: Manifest, times_ms: Mapping[Shape, float], source: str, parity: Parity) -> None:
    rows = {
        shape: {
            "shape": str(shape),
            "stated_ms": ms,
            "fastest_ms": round(parity.shapes[shape].seconds * 1e3, 3),
            "rows_per_s": round(shape.batch / ms * 1e3, 1),
            "golden_rows": parity.shapes[shape].rows,
        }
        for shape, ms in sorted(times_ms.items())
    }
    values = {
        "simulated": True,
        "notice": _NOTICE,
        "model": manifest.model,
        "task": manifest.task,
        "source": source,
        "versions": manifest.versions,
        "shapes": list(rows.values()),
    }
    (folder / "report.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"# {manifest.model}",
        "",
        f"**{_NOTICE}**",
        "",
        f"Made {manifest.created}. Source of the times: {source}.",
        "",
        "| shape (batch x tokens) | stated, ms | fastest batch here, ms | rows/s at most | golden rows |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(str(value) for value in _cells(row))} |" for row in rows.values()),
    ]
    (folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("shape", "stated_ms", "fastest_ms", "rows_per_s", "golden_rows"))

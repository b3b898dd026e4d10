"""report.json and report.md: what was compiled, how close it is to the original, what it costs."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from corelane.bundle import Manifest
from corelane.runtimes.golden import Parity


@dataclass(frozen=True)
class Report:
    """`operators`: how often each stands in the compiled model; `not_compiled`: what the compiler had to
    leave out."""

    compile_s: float
    size_bytes: int
    operators: Counter[str]
    not_compiled: Counter[str]
    parity: Parity
    answers: str = ""  # in int8: how many golden rows get the answer of float32


def write(folder: Path, manifest: Manifest, report: Report) -> None:
    (folder / "report.json").write_text(json.dumps(_values(manifest, report), indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(_page(manifest, report), encoding="utf-8")


def _values(manifest: Manifest, report: Report) -> dict[str, object]:
    return {
        "model": manifest.model,
        "task": manifest.task,
        "chip": manifest.chip,
        "versions": manifest.versions,
        "compile_s": round(report.compile_s, 3),
        "size_bytes": report.size_bytes,
        "precision": manifest.precision,
        "tolerance": manifest.tolerance,
        "answers": report.answers,
        "operators": {
            "compiled": dict(report.operators.most_common()),
            "not_compiled": dict(report.not_compiled.most_common()),
        },
        "shapes": [
            {"shape": str(shape), **dataclasses.asdict(checked)} for shape, checked in report.parity.shapes.items()
        ],
    }


def _page(manifest: Manifest, report: Report) -> str:
    lines = [
        f"# {manifest.model} for {manifest.task} on {manifest.chip}, {manifest.precision}",
        "",
        (
            f"Traced {manifest.created} with"
            f" {', '.join(f'{name} {version}' for name, version in manifest.versions.items())}."
        ),
        (
            f"Compiled in {report.compile_s:.1f} s; {report.size_bytes / 2**20:.1f} MiB, one copy of the"
            " weights for all shapes."
        ),
        "",
        "| shape (batch x tokens) | golden rows | largest error | bound | fastest batch, ms |",
        "|---|---|---|---|---|",
        *(
            f"| {shape} | {checked.rows} | {checked.error:.1e} | {manifest.tolerance:.0e} |"
            f" {checked.seconds * 1e3:.1f} |"
            for shape, checked in report.parity.shapes.items()
        ),
        "",
        *([f"Answers: {report.answers}.", ""] if report.answers else []),
        f"Operators: {sum(report.operators.values())} compiled, {sum(report.not_compiled.values())} not.",
        "",
        *(f"- {name}: {count}" for name, count in report.operators.most_common()),
    ]
    return "\n".join(lines) + "\n"

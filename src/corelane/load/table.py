"""What a run came to: the table for a person, the document for a program, and the last line. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corelane.load.percentiles import summary
from corelane.load.tally import NOTHING, Failure, Plan, Tally

_HEADINGS = ("endpoint", "requests", "ok", "failed", "requests/s", "p50 ms", "p90 ms", "p99 ms", "max ms")
_NO_DATA = "no data"


@dataclass(frozen=True)
class Run:
    """A finished run: what was planned, how long it took, and what came of it."""

    plan: Plan
    took_s: float
    tallies: Sequence[Tally]
    silent_cores: Mapping[int, Failure]  # cores that did not say what they serve
    notes: Sequence[str]

    @property
    def complaints(self) -> list[str]:
        """One entry per core, or endpoint, that failed in any way; empty where every call was served."""
        named = {tally.target.core for tally in self.tallies if tally.failures or not tally.served}
        silent = self.silent_cores.items()
        found = [f"core {core} /info: {one.kind}" for core, one in silent if core not in named]
        for tally in self.tallies:
            kinds = [f"{kind} ({count})" for kind, count in tally.failures.most_common()]
            if not tally.served:
                kinds.append(NOTHING)
            if kinds:
                found.append(f"{tally.target.name}: {', '.join(kinds)}")
        return found


def render(run: Run) -> str:
    """The table, the failures in words, the notes, and last one line that says whether all went well."""
    connections = f"{run.plan.connections} connection{'s' * (run.plan.connections != 1)}"
    lines = [
        *_columns([_HEADINGS, *map(_row, figures(run))]),
        "",
        f"closed loop, {connections} per endpoint, {run.took_s:.1f} s;"
        " requests/s and latencies are those of served requests only",
    ]
    for tally in run.tallies:
        for kind, count in tally.failures.most_common():
            lines.append(f"{tally.target.name}: {count} x {kind}, the first: {tally.first_details[kind]}")
    lines += [f"core {core} /info: {one.kind}: {one.detail}" for core, one in run.silent_cores.items()]
    lines += run.notes
    lines.append(_verdict(run))
    return "\n".join(lines)


def document(run: Run) -> dict[str, Any]:
    """The same as data, for --json."""
    *endpoints, total = figures(run)
    for tally, row in zip(run.tallies, endpoints, strict=True):
        target = tally.target
        row |= {
            "core": target.core,
            "model": f"model_{target.model}",
            "through": target.through,
            "url": target.url,
        }
        row |= {"first_failures": tally.first_details}
    return {
        "mode": "closed loop",
        "connections_per_endpoint": run.plan.connections,
        "seconds": run.took_s,
        "endpoints": endpoints,
        "total": total,
        "silent_cores": {str(core): f"{one.kind}: {one.detail}" for core, one in run.silent_cores.items()},
        "notes": list(run.notes),
        "failed": run.complaints,
    }


def figures(run: Run) -> list[dict[str, Any]]:
    """The numbers of every endpoint, then those of all together."""
    rows = [_figures(tally.target.name, [tally], run.took_s) for tally in run.tallies]
    return [*rows, _figures("total", run.tallies, run.took_s)]


def _figures(name: str, tallies: Sequence[Tally], took_s: float) -> dict[str, Any]:
    latencies_ms = [one.latency_ms for tally in tallies for one in tally.served]
    failures: Counter[str] = Counter()
    for tally in tallies:
        failures.update(tally.failures)
    return {
        "endpoint": name,
        "requests": sum(tally.sent for tally in tallies),
        "ok": len(latencies_ms),
        "failed": failures.total(),
        "failures": dict(failures),
        "requests_per_s": len(latencies_ms) / took_s,
        "latency_ms": summary(latencies_ms),
    }


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    latencies = row["latency_ms"].values()
    return (
        *(str(row[name]) for name in ("endpoint", "requests", "ok", "failed")),
        f"{row['requests_per_s']:.1f}",
        *(_NO_DATA if value is None else f"{value:.1f}" for value in latencies),
    )


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names to the left, numbers to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]


def _verdict(run: Run) -> str:
    if run.complaints:
        return f"failed: {'; '.join(run.complaints)}"
    count = sum(len(tally.served) for tally in run.tallies)
    return f"all {count} calls to {len(run.tallies)} endpoints were answered, and no answer was wrong"

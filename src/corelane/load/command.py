"""`corelane load`: find the endpoints, ask what they serve, drive them, report; fail if a call failed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from corelane.errors import ConfigError
from corelane.load import driver
from corelane.load.arguments import DEFAULT_SECONDS
from corelane.load.progress import show
from corelane.load.questions import ModelInfo, Questions, questions
from corelane.load.table import Run, document, render
from corelane.load.tally import Failure, Plan, Tally
from corelane.load.targets import Deployment, Target, deployment
from corelane.settings import Settings
from corelane.topology import available_cpus

# Past the server's own deadline, so that its 504 arrives and is counted as what it is.
_GRACE_S = 5.0
# For a deployment without a deadline: something must end a call to a server that hangs.
_LONGEST_CALL_S = 60.0


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Call everything; 0 only if every endpoint answered and no call failed. Raises ConfigError."""
    found = deployment(settings, available_cpus(), arguments.through, arguments.host)
    if arguments.json_file is not None:
        _check_writable(arguments.json_file)
    finished = asyncio.run(_run(found, _plan(settings, arguments), arguments.method))
    if arguments.json_file is not None:
        arguments.json_file.write_text(json.dumps(document(finished), indent=2) + "\n", encoding="utf-8")
    print(render(finished))
    return 1 if finished.complaints else 0


def _plan(settings: Settings, arguments: argparse.Namespace) -> Plan:
    deadline_s = settings.request_timeout_ms / 1000
    seconds = arguments.seconds
    if seconds is None and arguments.requests is None:
        seconds = DEFAULT_SECONDS
    return Plan(
        connections=arguments.connections,
        seconds=seconds,
        requests=arguments.requests,
        timeout_s=arguments.timeout or (deadline_s + _GRACE_S if deadline_s else _LONGEST_CALL_S),
    )


def _check_writable(file: Path) -> None:
    """Before the run, not after it."""
    try:
        file.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"--json {file} cannot be written: {error.strerror}; name a file in a folder that exists"
        ) from error


async def _run(found: Deployment, plan: Plan, method: str) -> Run:
    tallies = {target: Tally(target) for target in found.targets}
    async with driver.open_session(plan.timeout_s) as session:
        told = await driver.ask_info(session, found.info_urls, plan.timeout_s)
        asked = {target: questions(_info(told, target), method) for target in found.targets}
        watcher = asyncio.create_task(show(tallies.values(), plan))
        calls = {target: one.calls for target, one in asked.items()}
        took_s = await driver.drive(session, calls, plan, frozenset(found.info_urls), tallies)
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    return Run(
        plan=plan,
        took_s=took_s,
        tallies=list(tallies.values()),
        silent_cores={core: one for core, one in told.items() if isinstance(one, Failure)},
        notes=[*found.notes, *_notes(told, asked.values())],
    )


def _info(told: dict[int, dict[int, ModelInfo] | Failure], target: Target) -> ModelInfo | None:
    """What is known of a target's model: from its core; for the pooled route from any core."""
    cores = told if target.core is None else [target.core]
    known = (models.get(target.model) for core in cores if not isinstance(models := told[core], Failure))
    return next((info for info in known if info is not None), None)


def _notes(told: dict[int, dict[int, ModelInfo] | Failure], asked: Iterable[Questions]) -> list[str]:
    notes = {one.note: None for one in asked if one.note}  # a dict: each once, in order
    labels: dict[int, dict[str, list[int]]] = {}
    for core, models in told.items():
        for number, info in ({} if isinstance(models, Failure) else models).items():
            labels.setdefault(number, {}).setdefault(info.label, []).append(core)
    for number, by_label in labels.items():
        if len(by_label) > 1:
            said = "; ".join(f"{label} on core {', '.join(map(str, cores))}" for label, cores in by_label.items())
            notes[f"model_{number} is not the same everywhere: {said}"] = None
    return list(notes)

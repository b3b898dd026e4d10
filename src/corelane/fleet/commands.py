"""The verbs of the command line that deal with a deployment: `up`, `down`, `status`, `logs`.

Settings in, exit code out; messages to stderr, what was asked for to stdout. Everything on the way to `up
--dry-run` is the standard library alone: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from corelane import bundle as bundles
from corelane import models
from corelane.bundle import Bundle
from corelane.errors import ConfigError, MissingBundleError
from corelane.fleet import deployment, gateway
from corelane.fleet import logs as logfiles
from corelane.fleet import plan as plans
from corelane.fleet.deployment import Look
from corelane.fleet.plan import Plan
from corelane.fleet.state import Folder
from corelane.settings import Settings, proxy_environment
from corelane.topology import Placement, available_cpus, place_configured

CARRIED_CHIP = "cpu"
NO_HAPROXY = (
    "no HAProxy was found, so there is no gateway and each core is reached at its own port;"
    " install `corelane[gateway]` or HAProxy, or set gateway=none"
)
_UNKNOWN_VERSION = "NEWEST"  # of a bundle that a dry run finds missing
_LOG_NAMES = re.compile(r"core-\d+|gateway|supervisor")


def up(settings: Settings, *, dry_run: bool, foreground: bool, retrace: bool) -> int:
    """Start the deployment and wait until it is ready; nothing to do when it is."""
    haproxy = _find_gateway(settings, is_needed=not dry_run)
    placement = _place(settings, has_gateway=haproxy is not None)
    if dry_run:
        return _dry_run(settings, placement, haproxy, retrace)
    with _ended_by_sigterm():
        if retrace or not _has_bundle(settings):
            environment = plans.child_environment(os.environ) | proxy_environment(settings)
            traced = subprocess.run(_trace_command(retrace), cwd=settings.root, env=environment, stdout=2, check=False)
            if traced.returncode != 0:
                return traced.returncode  # it has said why
        found = _fresh_bundle(settings)
        plan = plans.make(settings, placement, found.label, _checksum(found), haproxy)
        check = partial(bundles.verify, found, chip=settings.chip_type, stack=found.manifest.stack)
        return deployment.bring_up(plan, say=_say, announce=_announce, foreground=foreground, check=check)


def down(settings: Settings) -> int:
    """Stop the deployment; it is fine when there is none."""
    name = settings.docker_container_name_prefix
    was_there = deployment.take_down(_folder(settings), say=_say)
    _announce(f"{name} is stopped" if was_there else f"nothing of {name} was running")
    return 0


def status(settings: Settings, *, as_json: bool) -> int:
    """Say what is true: 0 all ready, 1 otherwise; the words say how it is."""
    found = deployment.look(_folder(settings))
    if as_json:
        _announce(json.dumps({"name": settings.docker_container_name_prefix, **vars(found)}, indent=1))
    else:
        for line in _report(settings.docker_container_name_prefix, _folder(settings), found):
            _announce(line)
    return found.exit_code


def logs(settings: Settings, core: str | int | None, follow: bool) -> int:
    """Print one log whole, or all with the name before each line; then, if asked, what is added."""
    folder = _folder(settings)
    names = sorted((path.stem for path in folder.logs.glob("*.log")), key=_by_number)
    if core is not None:
        wanted = f"core-{core}" if str(core).isdecimal() else str(core)
        if not _LOG_NAMES.fullmatch(wanted) or wanted not in names:
            existing = ", ".join(names) or "none yet"
            raise ConfigError(f"there is no log of {core}; give a core's number or one of these: {existing}")
        names = [wanted]
    if not names:
        _say(f"there are no logs of {settings.docker_container_name_prefix}: it was never started from here")
    width = max(map(len, names), default=0)

    def emit(path: Path, line: str) -> None:
        _announce(line if core is not None else f"{path.stem:<{width}} | {line}")

    with contextlib.suppress(KeyboardInterrupt):
        logfiles.show([folder.log(name) for name in names], emit, should_stop=lambda: not (follow and names))
    return 0


def _by_number(name: str) -> tuple[str, int]:
    """core-2 before core-10."""
    kind, _, number = name.partition("-")
    return kind, int(number) if number.isdecimal() else 0


# --- up, step by step ---------------------------------------------------------------------------------------


def _find_gateway(settings: Settings, *, is_needed: bool) -> Path | None:
    if settings.gateway == "none":
        return None
    found = gateway.find()
    if found is None and not is_needed:
        return Path("haproxy")  # a dry run before the installation, which brings it
    if found is None:
        _say(NO_HAPROXY)
    return found


def _place(settings: Settings, *, has_gateway: bool) -> Placement:
    if settings.chip_type != CARRIED_CHIP:
        raise ConfigError(
            f"CHIP_TYPE={settings.chip_type} was asked for, and this version serves on {CARRIED_CHIP} only;"
            f" set CHIP_TYPE={CARRIED_CHIP}"
        )
    return place_configured(settings, has_gateway=has_gateway, cpus=available_cpus())


def _label(settings: Settings) -> str:
    return models.bundle_label(settings.compiled_model, settings.model_name, settings.root)


def _has_bundle(settings: Settings) -> bool:
    try:
        bundles.find(settings.path_to_traced_models, _label(settings))
    except MissingBundleError:
        return False
    return True


def _fresh_bundle(settings: Settings) -> Bundle:
    """The bundle to serve; BundleError when it was traced from another configuration."""
    found = bundles.find(settings.path_to_traced_models, _label(settings))
    bundles.check_asked_for(found, settings.compiled_model)
    try:
        source = models.resolve(settings.model_name, settings.model_revision, root=settings.root)
        fingerprint = source.fingerprint
    except ConfigError:
        fingerprint = None  # the model itself need not be here; its bundle is all that is served
    stale = bundles.stale_keys(found, bundles.trace_inputs(settings), fingerprint)
    if stale:
        raise bundles.stale_error(found, stale)
    return found


def _checksum(found: Bundle) -> str:
    return hashlib.sha256((found.path / bundles.MANIFEST).read_bytes()).hexdigest()


def _trace_command(retrace: bool) -> list[str]:
    return [sys.executable, "-m", "corelane", "trace", *(["--retrace"] if retrace else [])]


def _dry_run(settings: Settings, placement: Placement, haproxy: Path | None, retrace: bool) -> int:
    """Print what `up` would do, as commands, and change nothing."""
    label = _label(settings)
    is_missing = retrace or not _has_bundle(settings)
    if not is_missing:
        label = _fresh_bundle(settings).label
    elif "@" not in label or retrace:
        label = f"{label.partition('@')[0]}@{_UNKNOWN_VERSION}"
    drawn: Plan = plans.make(settings, placement, label, "", haproxy)
    folder = drawn.folder
    _announce(f"cd {shlex.quote(str(settings.root))}")
    if is_missing:
        _announce(shlex.join(_trace_command(retrace)))
    for note in drawn.notes:
        _announce(f"# {note}")
    _announce(f"mkdir -p {shlex.quote(str(folder.logs))}")
    for name in (*drawn.files, folder.plan.name):
        _announce(f"# writes {folder.path / name}")
    _announce(f"{shlex.join(plans.supervisor_command(folder))}   # SUPERVISOR, which starts and watches:")
    _announce(f"cd {shlex.quote(str(folder.path))}   # whose files are the settings of today")
    for member in drawn.members:
        _announce(plans.shown(member))
    return 0


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM during `up` ends it as Ctrl-C does: with what it started. Nothing to set when we are not the
    main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- status -------------------------------------------------------------------------------------------------

_VERDICTS = {
    "ready": "runs, all ready",
    "not-ready": "runs, not all ready",
    "cut-off": "was cut off: its supervisor is gone, and `./deploy.sh` cleans up and starts anew",
    "stopped": "does not run",
}


def _report(name: str, folder: Folder, found: Look) -> Iterator[str]:
    about = f" ({found.bundle}, supervisor pid {found.supervisor})" if found.supervisor else ""
    yield f"{name} {_VERDICTS[found.verdict]}{about}"
    if found.members:
        rows = [_HEADINGS, *(_row(*item) for item in found.members.items())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
        for row in rows:
            yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    for member_name, member in found.members.items():
        if member["state"] != "ready" and member["tail"]:
            yield f"last lines of {folder.log(member_name)}:"
            yield from (f"  {line}" for line in member["tail"][-5:])
    if found.failure:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.failure["when"]))
        yield f"the last start, at {when}, was given up: {found.failure['why']}"


_HEADINGS = ("", "state", "since", "pid", "port", "cpus", "restarts", "last exit")


def _row(name: str, member: dict[str, Any]) -> tuple[str, ...]:
    pinned = "any" if member["cpus"] is None else ",".join(map(str, member["cpus"]))
    return (
        name.replace("-", " "),
        member["state"],
        time.strftime("%H:%M:%S", time.localtime(member["since"])),
        str(member["pid"] or "-"),
        str(member["port"]),
        pinned,
        str(member["restarts"]),
        member["last_exit"] or "-",
    )


def _folder(settings: Settings) -> Folder:
    return Folder.of(settings.root, settings.docker_container_name_prefix)


def _say(line: str) -> None:
    print(f"corelane: {line}", file=sys.stderr, flush=True)


def _announce(line: str) -> None:
    print(line, flush=True)

"""What a deployment consists of, as plain data: which commands, pinned where, on which ports.

`make` draws it up from settings and placement; the supervisor is handed it as a file and knows nothing of
settings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corelane import __version__
from corelane.fleet import gateway
from corelane.fleet.state import Folder
from corelane.keys import PREFIX
from corelane.settings import Settings, frozen
from corelane.topology import Placement

TETHER = Path(__file__).with_name("tether.py")
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Member:
    """One process of the deployment: a core's server, or the gateway. It runs in the deployment's folder."""

    name: str  # core-3, gateway
    core: int | None  # None: the gateway
    command: tuple[str, ...]
    environment: dict[str, str]  # on top of the supervisor's own
    cpus: tuple[int, ...] | None  # None: unpinned
    port: int
    ready_path: str  # answers 200 when the process can do its work


@dataclass(frozen=True)
class Plan:
    """All of one deployment. Two plans with the same digest are the same deployment."""

    name: str
    root: str
    address: str
    bundle: str
    bundle_checksum: str
    models: int
    members: tuple[Member, ...]
    files: dict[str, str]  # written to the deployment's folder before the start
    start_parallel: int
    drain_timeout_ms: int
    notes: tuple[str, ...] = ()

    @property
    def cores(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.core is not None)

    @property
    def gateway(self) -> Member | None:
        return next((member for member in self.members if member.core is None), None)

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(member.port for member in self.members)

    @property
    def folder(self) -> Folder:
        return Folder.of(Path(self.root), self.name)

    @property
    def digest(self) -> str:
        """Over all that makes a difference to what runs, our own code and this interpreter included."""
        raw = [dataclasses.asdict(self), __version__, code_digest(), sys.executable]
        return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        raw: dict[str, Any] = json.loads(text)
        members = tuple(
            Member(
                **{
                    **member,
                    "command": tuple(member["command"]),
                    "cpus": None if member["cpus"] is None else tuple(member["cpus"]),
                }
            )
            for member in raw.pop("members")
        )
        notes = tuple(raw.pop("notes"))
        return cls(members=members, notes=notes, **raw)


def make(settings: Settings, placement: Placement, bundle: str, bundle_checksum: str, haproxy: Path | None) -> Plan:
    """The plan for these settings; `haproxy` None: no gateway."""
    name = settings.docker_container_name_prefix
    # A server that is restarted next week serves what was deployed today, whatever stands in the configuration and
    # under the bundle's name by then. What `auto` came to: asked for by either word it is one deployment.
    files = frozen(settings, compiled_model=bundle, runtime="process")
    members = [
        Member(
            name=f"core-{assignment.core}",
            core=assignment.core,
            command=_serve(assignment.core, assignment.port),
            environment={**assignment.environment, "PYTHONUNBUFFERED": "1"},
            cpus=assignment.cpus,
            port=assignment.port,
            ready_path="/readyz",
        )
        for assignment in placement.assignments
    ]
    if haproxy is not None:
        folder = Folder.of(settings.root, name).path
        files |= gateway.files(
            address=settings.bind_address,
            port=settings.gateway_port,
            cores={member.core: member.port for member in members if member.core is not None},
            models=settings.num_models_per_server,
            request_timeout_ms=settings.request_timeout_ms,
        )
        members.append(
            Member(
                name="gateway",
                core=None,
                command=gateway.command(haproxy, folder),
                environment={},
                cpus=None,
                port=settings.gateway_port,
                ready_path="/livez",
            )
        )
    return Plan(
        name=name,
        root=str(settings.root),
        address=settings.bind_address,
        bundle=bundle,
        bundle_checksum=bundle_checksum,
        models=settings.num_models_per_server,
        members=tuple(members),
        files=files,
        start_parallel=settings.start_parallel,
        drain_timeout_ms=settings.drain_timeout_ms,
        notes=placement.notes,
    )


def _serve(core: int, port: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "corelane", *f"serve --core {core} --port {port}".split())


def code_digest(package: Path = PACKAGE) -> str:
    """Over our own code: after a pull, what runs is another program, whatever its version says."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(package)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def tethered(member: Member, parent: int | str) -> list[str]:
    """The member's command, pinned and tied to the life of `parent`."""
    pin = [] if member.cpus is None else ["--cpus", ",".join(map(str, member.cpus))]
    # -I and -S: nothing of the user's environment, and none of site's start-up time.
    return [sys.executable, "-I", "-S", str(TETHER), *pin, "--parent", str(parent), "--", *member.command]


def supervisor_command(folder: Folder) -> list[str]:
    return [sys.executable, "-m", "corelane.fleet.supervisor", str(folder.path)]


def member_environment(member: Member, environ: Mapping[str, str]) -> dict[str, str]:
    """What a member starts with. Of our own variables it gets none: the settings in its folder are the answer."""
    inherited = {name: value for name, value in child_environment(environ).items() if not name.startswith(PREFIX)}
    return inherited | member.environment


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """This environment for a child with another current folder: relative entries of the import path stay
    right."""
    found = dict(environ)
    if path := found.get("PYTHONPATH"):
        found["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep))
    return found


def shown(member: Member) -> str:
    """The member's command as a person would type it in the deployment's folder, for --dry-run."""
    environment = [f"{key}={value}" for key, value in member.environment.items()]
    command = [*(["env", *environment] if environment else []), *tethered(member, "SUPERVISOR")]
    return shlex.join(command)

"""Plans of small real programs, waits, and what a test asks of them."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corelane.fleet import gateway
from corelane.fleet.plan import Member, Plan, supervisor_command
from corelane.fleet.processes import wait_until
from corelane.fleet.state import Folder, read_json

SERVICES = Path(__file__).resolve().parents[1] / "services"
SOURCE = Path(gateway.__file__).parents[2]
WITHIN_S = 20.0  # of every wait: a machine under load is slow, and a test that fails may take its time

Command = Callable[[int, int], list[str]]  # (core, port) -> command


def answers(core: int, port: int) -> list[str]:
    """A core that is ready at once."""
    return [sys.executable, str(SERVICES / "answers.py"), "--port", str(port), "--core", str(core)]


def deaf(core: int, port: int) -> list[str]:
    """The same, and SIGTERM does not end it."""
    return [*answers(core, port), "--deaf"]


def exits(code: int, sentence: str = "as asked.") -> Command:
    """A core that ends with this code, for this reason."""
    return lambda core, port: [sys.executable, str(SERVICES / "exits.py"), str(code), sentence]


def exits_while(exists: Path, code: int = 3) -> Command:
    """A core that ends with this code if the file is there when it starts, and answers otherwise."""
    script = f"""
import os, sys
if os.path.exists({str(exists)!r}):
    sys.exit({code})
os.execv(sys.argv[1], sys.argv[1:])
"""
    return lambda core, port: [sys.executable, "-c", script, *answers(core, port)]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held until all are found, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    for held in sockets:
        held.bind(("127.0.0.1", 0))
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


def make_plan(
    root: Path,
    name: str = "tested",
    commands: tuple[Command, ...] = (answers, answers),
    *,
    ports: list[int] | None = None,
    cores: tuple[int, ...] | None = None,
    with_gateway: bool = False,
    drain_timeout_ms: int = 500,
    start_parallel: int = 4,
) -> Plan:
    """A plan for one core per command, and the gateway on the last of the ports."""
    cores = cores or tuple(range(len(commands)))
    ports = ports or free_ports(len(commands) + 1)
    members = [
        Member(
            name=f"core-{core}",
            core=core,
            command=tuple(command(core, port)),
            environment={"NEURON_RT_VISIBLE_CORES": str(core)},
            cpus=None,
            port=port,
            ready_path="/readyz",
        )
        for core, port, command in zip(cores, ports, commands, strict=False)
    ]
    files: dict[str, str] = {}
    if with_gateway:
        haproxy = gateway.find()
        assert haproxy is not None, "the gateway's package belongs to the development install"
        files = gateway.files(
            address="127.0.0.1",
            port=ports[-1],
            cores={member.core: member.port for member in members if member.core is not None},
            models=1,
            request_timeout_ms=5000,
        )
        command = gateway.command(haproxy, Folder.of(root, name).path)
        members.append(Member("gateway", None, command, {}, None, ports[-1], "/livez"))
    return Plan(
        name=name,
        root=str(root),
        address="127.0.0.1",
        bundle="stand-in@1",
        bundle_checksum="",
        models=1,
        members=tuple(members),
        files=files,
        start_parallel=start_parallel,
        drain_timeout_ms=drain_timeout_ms,
    )


def start_supervisor(plan: Plan) -> subprocess.Popen[bytes]:
    """The supervisor alone, as `up` would start it."""
    folder = plan.folder
    folder.make()
    for name, content in plan.files.items():
        folder.write(name, content)
    folder.write(folder.plan.name, plan.to_json())
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(supervisor_command(folder), env=environment)


def status_of(plan: Plan, name: str) -> dict[str, Any]:
    """What the supervisor last wrote of one member; empty before it wrote anything."""
    found: dict[str, Any] = read_json(plan.folder.status).get("members", {}).get(name, {})
    return found


def wait_for(plan: Plan, name: str, state: str) -> dict[str, Any]:
    """The member's status as soon as it has this state."""
    assert wait_until(lambda: status_of(plan, name).get("state") == state, WITHIN_S), status_of(plan, name)
    return status_of(plan, name)


def wait_for_all(plan: Plan, state: str = "ready") -> None:
    for member in plan.members:
        wait_for(plan, member.name, state)


def eventually(condition: Callable[[], bool], what: str) -> None:
    assert wait_until(condition, WITHIN_S), f"not within {WITHIN_S} s: {what}"


@dataclass
class Said:
    """What `bring_up` and `take_down` say, to be read by a test."""

    progress: list[str] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.progress.append(line)

    def announce(self, line: str) -> None:
        self.announced.append(line)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    port: int,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        lower = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, lower, response.read())
    finally:
        connection.close()

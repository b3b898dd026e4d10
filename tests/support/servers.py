"""Real processes on free loopback ports, and a client that shows what came back."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
DEADLINE_S = 60.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what: str, is_true: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """Poll until `is_true` returns something true, and return that; fail at the deadline, naming what was awaited."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = is_true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {deadline_s} s: {what}")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(port: int, path: str, body: Any = None, *, method: str | None = None, headers=(), timeout_s=30.0) -> Reply:
    """One request on a connection of its own. A body that is not bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        sent = dict(headers)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("content-type", "application/json")
        connection.request(method or ("GET" if body is None else "POST"), path, body, sent)
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def is_ready(port: int) -> bool:
    try:
        return ask(port, "/readyz", timeout_s=5).status == 200
    except OSError:
        return False


class Server:
    """A started process that serves on `port`; its output goes to `log`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def ask(self, path: str, body: Any = None, **options: Any) -> Reply:
        return ask(self.port, path, body, **options)

    def wait_ready(self) -> Server:
        def ready() -> bool:
            assert self.process.poll() is None, self.output
            return is_ready(self.port)

        until(f"port {self.port} is ready", ready)
        return self

    def end(self, number: int = signal.SIGTERM, deadline_s: float = DEADLINE_S) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(deadline_s)


@contextmanager
def started(argv: list[str], port: int, folder: Path, environment: dict[str, str] | None = None):
    log = folder / f"server-{port}-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=folder,
        )
    try:
        yield Server(process, port, log)
    finally:
        process.kill()
        process.wait()


def scripted_server(folder: Path, core: int = 0, port: int | None = None, environment=None, **settings: Any):
    """The whole core server on a scripted model, see services/scripted_server.py. Settings go to its properties."""
    port = port or free_port()
    config = folder / f"config-{port}.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    argv = [sys.executable, str(TESTS / "services" / "scripted_server.py"), str(port), str(core)]
    return started(argv, port, folder, {"CORELANE_CONFIG": str(config), **(environment or {})})

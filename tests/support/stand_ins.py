"""Stand-ins for core servers: real HTTP servers on free ports that behave, well or badly, as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KNOWN = json.loads((Path(__file__).parents[2] / "src/corelane/load/questions.json").read_text(encoding="utf-8"))


class DropError(Exception):
    """Raised by a behaviour: close the connection instead of answering."""


@dataclass
class Request:
    """What a stand-in was asked."""

    core: int
    path: str
    method: str
    query: dict[str, str]
    inputs: Any


@dataclass
class Reply:
    """What it answers."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None  # these bytes instead of any HTTP

    def as_core(self, core: int) -> Reply:
        """With the header of a core server."""
        self.headers["x-corelane-core"] = str(core)
        return self


Behaviour = Callable[[Request], Reply]


def info(request: Request, model: str = "demo-qa", task: str = "question-answering", count: int = 1) -> Reply:
    """What a core says of itself."""
    about = {"name": model, "version": 1, "model": model, "task": task}
    return Reply({"core": request.core, "models": {f"model_{number}": about for number in range(count)}})


def answer(request: Request) -> Reply:
    """As demo-qa answers the committed questions."""
    for item in KNOWN["question_answering"]:
        text, context = item["answers"][0], item["context"]
        if request.method == "GET" and not request.query and item.get("static_example"):
            return Reply({"detail": text})
        if request.query == {"seq_0": item["question"], "seq_1": context}:
            return Reply({"detail": text})
        if request.inputs == {"question": item["question"], "context": context}:
            start = context.index(text)
            span = {"start": start, "end": start + len(text), "answer": text}
            return Reply({"score": 0.9, "no_answer_score": 0.01, **span})
    return Reply({"detail": "the test asked something else"}, status=422)


def healthy(request: Request) -> Reply:
    """A core server in order."""
    return (info(request) if request.path == "/info" else answer(request)).as_core(request.core)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as real servers keep them
    disable_nagle_algorithm = True
    behaviour: Behaviour
    core: int
    asked: list[Request]

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        split = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        inputs = json.loads(body)["inputs"] if body else None
        request = Request(self.core, split.path, self.command, query, inputs)
        self.asked.append(request)
        try:
            reply = type(self).behaviour(request)
        except DropError:
            self.close_connection = True
            return
        if reply.raw is not None:
            self.wfile.write(reply.raw)
            self.close_connection = True
            return
        payload = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the driver did not wait for it
            self.wfile.write(payload)

    do_GET = do_POST = _serve  # noqa: N815

    def log_message(self, *args: object) -> None:
        """Quiet: the tests read what the driver says."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with the usual 5, connections that come at once wait a second for their turn


class StandIn:
    """A running stand-in: its port, and everything it was asked."""

    def __init__(self, behaviour: Behaviour, core: int, port: int) -> None:
        self.asked: list[Request] = []
        members = {"behaviour": staticmethod(behaviour), "core": core, "asked": self.asked}
        self._server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), members))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""A core server's stand-in: ready at once, and every answer says who gave it.

    answers.py --port P [--core N] [--deaf]        --deaf: SIGTERM does not end it

A query of `hold=FILE` writes FILE.CORE and keeps the answer back until FILE exists.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Quiet: HAProxy's checks hang up as soon as they have seen enough."""

    def server_bind(self) -> None:
        # Without the look-up of this host's name, which may ask the network.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.server_address[1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024  # head and body in one piece: after a kill between the two nobody could ask again

    def do_GET(self) -> None:
        hold = parse_qs(urlsplit(self.path).query).get("hold")
        if hold:
            Path(f"{hold[0]}.{arguments.core}").touch()
            while not Path(hold[0]).exists():
                time.sleep(0.01)
        length = int(self.headers.get("content-length", 0))
        self._answer({"body_bytes": len(self.rfile.read(length))})

    do_POST = do_GET  # noqa: N815  (the library's name)

    def _answer(self, more: dict[str, object]) -> None:
        about = {
            "core": arguments.core,
            "pid": os.getpid(),
            "path": self.path,
            "request_id": self.headers.get("x-request-id"),
            "visible_cores": os.environ.get("NEURON_RT_VISIBLE_CORES"),
            **more,
        }
        body = json.dumps(about).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the log is for what a test prints."""


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--core", type=int, default=0)
parser.add_argument("--deaf", action="store_true")
arguments = parser.parse_args()
signal.signal(signal.SIGTERM, signal.SIG_IGN if arguments.deaf else lambda *_: os._exit(0))
print(f"listening on {arguments.port}", file=sys.stderr, flush=True)
Server(("127.0.0.1", arguments.port), Handler).serve_forever()

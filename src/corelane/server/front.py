"""What stands in front of the framework: the headers that every answer carries, and the short way to the models.

No framework middleware: those run the application in a task of its own and hide the caller's disconnect from it.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corelane.engine import RESTART_S
from corelane.errors import UnavailableError
from corelane.server.model import ENDING
from corelane.server.predictions import Endpoint
from corelane.server.reply import Headers, Reply, refusal

# What a caller may choose as the request's id: it is echoed, and written to logs.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class Front:
    """Answers `endpoints` (by path) itself and leaves the rest to `app`; adds `x-request-id` (the caller's if it sent a
    usable one) and `x-corelane-core`."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint], core: int) -> None:
        self.app = app
        self.endpoints = endpoints
        self._core = (b"x-corelane-core", str(core).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope["headers"])
        ours: Headers = [(b"x-request-id", request_id), self._core]
        endpoint = self.endpoints.get(scope["path"])
        if endpoint is not None and scope["method"] in endpoint.methods:
            await self._answer(endpoint, scope, receive, send, request_id.decode(), ours)
            return
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *ours]
            await send(message)

        await self.app(scope, receive, send_with_headers)

    @staticmethod
    async def _answer(
        endpoint: Endpoint, scope: Scope, receive: Receive, send: Send, request_id: str, ours: Headers
    ) -> None:
        try:
            reply = await endpoint.answer(scope, receive)
        except asyncio.CancelledError:  # the drain time is over and the request was still being read or tokenized
            await _send(send, refusal(UnavailableError(ENDING, RESTART_S), request_id), ours)
            raise
        except Exception as error:  # the edge: whatever it was, the caller gets an answer
            reply = refusal(error, request_id)
        await _send(send, reply, ours)


async def _send(send: Send, reply: Reply, ours: Headers) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(reply.body)).encode()),
        *reply.headers,
        *ours,
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _request_id(headers: Headers) -> bytes:
    """The first one given, as at the gateway, if it is usable; else a new one."""
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()

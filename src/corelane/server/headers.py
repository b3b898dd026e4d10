"""The headers that every answer carries, whatever gave it: a pure ASGI layer around the application.

Not a framework middleware: those run the application in a task of its own and hide the caller's disconnect from it.
"""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What a caller may choose as the request's id: it is echoed, and written to logs.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class StandardHeaders:
    """Adds `x-request-id` (the caller's if it sent a usable one) and `x-corelane-core`."""

    def __init__(self, app: ASGIApp, core: int) -> None:
        self.app = app
        self.core = str(core).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id),
                    (b"x-corelane-core", self.core),
                ]
            await send(message)

        await self.app(scope, receive, send_with_headers)

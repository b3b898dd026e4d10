"""An answer before any framework has seen it, and the one place where an error becomes one."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import orjson

from corelane.errors import RequestError
from corelane.server.errors import CODES, STATUS, CallerLeftError, HttpError

log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

# nginx's word for "the client closed the request"; nobody is there to read it.
CALLER_LEFT = 499


@dataclass(slots=True)
class Reply:
    """`body` is JSON; `headers` are what it needs besides its type and length."""

    status: int
    body: bytes
    headers: Headers = field(default_factory=list)


def as_json(content: Any) -> bytes:
    """Strict JSON; numpy arrays are lists of numbers."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def refusal(error: Exception, request_id: str) -> Reply:
    """What a request that ended in this error is answered with. An error nobody foresaw is logged, and is a 500."""
    if isinstance(error, RequestError):
        return _refuse(STATUS[type(error)], str(error), error.code, request_id, _retry_after(error))
    if isinstance(error, HttpError):
        return _refuse(error.status, str(error), CODES.get(error.status, "error"), request_id, error.headers)
    if isinstance(error, CallerLeftError):
        return Reply(CALLER_LEFT, b"")
    log.error("a bug in the server, request %s", request_id, exc_info=error)
    return _refuse(500, "the server failed on this request; its log has the reason", "internal", request_id, [])


def item_of(error: RequestError) -> dict[str, Any]:
    """What stands at a failed item's place in a list whose other items were answered."""
    return {"error": {"detail": str(error), "code": error.code}}


def _refuse(status: int, detail: str, code: str, request_id: str, headers: Headers) -> Reply:
    return Reply(status, as_json({"detail": detail, "code": code, "request_id": request_id}), headers)


def _retry_after(error: RequestError) -> Headers:
    """In whole seconds, rounded up, where the error knows it."""
    retry_after_s = getattr(error, "retry_after_s", None)
    return [] if retry_after_s is None else [(b"retry-after", str(max(1, math.ceil(retry_after_s))).encode())]

"""What each error means in HTTP: one table, and the JSON body that every error has."""

from __future__ import annotations

import math
from typing import Any

from corelane.errors import (
    ComputeError,
    CorelaneError,
    DeadlineError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    RequestError,
    TooLargeError,
    UnavailableError,
)

STATUS: dict[type[CorelaneError], int] = {
    InvalidInputError: 422,
    NotFoundError: 404,
    TooLargeError: 413,
    OverloadedError: 429,
    UnavailableError: 503,
    DeadlineError: 504,
    ComputeError: 500,
    RequestError: 500,
}

# HTTP's own refusals (raised by the framework, or by us where only HTTP is at fault) have a word too.
CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_type",
}


class HttpError(Exception):
    """A request that is wrong as HTTP, before any model is concerned: `status` is one of CODES."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}


def status_of(error: RequestError) -> int:
    """The HTTP status of a request's error."""
    return STATUS[type(error)]


def headers_of(error: RequestError) -> dict[str, str]:
    """`Retry-After` in whole seconds, rounded up, where the error knows one."""
    retry_after_s = getattr(error, "retry_after_s", None)
    return {} if retry_after_s is None else {"retry-after": str(max(1, math.ceil(retry_after_s)))}


def body_of(detail: str, code: str, request_id: str) -> dict[str, Any]:
    """The body of every error answer."""
    return {"detail": detail, "code": code, "request_id": request_id}


def item_of(error: RequestError) -> dict[str, Any]:
    """What stands at a failed item's place in a list whose other items were answered."""
    return {"error": {"detail": str(error), "code": error.code}}

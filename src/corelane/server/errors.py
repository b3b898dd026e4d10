"""What each error means in HTTP: one table, and the errors that only HTTP knows."""

from __future__ import annotations

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

# HTTP's own refusals have a word too.
CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    415: "unsupported_type",
}


class HttpError(Exception):
    """A request that is wrong as HTTP, before any model is concerned; `status` is one of CODES."""

    def __init__(self, status: int, detail: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or []


class CallerLeftError(Exception):
    """The caller closed the connection; there is nobody to answer."""

"""From the bytes of a request to items and parameters: strict, and each refusal names what was found.

JSON by RFC 8259 in UTF-8; of a key given twice the last counts; NaN and infinity are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson
from starlette.types import Receive

from corelane.errors import InvalidInputError
from corelane.server.errors import CallerLeftError, HttpError
from corelane.tasks.text import describe, quote

QUERY_FIELDS = ("seq_0", "seq_1")


@dataclass(frozen=True, slots=True)
class Payload:
    """The items of one request; `is_list` tells whether the caller sent a list, and so gets one."""

    items: list[Any]
    is_list: bool
    parameters: Any


def parse_query(query: bytes) -> tuple[str | None, str | None]:
    """(seq_0, seq_1) of the static endpoint; None for one that is absent, "" for one that is empty.

    Invalid UTF-8 is a 400, an unknown or repeated field a 422: a misspelt `seq_0` must not be answered with the
    built-in example.
    """
    found: dict[str, str] = {}
    for part in query.split(b"&") if query else ():
        name, _, value = part.partition(b"=")
        try:
            key, text = (unquote_to_bytes(raw.replace(b"+", b" ")).decode() for raw in (name, value))
        except UnicodeDecodeError as error:
            raise HttpError(400, f"the query is not UTF-8: {error.reason} at byte {error.start} of a field") from error
        if key not in QUERY_FIELDS:
            raise InvalidInputError(f"unknown query field {quote(key)}; this endpoint takes seq_0 and seq_1")
        if key in found:
            raise InvalidInputError(f"{key} was given twice; give it once")
        found[key] = text
    return found.get("seq_0"), found.get("seq_1")


async def read_body(
    receive: Receive,
    headers: Mapping[bytes, bytes],
    max_bytes: int,
    deadline: float | None = None,
    *,
    must_be_json: bool = False,
) -> bytes:
    """The whole body. HttpError 408 when it is not there at the deadline (`loop.time()`), 413 as soon as it is known to
    pass `max_bytes`, 415 when it must be JSON in UTF-8 and is not."""
    if must_be_json:
        _check_type(headers.get(b"content-type", b"").decode("latin-1"))
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    if deadline is None:
        return await _read(receive, max_bytes)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    timer = loop.call_at(deadline, task.cancel)  # cheaper than a task of its own for every request
    try:
        return await _read(receive, max_bytes)
    except asyncio.CancelledError:
        if loop.time() < deadline:
            raise  # somebody else's
        if hasattr(task, "uncancel"):  # Python 3.11 and newer count
            task.uncancel()
        raise HttpError(408, "the body was not there in time; send it whole, or allow more time") from None
    finally:
        timer.cancel()


async def _read(receive: Receive, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeftError
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise _too_large(size, max_bytes)
        if not message.get("more_body", False):
            return b"".join(chunks)


def parse_body(body: bytes) -> Payload:
    """The payload `{"inputs": item or [items], "parameters": {...}}`."""
    if not body:
        raise HttpError(400, 'the body is empty; send {"inputs": ...} as JSON')
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HttpError(
            400, f"the body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from error
    if not isinstance(document, dict):
        raise InvalidInputError(f'the body is {describe(document)}; send an object: {{"inputs": ...}}')
    unknown = sorted(set(document) - {"inputs", "parameters"})
    if unknown:
        raise InvalidInputError(f"unknown field {quote(unknown[0])} in the body; it takes inputs and parameters")
    if "inputs" not in document:
        raise InvalidInputError("the field inputs is missing from the body")
    inputs = document["inputs"]
    if inputs == []:
        raise InvalidInputError("inputs is an empty list; send at least one item")
    is_list = isinstance(inputs, list)
    return Payload(inputs if is_list else [inputs], is_list, document.get("parameters"))


def _check_type(content_type: str) -> None:
    """JSON in UTF-8, or nothing said: `curl -d` without a header says a form, and gets told what to add."""
    kind, _, rest = content_type.partition(";")
    kind = kind.strip().lower()
    if kind and kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HttpError(415, f"the content type is {kind!r}; send application/json")
    charset = rest.lower().replace('"', "").replace(" ", "").partition("charset=")[2].split(";")[0]
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise HttpError(415, f"the charset is {charset!r}; JSON is read as UTF-8")


def _too_large(size: int, limit: int) -> HttpError:
    return HttpError(413, f"the body has at least {size} bytes and the limit is {limit} (max_body_bytes); send less")

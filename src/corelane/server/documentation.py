"""What /docs says: the parts of the OpenAPI page that the framework cannot see, since bodies are parsed by us."""

from __future__ import annotations

from typing import Any

from corelane.server.errors import CODES, STATUS
from corelane.tasks.base import Task

PREDICTIONS = "predictions"
HEALTH = "health"

DESCRIPTION = """One server, pinned to one core. Offsets are code points of the text as sent. Errors are
`{"detail", "code", "request_id"}`; in a list, a failed item's place holds `{"error": {"detail", "code"}}`.
Every answer carries `x-request-id` and `x-corelane-core`; predictions also `x-corelane-model` (name@version),
`server-timing` (encode, queue, compute, decode, in ms) and, where a text had to be cut, `x-corelane-truncated`
(the items' positions). A query string holds some 60,000 bytes; POST longer texts."""

TAGS = [
    {"name": PREDICTIONS, "description": "Ask a model."},
    {"name": HEALTH, "description": "What runs here, and whether it can answer."},
]

_ERROR_SCHEMA = {
    "type": "object",
    "required": ["detail", "code", "request_id"],
    "properties": {
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "request_id": {"type": "string"},
    },
}

_TIMEOUT = {
    "name": "x-request-timeout-ms",
    "in": "header",
    "required": False,
    "description": "lowers the request's deadline, in milliseconds",
    "schema": {"type": "integer", "minimum": 1},
}


def operation(method: str, task: Task, label: str) -> dict[str, Any]:
    """The OpenAPI operation of one static endpoint: summary, query or body."""
    common = {"summary": f"{task.name} by {label}", "parameters": [_TIMEOUT]}
    if method == "GET":
        query = [
            {
                "name": name,
                "in": "query",
                "required": False,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, text in task.query.items()
        ]
        return {
            **common,
            "description": "Without arguments: the built-in example.",
            "parameters": [*query, _TIMEOUT],
        }
    item = task.item_schema
    schema = {
        "type": "object",
        "required": ["inputs"],
        "additionalProperties": False,
        "properties": {
            "inputs": {"oneOf": [item, {"type": "array", "minItems": 1, "items": item}]},
            "parameters": task.parameters.model_json_schema(),
        },
    }
    body = {
        "required": True,
        "content": {"application/json": {"schema": schema, "example": {"inputs": task.example}}},
    }
    return {**common, "description": "One item, or a list of items.", "requestBody": body}


def responses(method: str, task: Task) -> dict[int | str, dict[str, Any]]:
    """The answers by status; the errors' statuses come from the one table."""
    answer = task.answer_schema
    schema: dict[str, Any] = {"oneOf": [answer, {"type": "array", "items": answer}]}
    if method == "GET":
        schema = {"type": "object", "required": ["detail"], "properties": {"detail": task.detail_schema}}
    found: dict[int | str, dict[str, Any]] = {
        200: {"description": "The answer.", "content": {"application/json": {"schema": schema}}}
    }
    texts = {status: code.replace("_", " ") for status, code in CODES.items()}
    for error, status in STATUS.items():
        texts[status] = (error.__doc__ or "").partition(";")[0].partition(".")[0]
    for status, text in sorted(texts.items()):
        found[status] = {"description": text + ".", "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
    return found

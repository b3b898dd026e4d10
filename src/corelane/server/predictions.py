"""GET and POST of one model's static endpoint: from an ASGI request to a reply, without a framework in between.

The framework's own layers cost about as much CPU as the rest of a short request. They stay, for everything else and
for the API page; `front` calls this directly, and the framework's routes call the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope

from corelane.errors import RequestError
from corelane.server.model import Answers, Model, deadline_after
from corelane.server.payload import parse_body, parse_query, read_body
from corelane.server.reply import Headers, Reply, as_json, item_of


class Endpoint:
    """One model under its paths. `methods` are those it answers."""

    methods = ("GET", "POST")

    def __init__(self, model: Model, *, request_timeout_ms: int, max_body_bytes: int) -> None:
        self.model = model
        self._request_timeout_ms = request_timeout_ms
        self._max_body_bytes = max_body_bytes
        self._label = (b"x-corelane-model", model.label.encode())

    async def answer(self, scope: Scope, receive: Receive) -> Reply:
        """The reply to one request of `methods`; raises RequestError, HttpError and CallerLeftError."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        return await (self._get if scope["method"] == "GET" else self._post)(scope, headers, receive)

    async def _get(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Reply:
        item = self.model.task.from_query(*parse_query(scope["query_string"]))
        deadline = self._deadline(headers)
        await read_body(
            receive, headers, self._max_body_bytes, deadline
        )  # of no meaning; what follows it is the disconnect
        answers = await self.model.predict([item], None, deadline, _caller_left(receive))
        answer = answers.answers[0]
        if isinstance(answer, RequestError):
            raise answer
        return Reply(200, as_json({"detail": self.model.task.detail(answer)}), self._headers(answers))

    async def _post(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Reply:
        deadline = self._deadline(headers)
        payload = parse_body(await read_body(receive, headers, self._max_body_bytes, deadline, must_be_json=True))
        answers = await self.model.predict(payload.items, payload.parameters, deadline, _caller_left(receive))
        first = answers.answers[0]
        if isinstance(first, RequestError) and answers.all_failed:
            raise first
        content = [item_of(a) if isinstance(a, RequestError) else a for a in answers.answers]
        body = await self.model.offload(answers.is_heavy, as_json, content if payload.is_list else content[0])
        return Reply(200, body, self._headers(answers))

    def _deadline(self, headers: dict[bytes, bytes]) -> float | None:
        return deadline_after(self._request_timeout_ms, headers.get(b"x-request-timeout-ms"))

    def _headers(self, answers: Answers) -> Headers:
        timing = ", ".join(f"{name};dur={seconds * 1e3:.2f}" for name, seconds in answers.timing.items())
        headers = [self._label, (b"server-timing", timing.encode())]
        if answers.truncated:
            headers.append((b"x-corelane-truncated", ",".join(map(str, answers.truncated)).encode()))
        return headers


def _caller_left(receive: Receive) -> Callable[[], Awaitable[None]]:
    """Returns once the caller has closed the connection; to be awaited only after the body was read."""

    async def wait() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    return wait

"""The FastAPI application of one core's server: static endpoints, health, and the table of errors."""

from __future__ import annotations

import http
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from corelane import __version__
from corelane.errors import NotFoundError, RequestError, UnavailableError
from corelane.server import documentation
from corelane.server.errors import CODES, HttpError, body_of, headers_of, item_of, status_of
from corelane.server.headers import StandardHeaders
from corelane.server.model import Answers, CallerLeftError, Model, deadline_after
from corelane.server.payload import parse_body, parse_query, read_body

# nginx's word for "the client closed the request"; nobody is there to read it.
CALLER_LEFT = 499


@dataclass
class Serving:
    """What one core's server serves, and whether it may be asked right now."""

    core: int
    models: Sequence[Model]
    request_timeout_ms: int
    max_body_bytes: int
    about: dict[str, Any] = field(default_factory=dict)
    why_not_ready: Callable[[], str | None] = lambda: None

    def paths(self, model: Model) -> tuple[str, ...]:
        """The model's static path, and the one under which the gateway reaches it on any core."""
        return (f"/predictions_neuron_core_{self.core}/{model.name}", f"/predictions/{model.name}")


def create_app(serving: Serving) -> ASGIApp:
    """The application, ready to be given to Hypercorn."""
    app = FastAPI(
        title=f"corelane, core {serving.core}",
        version=__version__,
        description=documentation.DESCRIPTION,
        openapi_tags=documentation.TAGS,
        redirect_slashes=False,  # a path with a trailing slash is another path, and a redirect would hide that
    )
    _add_errors(app, serving)
    _add_health(app, serving)
    for model in serving.models:
        for path in serving.paths(model):
            _add_static(app, serving, model, path)
    return StandardHeaders(app, serving.core)


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


def _add_static(app: FastAPI, serving: Serving, model: Model, path: str) -> None:
    """GET and POST of one model under one path."""

    async def ask(request: Request, items: list[Any], parameters: Any) -> Answers:
        deadline = deadline_after(serving.request_timeout_ms, request.headers.get("x-request-timeout-ms"))
        return await model.predict(items, parameters, deadline, _caller_left(request))

    async def get(request: Request) -> Response:
        item = model.task.from_query(*parse_query(request.scope["query_string"]))
        answers = await ask(request, [item], None)
        answer = answers.answers[0]
        if isinstance(answer, RequestError):
            raise answer
        return _json({"detail": model.task.detail(answer)}, headers=_prediction_headers(model, answers))

    async def post(request: Request) -> Response:
        payload = parse_body(await read_body(request, serving.max_body_bytes))
        answers = await ask(request, payload.items, payload.parameters)
        first = answers.answers[0]
        if isinstance(first, RequestError) and answers.all_failed:
            raise first
        content = [item_of(a) if isinstance(a, RequestError) else a for a in answers.answers]
        return _json(content if payload.is_list else content[0], headers=_prediction_headers(model, answers))

    for method, handler in (("GET", get), ("POST", post)):
        app.add_api_route(
            path,
            handler,
            methods=[method],
            tags=[documentation.PREDICTIONS],
            operation_id=f"{method.lower()}{path.replace('/', '_')}",
            openapi_extra=documentation.operation(method, model.task, model.label),
            responses=documentation.responses(method, model.task),
        )


def _prediction_headers(model: Model, answers: Answers) -> dict[str, str]:
    timing = ", ".join(f"{name};dur={seconds * 1e3:.2f}" for name, seconds in answers.timing.items())
    headers = {"x-corelane-model": model.label, "server-timing": timing}
    if answers.truncated:
        headers["x-corelane-truncated"] = ",".join(map(str, answers.truncated))
    return headers


def _caller_left(request: Request) -> Callable[[], Awaitable[None]]:
    """Returns once the caller has closed the connection. To be awaited only after the body was read."""

    async def wait() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return wait


def _add_health(app: FastAPI, serving: Serving) -> None:
    tags: list[str | Enum] = [documentation.HEALTH]

    @app.get("/", tags=tags, summary="The sample's health check")
    async def root() -> dict[str, str]:
        """`{"Status": "Healthy"}` while the server lives."""
        return {"Status": "Healthy"}

    @app.get("/livez", tags=tags, summary="Is the process alive?")
    async def livez() -> dict[str, str]:
        """200 while the process lives and its event loop turns."""
        return {"status": "alive"}

    @app.get("/readyz", tags=tags, summary="Can it answer right now?")
    async def readyz() -> dict[str, str]:
        """200 when a request sent now would be answered, else 503 with the reason."""
        reason = serving.why_not_ready()
        if reason is not None:
            raise UnavailableError(reason, 1.0)
        return {"status": "ready"}

    @app.get("/info", tags=tags, summary="What runs here")
    async def info() -> dict[str, Any]:
        """The core, its process and its models: bundle, shapes and their measured costs in milliseconds."""
        models = {
            model.name: {
                **model.about,
                "cost_ms": {str(shape): round(cost * 1e3, 3) for shape, cost in model.slot.costs.items()},
            }
            for model in serving.models
        }
        core = serving.models[0].core
        load = {"is_running": core.is_running, "waiting_rows": core.waiting_rows}
        return {"core": serving.core, **serving.about, "load": load, "models": models}


def _add_errors(app: FastAPI, serving: Serving) -> None:
    """Every way a request can end without an answer, as JSON."""

    def refuse(request: Request, status: int, detail: str, code: str, headers: dict[str, str]) -> Response:
        return _json(body_of(detail, code, request.state.request_id), status, headers)

    @app.exception_handler(RequestError)
    async def request_error(request: Request, error: RequestError) -> Response:
        return refuse(request, status_of(error), str(error), error.code, headers_of(error))

    @app.exception_handler(HttpError)
    async def http_error(request: Request, error: HttpError) -> Response:
        return refuse(request, error.status, str(error), CODES[error.status], error.headers)

    @app.exception_handler(CallerLeftError)
    async def caller_left(request: Request, error: CallerLeftError) -> Response:
        return Response(status_code=CALLER_LEFT)

    @app.exception_handler(HTTPException)
    async def framework_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == http.HTTPStatus.NOT_FOUND:
            return await request_error(request, NotFoundError(_what_exists(serving, request.url.path)))
        detail = f"{request.method} is not answered at {request.url.path}; see /docs"
        code = CODES.get(error.status_code, "error")
        return refuse(request, error.status_code, detail, code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        # The traceback goes to the log (the framework raises the error again after this answer).
        return refuse(request, 500, "the server failed on this request; the log has the reason", "internal", {})


def _what_exists(serving: Serving, path: str) -> str:
    shown = path if len(path) <= 200 else path[:200] + "..."
    paths = ", ".join(serving.paths(model)[0] for model in serving.models)
    return f"nothing is served at {shown!r}; this is core {serving.core}'s server and it serves {paths}"

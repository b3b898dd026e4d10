"""The FastAPI application of one core's server: static endpoints, health, and the table of errors."""

from __future__ import annotations

import http
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from corelane import __version__
from corelane.errors import NotFoundError, RequestError, UnavailableError
from corelane.server import documentation
from corelane.server.errors import HttpError
from corelane.server.front import Front
from corelane.server.model import Model
from corelane.server.predictions import Endpoint
from corelane.server.reply import Reply, refusal


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
    endpoints: dict[str, Endpoint] = {}
    for model in serving.models:
        endpoint = Endpoint(model, request_timeout_ms=serving.request_timeout_ms, max_body_bytes=serving.max_body_bytes)
        for path in serving.paths(model):
            _add_static(app, endpoint, path)
            endpoints[path] = endpoint
    return Front(app, endpoints, serving.core)


def _add_static(app: FastAPI, endpoint: Endpoint, path: str) -> None:
    """An endpoint's routes, for the API page; `Front` answers before they are reached."""

    async def answer(request: Request) -> Response:
        return _response(await endpoint.answer(request.scope, request.receive))

    model = endpoint.model
    for method in endpoint.methods:
        app.add_api_route(
            path,
            answer,
            methods=[method],
            tags=[documentation.PREDICTIONS],
            operation_id=f"{method.lower()}{path.replace('/', '_')}",
            openapi_extra=documentation.operation(method, model.task, model.label),
            responses=documentation.responses(method, model.task),
        )


def _response(reply: Reply) -> Response:
    response = Response(reply.body, reply.status, media_type="application/json")
    response.raw_headers.extend(reply.headers)
    return response


def _add_health(app: FastAPI, serving: Serving) -> None:
    tags: list[str | Enum] = [documentation.HEALTH]

    @app.get("/", tags=tags, summary="Does the server live?")
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
        load = {"is_running": core.is_running, "waiting_rows": core.waiting_rows, "rows": asdict(core.rows)}
        return {"core": serving.core, **serving.about, "load": load, "models": models}


def _add_errors(app: FastAPI, serving: Serving) -> None:
    """Every way a request can end without an answer, as JSON."""

    async def refuse(request: Request, error: Exception) -> Response:
        return _response(refusal(error, request.state.request_id))

    async def refuse_as_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == http.HTTPStatus.NOT_FOUND:
            return await refuse(request, NotFoundError(_what_exists(serving, request.url.path)))
        detail = f"{request.method} is not answered at {request.url.path}; see /docs"
        headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
        if any(request.url.path in serving.paths(model) for model in serving.models):
            # The framework names the methods of the first route that it found.
            headers = [(b"allow", ", ".join(Endpoint.methods).encode())]
        return await refuse(request, HttpError(error.status_code, detail, headers))

    app.add_exception_handler(RequestError, refuse)
    app.add_exception_handler(HTTPException, refuse_as_http)
    app.add_exception_handler(Exception, refuse)  # the framework raises it again after this answer


def _what_exists(serving: Serving, path: str) -> str:
    shown = path if len(path) <= 200 else path[:200] + "..."
    paths = ", ".join(serving.paths(model)[0] for model in serving.models)
    return f"nothing is served at {shown!r}; this is core {serving.core}'s server and it serves {paths}"

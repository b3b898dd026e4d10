"""The life of one core's server: claim the port, load, serve, drain, and an exit code that says why it ended.

Nothing listens before the model has been loaded, warmed and has answered its golden inputs rightly.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, cast

from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config

from corelane.engine import Core, Ticket
from corelane.errors import ConfigError, CoreLostError
from corelane.server.app import Serving, create_app
from corelane.server.ending import LAST_WORDS_S, SIGNALS, Ending
from corelane.server.loading import Loaded, load_models
from corelane.server.model import hand_out
from corelane.settings import Settings

log = logging.getLogger(__name__)

# Brings up the models; the function that it gets is to be called when the core is lost.
Loader = Callable[[Settings, Executor, Callable[[CoreLostError], None]], Loaded]

# A port that is still held by a server which is just ending is worth this wait; a longer hold is somebody else's.
PORT_WAIT_S = 2.0

# Hypercorn's own limits, where its defaults are small for a server behind a gateway with a connection pool.
BACKLOG = 1024
# Longer than any client's pool, so that the client closes first and no request meets a closed socket.
KEEP_ALIVE_S = 75.0
KEEP_ALIVE_REQUESTS = 1_000_000_000  # Hypercorn would close a connection after 1,000 requests
MAX_HEADER_BYTES = 64 * 1024  # request line and headers: GET carries its texts in the query


def run(settings: Settings, core_number: int, port: int, load: Loader = load_models) -> int:
    """Serve on this process's core, until told to end, what `load` brings. Returns 0; raises CorelaneError."""
    began = time.monotonic()
    ending = Ending(settings.drain_timeout_ms / 1e3)
    ending.end_while_loading()
    listener = _claim(settings.bind_address, port)
    with contextlib.closing(listener), ThreadPoolExecutor(2, "text") as executor:
        loaded = load(settings, executor, ending.lose)
        gc.collect()
        gc.freeze()  # what was loaded stays: no collection has to look at it again
        serving = Serving(
            core_number,
            loaded.models,
            settings.request_timeout_ms,
            settings.max_body_bytes,
            about={**loaded.about, "pid": os.getpid(), "port": port},
            why_not_ready=lambda: ending.why_not_ready(loaded.core),
        )
        _listen(listener, settings.bind_address, port)
        log.info(
            "core %d serves %s on %s:%d after %.1f s",
            core_number, loaded.models[0].label, settings.bind_address, port, time.monotonic() - began,
        )  # fmt: skip
        ending.watch(loaded.core)
        _run_loop(_serve(serving, loaded.core, listener, ending))
        loaded.core.close()
    if ending.error is not None:
        raise ending.error
    return 0


async def _serve(serving: Serving, core: Core, listener: socket.socket, ending: Ending) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_done(tickets: list[Ticket]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for these any more
            loop.call_soon_threadsafe(hand_out, tickets)

    def give_up() -> None:
        ending.cut_off += sum(model.give_up() for model in serving.models)

    def begin_drain() -> None:
        stop.set()
        loop.call_later(ending.drain_s, give_up)

    ending.attach(
        drain=lambda: loop.call_soon_threadsafe(begin_drain),
        give_up=lambda: loop.call_soon_threadsafe(give_up),
    )
    loop.set_exception_handler(_report)
    for number in SIGNALS:
        loop.add_signal_handler(number, ending.ask, number)
    core.start(on_done)
    # Two projects write the same ASGI types in two ways; the cast stands for "it is an ASGI application".
    app = cast(Any, create_app(serving))
    await hypercorn_serve(app, _hypercorn(listener, ending.drain_s + LAST_WORDS_S), shutdown_trigger=stop.wait)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """All but one kind of noise: the streams of Python 3.11 report the cancellation of a connection, at a drain that it
    outlasts, as an error."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


def _hypercorn(listener: socket.socket, graceful_s: float) -> Config:
    config = Config()
    config.bind = [f"fd://{os.dup(listener.fileno())}"]
    config.backlog = BACKLOG
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.keep_alive_max_requests = KEEP_ALIVE_REQUESTS
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.graceful_timeout = graceful_s
    config.include_server_header = False
    config.loglevel = "WARNING"
    return config


def _claim(address: str, port: int) -> socket.socket:
    """Bind the port before anything slow is done, so that one that is taken is known at once."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + PORT_WAIT_S
    while True:
        try:
            listener.bind((address, port))
            return listener
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) != errno.EADDRINUSE or time.monotonic() > deadline:
                listener.close()
                raise _taken(address, port, error) from error
            time.sleep(0.05)


def _listen(listener: socket.socket, address: str, port: int) -> None:
    """Listen now that there is something to say. Another server may have bound the same port and come first."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise _taken(address, port, error) from error


def _taken(address: str, port: int, error: OSError | OverflowError) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"port {port} of {address} cannot be taken ({reason}); free it, or change first_port")


def _run_loop(main: Coroutine[None, None, None]) -> None:
    """Run in an event loop by uvloop where it exists (about a third less CPU per request), else the standard one."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
    finally:
        asyncio.set_event_loop(None)
        loop.close()

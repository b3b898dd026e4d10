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
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, cast

from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config

from corelane.engine import Core, Ticket
from corelane.errors import ConfigError, CoreLostError, DrainForcedError
from corelane.server.app import Serving, create_app
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
KEEP_ALIVE_S = (
    75.0  # longer than any client's pool, so that the client closes first and no request meets a closed socket
)
KEEP_ALIVE_REQUESTS = 1_000_000_000  # Hypercorn would close a connection after 1,000 requests
MAX_HEADER_BYTES = 64 * 1024  # request line and headers: GET carries its texts in the query

# What is left after the drain time, or after the watchdog's verdict, to send the waiting callers a 503.
LAST_WORDS_S = 0.5
WATCHDOG_PERIOD_S = 0.25


def run(settings: Settings, core_number: int, port: int, load: Loader = load_models) -> int:
    """Serve on this process's core, until told to end, what `load` brings. Returns 0; raises CorelaneError."""
    began = time.monotonic()
    listener = _claim(settings.bind_address, port)
    with contextlib.closing(listener), ThreadPoolExecutor(2, "text") as executor:
        ended = Ending(settings.drain_timeout_ms / 1e3)
        loaded = load(settings, executor, ended.lose)
        core = loaded.core
        gc.collect()
        gc.freeze()  # what was loaded stays: no collection has to look at it again
        serving = Serving(
            core_number,
            loaded.models,
            settings.request_timeout_ms,
            settings.max_body_bytes,
            about={**loaded.about, "pid": os.getpid(), "port": port},
            why_not_ready=lambda: ended.why_not_ready(core),
        )
        ended.watch(core)
        log.info(
            "core %d serves %s on %s:%d after %.1f s",
            core_number, loaded.models[0].label, settings.bind_address, port, time.monotonic() - began,
        )  # fmt: skip
        _run_loop(_serve(serving, core, listener, ended))
        core.close()
    if ended.lost is not None:
        raise ended.lost
    return 0


async def _serve(serving: Serving, core: Core, listener: socket.socket, ended: Ending) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_done(tickets: list[Ticket]) -> None:
        loop.call_soon_threadsafe(hand_out, tickets)

    core.on_done = on_done
    core.start()

    def give_up() -> None:
        for model in serving.models:
            model.give_up()

    def begin_drain() -> None:
        stop.set()
        loop.call_later(ended.drain_s, give_up)

    ended.attach(
        drain=lambda: loop.call_soon_threadsafe(begin_drain),
        give_up=lambda: loop.call_soon_threadsafe(give_up),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.ask, number)
    # Two projects write the same ASGI types in two ways; the cast stands for "it is an ASGI application".
    app = cast(Any, create_app(serving))
    await hypercorn_serve(app, _hypercorn(listener, ended.drain_s + LAST_WORDS_S), shutdown_trigger=stop.wait)


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
    """Bind the port before anything slow is done; Hypercorn begins to listen on it when the models are ready."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + PORT_WAIT_S
    while True:
        try:
            listener.bind((address, port))
            return listener
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                listener.close()
                raise ConfigError(
                    f"port {port} of {address} cannot be taken ({error.strerror}); free it, or change first_port"
                ) from error
            time.sleep(0.05)


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


class Ending:
    """How this process ends: asked to, its core lost, or by force. Safe to call from any thread."""

    def __init__(self, drain_s: float) -> None:
        self.drain_s = drain_s
        self.lost: CoreLostError | None = None
        self._asked_at: float | None = None
        self._drain: Callable[[], object] = lambda: None
        self._give_up: Callable[[], object] = lambda: None

    def attach(self, drain: Callable[[], object], give_up: Callable[[], object]) -> None:
        """`drain` makes the server take no more and finish; `give_up` answers what still waits with 503."""
        self._drain, self._give_up = drain, give_up
        if self._asked_at is not None:
            self._drain()

    def ask(self, number: int) -> None:
        """A signal: the first one drains, the second ends at once."""
        if self._asked_at is not None:
            self._force(DrainForcedError("ended at once by a second signal"))
        log.info("asked to end by %s; draining for at most %.1f s", signal.Signals(number).name, self.drain_s)
        self._begin()

    def lose(self, error: CoreLostError) -> None:
        """The core cannot go on: its callers have been answered; end the process so that a fresh one can start."""
        self.lost = error
        self._begin()

    def why_not_ready(self, core: Core) -> str | None:
        """None when a request sent now would be answered."""
        if self.lost is not None:
            return f"the core is lost ({self.lost}); a restart is on its way"
        if self._asked_at is not None:
            return "the server is draining; use another core"
        if core.stuck_for_s() > 0:
            return "a batch is stuck on the core; a restart is on its way"
        return None

    def watch(self, core: Core) -> None:
        """Start the watchdog: a thread of its own, since a stuck event loop must not stop it."""
        threading.Thread(target=self._watch, args=(core,), name="watchdog", daemon=True).start()

    def _watch(self, core: Core) -> None:
        while True:
            time.sleep(WATCHDOG_PERIOD_S)
            if core.stuck_for_s() > 0:
                self._give_up()
                time.sleep(LAST_WORDS_S)
                self._force(CoreLostError("a batch took more than ten times its shape's usual time; the core is stuck"))
            if self._asked_at is not None and time.monotonic() - self._asked_at > self.drain_s + 2 * LAST_WORDS_S:
                self._force(self.lost or DrainForcedError(f"requests were still running after {self.drain_s:.1f} s"))

    def _begin(self) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._drain()

    @staticmethod
    def _force(error: CoreLostError | DrainForcedError) -> None:
        """End now, from whatever thread: no clean-up can be trusted any more."""
        print(f"corelane: error: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)

"""How a server's process ends: asked to, its core lost, or by force. Its exit code says which."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from corelane.engine import Core
from corelane.errors import CorelaneError, CoreLostError, DrainForcedError

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)

# What is left after the drain time, or after the watchdog's verdict, to send the waiting callers a 503.
LAST_WORDS_S = 0.5
WATCHDOG_PERIOD_S = 0.25


class Ending:
    """Safe to call from any thread. `drain_s` is what running requests get once the process was asked to end."""

    def __init__(self, drain_s: float) -> None:
        self.drain_s = drain_s
        self.lost: CoreLostError | None = None
        self.cut_off = 0  # requests that were given up at the end of the drain time
        self._signals = 0
        self._began_at: float | None = None
        self._drain: Callable[[], object] = lambda: None
        self._give_up: Callable[[], object] = lambda: None

    def end_while_loading(self) -> None:
        """Until `attach`, a signal ends the process at once, as asked: nobody waits for anything yet."""

        def end(number: int, frame: FrameType | None) -> None:
            raise SystemExit(0)

        for number in SIGNALS:
            signal.signal(number, end)

    def attach(self, drain: Callable[[], object], give_up: Callable[[], object]) -> None:
        """`drain` makes the server take no more and finish; `give_up` answers what still waits with 503."""
        self._drain, self._give_up = drain, give_up
        if self._began_at is not None:
            self._drain()

    def ask(self, number: int) -> None:
        """A signal: the first one drains, the second ends at once."""
        self._signals += 1
        if self._signals > 1:
            self._force(self.lost or DrainForcedError("ended at once by a second signal"))
        log.info("asked to end by %s; draining for at most %.1f s", signal.Signals(number).name, self.drain_s)
        self._begin()

    def lose(self, error: CoreLostError) -> None:
        """The core cannot go on: its callers have been answered; end the process so that a fresh one can start."""
        self.lost = error
        self._begin()

    @property
    def error(self) -> CorelaneError | None:
        """Why the process did not end as asked; None when it did."""
        if self.lost is None and self.cut_off:
            return DrainForcedError(f"{self.cut_off} requests were still running after {self.drain_s:.1f} s")
        return self.lost

    def why_not_ready(self, core: Core) -> str | None:
        """None when a request sent now would be answered."""
        if self.lost is not None:
            return f"the core is lost ({self.lost}); a restart is on its way"
        if self._began_at is not None:
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
                with contextlib.suppress(RuntimeError):  # the event loop is gone: nobody is left to be told
                    self._give_up()
                time.sleep(LAST_WORDS_S)
                self._force(CoreLostError("a batch took more than ten times its shape's usual time; the core is stuck"))
            if self._began_at is not None and time.monotonic() - self._began_at > self.drain_s + 2 * LAST_WORDS_S:
                self._force(self.error or DrainForcedError(f"the server was still busy after {self.drain_s:.1f} s"))

    def _begin(self) -> None:
        if self._began_at is None:
            self._began_at = time.monotonic()
            self._drain()

    @staticmethod
    def _force(error: CorelaneError) -> None:
        """End now, from whatever thread: no clean-up can be trusted any more."""
        print(f"corelane: error: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)

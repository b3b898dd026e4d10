"""When is a process that ended started again? One table over the exit codes of a core server, and a pure
counter."""

from __future__ import annotations

import signal
from dataclasses import dataclass

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
# A core that another process owns is not free again within a tenth of a second.
BUSY_FIRST_DELAY_S = 2.0
BUSY_LONGEST_DELAY_S = 60.0
# Ready for this long, it counts as sound: the next failure begins a new series.
SOUND_AFTER_S = 60.0
# So many failures in a row without ever being ready are a crash loop: about 13 s of waiting in all.
LOOP_FAILURES = 8


@dataclass(frozen=True)
class Rule:
    """What one exit code means for the supervisor."""

    meaning: str
    is_final: bool = False  # starting it again would end the same way
    is_counted: bool = True  # towards a crash loop
    first_delay_s: float = FIRST_DELAY_S
    longest_delay_s: float = LONGEST_DELAY_S


CORE_RULES: dict[int, Rule] = {
    0: Rule("ended without being asked to"),
    1: Rule("ended by an unexpected error"),
    2: Rule("configuration refused", is_final=True),
    3: Rule("bundle refused", is_final=True),
    4: Rule(
        "core busy",
        is_counted=False,
        first_delay_s=BUSY_FIRST_DELAY_S,
        longest_delay_s=BUSY_LONGEST_DELAY_S,
    ),
    5: Rule("core lost"),
    6: Rule("drain had to be forced"),
}
# Every other program: whatever its code says, it is started again until that is a crash loop.
OTHER_RULES: dict[int, Rule] = {}
_UNKNOWN = Rule("ended")


@dataclass(frozen=True)
class Next:
    """What happens now: another start after `delay_s`, or, with None, a final state."""

    state: str  # backing-off | refused | failed
    delay_s: float | None


def rule(rules: dict[int, Rule], code: int) -> Rule:
    return rules.get(code, _UNKNOWN)


def describe(rules: dict[int, Rule], code: int) -> str:
    """`exit 3 (bundle refused)`, `killed by SIGKILL`."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit {code} ({rule(rules, code).meaning})"


class Restarts:
    """The series of failures of one process."""

    def __init__(self, rules: dict[int, Rule]) -> None:
        self._rules = rules
        self._failures = 0  # since it last was sound: the exponent of the back-off
        self._never_ready = 0  # since it last was ready: a crash loop when there are too many

    def after(self, code: int, ready_s: float | None) -> Next:
        """It ended with this code (negative: by that signal) after being ready so long (None: it never
        was)."""
        found = rule(self._rules, code)
        if found.is_final:
            return Next("refused", None)
        if ready_s is not None:
            self._never_ready = 0
            if ready_s >= SOUND_AFTER_S:
                self._failures = 0
        elif found.is_counted:
            self._never_ready += 1
            if self._never_ready >= LOOP_FAILURES:
                return Next("failed", None)
        # The exponent is bounded, or a core that is busy for days would overflow it.
        delay_s = min(found.longest_delay_s, found.first_delay_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return Next("backing-off", delay_s)

    def forget(self) -> None:
        """Begin anew: somebody says that the cause is gone."""
        self._failures = self._never_ready = 0

"""What came of the calls: kinds of failure, tallies per endpoint, and which answers agree. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from corelane.load.questions import same
from corelane.load.targets import Target

REFUSED, UNREACHABLE, DROPPED, TIMEOUT = "refused", "unreachable", "dropped", "timeout"
WRONG_ANSWER, WRONG_SERVICE = "wrong answer", "wrong service"
NOTHING = "answered nothing"


@dataclass(frozen=True)
class Plan:
    """How much to send. `seconds` and `requests` (per endpoint) are limits, and the first one ends it."""

    connections: int
    seconds: float | None
    requests: int | None
    timeout_s: float


@dataclass(frozen=True)
class Failure:
    """Why a call is not served: a kind to count by, and words for a person."""

    kind: str
    detail: str


@dataclass(frozen=True)
class Served:
    """One right answer. `variant` numbers the different answers that the deployment gave to this call."""

    latency_ms: float
    call: str
    variant: int


@dataclass
class Tally:
    """What came of the calls to one endpoint."""

    target: Target
    sent: int = 0
    served: list[Served] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    first_details: dict[str, str] = field(default_factory=dict)  # kind -> the first of its failures, in words

    @property
    def done(self) -> int:
        """Calls that have ended, well or not."""
        return len(self.served) + self.failures.total()

    def fail(self, failure: Failure, times: int = 1) -> None:
        """Count a failed call."""
        self.failures[failure.kind] += times
        self.first_details.setdefault(failure.kind, failure.detail)


class Agreement:
    """The answers that the cores gave to each call. What most cores say is right; in a tie nothing is."""

    def __init__(self) -> None:
        self._answers: dict[str, list[Any]] = {}
        self._givers: dict[str, list[set[str]]] = {}  # beside each answer, the cores that gave it

    def variant(self, call: str, core: str, answer: Any) -> int:
        """The number of this answer among the different ones."""
        answers = self._answers.setdefault(call, [])
        givers = self._givers.setdefault(call, [])
        for number, known in enumerate(answers):
            if same(known, answer):
                givers[number].add(core)
                return number
        answers.append(answer)
        givers.append({core})
        return len(answers) - 1

    def is_outvoted(self, call: str, variant: int) -> bool:
        """Whether another answer to this call was given by as many cores as this one, or by more."""
        givers = self._givers[call]
        return any(len(other) >= len(givers[variant]) for number, other in enumerate(givers) if number != variant)

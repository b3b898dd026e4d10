"""The tree of errors, split by whose fault it is. A leaf: it imports nothing of ours.

    CorelaneError                     exit code 1   our own bug, or nothing more exact is known
    ├── ConfigError                   2             a setting, a file or the command line
    ├── BundleError                   3             the traced bundle: damaged, stale, other chip, wrong answers
    │   └── MissingBundleError        3             there is none under that name
    ├── CoreBusyError                 4             another process owns the core
    ├── CoreLostError                 5             the core or its runtime cannot go on
    ├── DrainForcedError              6             the server had to be ended before it was empty
    ├── StartError                    1             a deployment did not become ready; else its core's own code
    │   └── SupervisorGoneError       1             it was stopped, or failed, while somebody waited for it
    └── RequestError                                one request, or one item of it; never ends the process
        ├── InvalidInputError                       the caller's input has the wrong form
        ├── NotFoundError                           no such core, model or route here
        ├── TooLargeError                           more than this server takes in one request
        ├── OverloadedError                         the queue is full; retry_after_s says when to come back
        ├── UnavailableError                        not able right now; retry_after_s as above
        ├── DeadlineError                           the deadline passed first
        └── ComputeError                            the model failed on this item, or its answer is not finite

Exit codes are the ones that every supervisor can act on. What a RequestError means in HTTP is the server's business.
"""

from __future__ import annotations


class CorelaneError(Exception):
    """Base of all; `str(error)` is one sentence: what was asked, what was found, what to do."""

    exit_code = 1


class ConfigError(CorelaneError):
    """A setting, a configuration file or a command line that cannot be used."""

    exit_code = 2


class BundleError(CorelaneError):
    """A bundle that must not be served: damaged, stale, made for another chip, or answering wrongly."""

    exit_code = 3


class MissingBundleError(BundleError):
    """No bundle stands under the name that was asked for."""


class CoreBusyError(CorelaneError):
    """Another process owns the core; worth a retry with back-off."""

    exit_code = 4


class CoreLostError(CorelaneError):
    """The core or its runtime cannot go on; a fresh process may."""

    exit_code = 5


class DrainForcedError(CorelaneError):
    """Requests were still running when the drain time was over."""

    exit_code = 6


class StartError(CorelaneError):
    """A deployment did not become ready; `exit_code` is that of the core which could not, where one is to blame."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SupervisorGoneError(StartError):
    """A deployment was stopped, or failed, while somebody waited for it."""


class RequestError(CorelaneError):
    """One request, or one item of it, cannot be answered. `code` is the word clients may test."""

    code = "error"


class InvalidInputError(RequestError):
    """The input has the wrong form; the sentence names the field."""

    code = "invalid_input"


class NotFoundError(RequestError):
    """No such core, model or route; the sentence names what exists."""

    code = "not_found"


class TooLargeError(RequestError):
    """More text, items or windows than the server takes; the sentence has both numbers."""

    code = "too_large"


class OverloadedError(RequestError):
    """The queue is full; come back after `retry_after_s` seconds."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(RequestError):
    """Not able to answer right now; come back after `retry_after_s` seconds."""

    code = "unavailable"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineError(RequestError):
    """The request's deadline passed before its answer was there."""

    code = "deadline"


class ComputeError(RequestError):
    """The model failed on this item, or answered with a number that is not finite."""

    code = "compute"

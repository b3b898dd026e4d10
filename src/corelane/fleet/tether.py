"""Run a command pinned to CPUs and tied to its parent's life: when the parent dies, even by kill -9, so
does it.

    python -I -S tether.py [--cpus 0,1,2] --parent PID -- COMMAND [ARGUMENT ...]

A program, not a module to import: it runs by its path, without site and without our package, so that it
costs a few milliseconds; then it *becomes* the command, which keeps the mask and the tie. A tie needs
Linux, a mask needs a system that has affinity; elsewhere the command runs without. The signal follows the
parent's *thread* that started us.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CANNOT_PIN, _CANNOT_EXECUTE = 2, 127


def main(arguments: list[str]) -> int:
    split = arguments.index("--")
    options = dict(zip(arguments[:split:2], arguments[1:split:2], strict=True))
    command = arguments[split + 1 :]
    if sys.platform == "linux":
        tie(int(options["--parent"]))
    if "--cpus" in options and hasattr(os, "sched_setaffinity"):
        cpus = {int(cpu) for cpu in options["--cpus"].split(",")}
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            return fail(f"CPU {options['--cpus']} cannot be pinned to ({error.strerror})", _CANNOT_PIN)
    try:
        os.execvp(command[0], command)  # noqa: S606  (to become the command is all this is for)
    except OSError as error:
        return fail(f"{command[0]} cannot be started ({error.strerror})", _CANNOT_EXECUTE)


def tie(parent: int) -> None:
    # Not at the top: other systems need not have a C library that loads.
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have died before the tie was made; then nobody would ever send the signal.
    if os.getppid() != parent:
        sys.exit(fail(f"the supervisor, pid {parent}, is gone", 1))


def fail(reason: str, code: int) -> int:
    print(f"corelane: error: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

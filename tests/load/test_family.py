"""What a process and its children cost, read from the system."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from corelane.load import family

# A parent that does little, and a child that holds 64 MiB and computes for ever.
CHILD = "data = bytearray(64 << 20); print('ready', flush=True)\nwhile True: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


def test_children_are_counted_with_their_parent() -> None:
    """A server's work is done by what it starts."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True) as parent:
        try:
            assert parent.stdout
            assert parent.stdout.readline() == b"ready\n"
            assert family.pss_mib(parent.pid) > 64
            before, end = family.cpu_s(parent.pid), time.monotonic() + 20
            while family.cpu_s(parent.pid) < before + 0.2:
                assert time.monotonic() < end
        finally:
            for pid in family._members(parent.pid):
                os.kill(pid, signal.SIGKILL)


def test_a_process_that_is_gone_costs_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert family.cpu_s(ended.pid) == 0
    assert family.pss_mib(ended.pid) == 0

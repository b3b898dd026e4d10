"""Pinned to its CPUs, and tied to its parent's life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from corelane.fleet.plan import TETHER
from corelane.fleet.processes import identity
from support.fleets import eventually

BARE = [sys.executable, "-I", "-S", str(TETHER)]
SHOW_MASK = "import os; print(sorted(os.sched_getaffinity(0)))"


def test_the_command_runs_on_its_cpus_alone() -> None:
    """Threads and processes that it starts inherit the mask."""
    cpu = max(os.sched_getaffinity(0))
    command = [*BARE, "--cpus", str(cpu), "--parent", str(os.getpid()), "--", sys.executable, "-c", SHOW_MASK]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"[{cpu}]\n"


def test_without_cpus_the_mask_stays_as_it_was() -> None:
    """The gateway runs wherever there is room."""
    command = [*BARE, "--parent", str(os.getpid()), "--", sys.executable, "-c", SHOW_MASK]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found == f"{sorted(os.sched_getaffinity(0))}\n"


def test_it_becomes_the_command_and_keeps_its_environment() -> None:
    """The same pid, so that signals and exit codes are the command's own."""
    script = "import os, sys; print(os.getpid(), os.environ['NEURON_RT_VISIBLE_CORES']); sys.exit(3)"
    command = [*BARE, "--parent", str(os.getpid()), "--", sys.executable, "-c", script]
    environment = {**os.environ, "NEURON_RT_VISIBLE_CORES": "10"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    output, _ = process.communicate()
    assert output == f"{process.pid} 10\n"
    assert process.returncode == 3


def test_a_killed_parent_takes_the_command_with_it(tmp_path: Path) -> None:
    """Nobody is left to stop it otherwise, and it would hold the core and the port."""
    script = (
        "import os, subprocess, sys, time;"
        f"child = subprocess.Popen({BARE!r} + ['--parent', str(os.getpid()), '--', 'sleep', '600']);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        eventually(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", "the command runs")
        parent.send_signal(signal.SIGKILL)
        eventually(lambda: identity(child) is None, "the command is gone too")


def test_a_parent_that_is_gone_already_means_no_start() -> None:
    """Between the fork and the tie the parent may have been killed."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    command = [*BARE, "--parent", str(gone.pid), "--", "echo", "started"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stdout == ""
    assert f"pid {gone.pid}, is gone" in found.stderr


def test_a_cpu_that_does_not_exist_is_a_matter_of_configuration() -> None:
    """Exit 2 is not tried again."""
    command = [*BARE, "--cpus", "1000", "--parent", str(os.getpid()), "--", "true"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.startswith("corelane: error: CPU 1000 cannot be pinned to")


def test_a_command_that_does_not_exist_is_said_in_a_sentence() -> None:
    """Not in a traceback of a program that people do not know."""
    command = [*BARE, "--parent", str(os.getpid()), "--", "/no/such/program"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 127
    assert found.stderr == "corelane: error: /no/such/program cannot be started (No such file or directory)\n"

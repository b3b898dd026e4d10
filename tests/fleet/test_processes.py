"""Is it the same process, and who has the port?"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corelane.errors import ConfigError
from corelane.fleet.processes import Process, Wanted, check_ports, identity, is_gone, listener, myself
from support.fleets import eventually, free_ports

SLEEPS = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input is closed."""
    with subprocess.Popen(SLEEPS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_an_identity_stays_the_same_and_differs_between_processes(sleeper: subprocess.Popen[bytes]) -> None:
    """It is what stands in the state file beside the pid."""
    assert identity(os.getpid()) == identity(os.getpid())
    assert identity(sleeper.pid) is not None
    assert myself().is_alive


def test_a_pid_that_was_used_again_is_never_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    """A supervisor that died last month may have left the number of today's database."""
    earlier = Process(sleeper.pid, "another boot:1")
    assert not earlier.is_alive
    assert not earlier.send(signal.SIGKILL)
    assert sleeper.poll() is None


def test_the_right_process_is_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    """With its identity the pid is enough."""
    found = identity(sleeper.pid)
    assert found is not None
    process = Process(sleeper.pid, found)
    assert process.send(signal.SIGKILL)
    assert is_gone(process, 10)


def test_a_zombie_counts_as_gone(sleeper: subprocess.Popen[bytes]) -> None:
    """It holds no port and does nothing; whoever started it only has not asked yet."""
    sleeper.kill()
    eventually(lambda: identity(sleeper.pid) is None, "the zombie has no identity")
    assert sleeper.returncode is None  # so it was one: nobody has waited for it


def test_a_process_with_brackets_and_blanks_in_its_name_has_an_identity(tmp_path: Path) -> None:
    """The name stands in brackets in the middle of the line that is read."""
    program = tmp_path / "a) S (b 1 2"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([str(program), "60"]) as process:
        found = identity(process.pid)
        process.kill()
    assert found is not None
    assert found.rpartition(":")[2].isdecimal()


def test_free_ports_are_fine() -> None:
    """And the check leaves nothing behind that holds them."""
    port = free_ports(1)[0]
    for _ in range(2):
        check_ports("127.0.0.1", [Wanted(port, "first_port", "core 0")])


def test_a_taken_port_is_refused_with_its_key_and_its_owner() -> None:
    """One sentence should be enough to go on: which port, whose, what to change."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            check_ports("127.0.0.1", [Wanted(port, "gateway_port", "the gateway")])
    assert f"port {port} for the gateway is taken by pid {os.getpid()} (" in str(caught.value)
    assert "set gateway_port to another port" in str(caught.value)


def test_a_port_taken_on_all_addresses_is_taken_on_loopback_too() -> None:
    """Most servers listen everywhere."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="is taken"):
            check_ports("127.0.0.1", [Wanted(taken.getsockname()[1], "first_port", "core 0")])


def test_an_address_of_another_machine_is_refused_by_its_key() -> None:
    """192.0.2.0/24 is reserved for examples."""
    with pytest.raises(ConfigError, match=r"bind_address=192\.0\.2\.1 is no address of this machine"):
        check_ports("192.0.2.1", [Wanted(free_ports(1)[0], "first_port", "core 0")])


def test_nobody_listens_on_a_free_port() -> None:
    """So the sentence names no owner that is not one."""
    assert listener(free_ports(1)[0]) is None

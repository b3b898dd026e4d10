"""The files of a deployment, and its lock."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from corelane.fleet.processes import myself
from corelane.fleet.state import Folder, State, lock, read_json, read_state, write_state
from support.fleets import eventually


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder.of(tmp_path, "tested")
    made.make()
    return made


def test_a_state_is_read_as_it_was_written(folder: Folder) -> None:
    """Who runs, and what it was told to run."""
    state = State(myself(), "digest", "demo@1", (1, 2), 3.0)
    write_state(folder, state)
    assert read_state(folder) == state


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"pid": 1}', "\x00\x00"], ids=["empty", "cut", "list", "null", "part", "zeros"]
)
def test_a_state_that_is_not_whole_is_no_state(folder: Folder, content: str) -> None:
    """After a power cut anything may stand there, and no process may be signalled by it."""
    folder.state.write_text(content)
    assert read_state(folder) is None


def test_a_file_is_replaced_as_a_whole_and_for_this_user_alone(folder: Folder) -> None:
    """A reader at any moment sees one version or the other; the plan holds the settings."""
    folder.write("plan.json", "{}")
    folder.write("plan.json", '{"new": 1}')
    assert read_json(folder.plan) == {"new": 1}
    assert folder.plan.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.path.iterdir() if path.is_file()] == ["plan.json"]


def test_clearing_keeps_the_logs_and_the_reason_of_a_failed_start(folder: Folder) -> None:
    """They are what one looks for after the end."""
    folder.log("core-0").write_text("a line\n")
    for name in ("state.json", "status.json", "haproxy.cfg", "failure.json"):
        folder.write(name, "{}")
    folder.clear()
    assert {path.name for path in folder.path.iterdir()} == {"logs", "failure.json"}
    assert folder.log("core-0").read_text() == "a line\n"


def test_the_lock_is_held_by_one_at_a_time_and_the_other_is_told(folder: Folder) -> None:
    """Two `up` at once would start two supervisors on the same ports."""
    order: list[str] = []

    def second() -> None:
        with lock(folder, lambda: order.append("told")):
            order.append("second")

    with lock(folder, lambda: order.append("never")):
        other = threading.Thread(target=second)
        other.start()
        eventually(lambda: order == ["told"], "the second one is told to wait")
        order.append("first")
    other.join()
    assert order == ["told", "first", "second"]

"""Log files that cannot fill a disk, and their tails."""

from __future__ import annotations

from pathlib import Path

import pytest

from corelane.fleet import logs
from corelane.fleet.logs import ERROR_MARK, TAIL_LINES, CappedLog, Tail, previous, show


def kept(path: Path) -> list[str]:
    """All lines that are there now."""
    lines: list[str] = []
    show([path], lambda _, line: lines.append(line), should_stop=lambda: True)
    return lines


def test_a_log_and_the_one_before_it_never_exceed_their_cap(tmp_path: Path) -> None:
    """A core that writes for months must not fill the disk."""
    path = tmp_path / "core-0.log"
    log = CappedLog(path, max_bytes=1000)
    for number in range(500):
        log.write(f"line {number}\n".encode())
    log.close()
    assert path.stat().st_size <= 1000
    assert previous(path).stat().st_size <= 1000
    assert sorted(tmp_path.iterdir()) == [path, previous(path)]


def test_the_newest_lines_are_kept_whole_and_in_order(tmp_path: Path) -> None:
    """The move of a full file loses the oldest lines only."""
    log = CappedLog(tmp_path / "log", max_bytes=1000)
    for number in range(500):
        log.write(f"line {number}\n".encode())
    log.close()
    lines = kept(tmp_path / "log")
    assert lines == [f"line {number}" for number in range(500 - len(lines), 500)]


def test_a_restarted_supervisor_appends_to_the_log(tmp_path: Path) -> None:
    """What the run before said is what one wants to read after a crash."""
    for text in (b"before\n", b"after\n"):
        log = CappedLog(tmp_path / "log")
        log.write(text)
        log.close()
    assert kept(tmp_path / "log") == ["before", "after"]


def test_a_log_that_cannot_be_written_raises_nothing(tmp_path: Path) -> None:
    """A full disk must not stop the cores."""
    log = CappedLog(tmp_path / "no such folder" / "log")
    log.write(b"lost\n")
    log.close()


def test_a_last_line_without_an_end_is_shown_and_no_log_is_no_line(tmp_path: Path) -> None:
    """What a process said when it was killed; and a core that has said nothing yet."""
    (tmp_path / "log").write_bytes(b"whole\ncut o")
    assert kept(tmp_path / "log") == ["whole", "cut o"]
    assert kept(tmp_path / "none") == []


def test_what_is_written_while_the_log_is_shown_is_shown_too(tmp_path: Path) -> None:
    """Between the last line that was there and the first that is waited for, none gets lost, nor does the move of a
    file that is full just then lose one."""
    path = tmp_path / "log"
    log = CappedLog(path, max_bytes=100)
    for number in (1, 2, 3, 4):
        log.write(b"%030d\n" % number)
    assert previous(path).exists()
    seen: list[int] = []

    def emit(_: Path, line: str) -> None:
        seen.append(int(line))
        if len(seen) < 4:
            log.write(b"%030d\n" % (len(seen) + 4))

    rounds = iter([False, True])
    show([path], emit, should_stop=lambda: next(rounds))
    log.close()
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_what_is_written_just_before_a_move_is_read_from_the_moved_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last read and the look whether the file is still there."""
    path = tmp_path / "log"
    path.write_text("one\n")
    is_moved = logs._Reader._is_moved

    def moved_meanwhile(reader: logs._Reader) -> bool:
        with path.open("a") as file:
            file.write("two\n")
        path.replace(previous(path))
        path.write_text("three\n")
        return is_moved(reader)

    monkeypatch.setattr(logs._Reader, "_is_moved", moved_meanwhile)
    assert kept(path) == ["one", "two", "three"]


def test_a_file_that_is_moved_while_it_is_opened_is_not_shown_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is then found under both names."""
    path = tmp_path / "log"
    path.write_text("one\n")

    def moved_meanwhile(path: Path) -> Path:
        path.replace(previous(path))
        path.write_text("two\n")
        return previous(path)

    monkeypatch.setattr(logs, "previous", moved_meanwhile)
    assert kept(path) == ["one", "two"]


def test_following_goes_on_over_the_move_of_a_full_file(tmp_path: Path) -> None:
    """No line is lost or repeated for who watches."""
    path = tmp_path / "log"
    log = CappedLog(path, max_bytes=2000)
    log.write(b"written before\n")
    seen: list[str] = []
    expected = [f"{block}.{line}" for block in range(10) for line in range(50)]
    blocks = [expected[start : start + 50] for start in range(0, 500, 50)]

    def write_more() -> bool:  # called before each look at the files
        log.write("".join(f"{line}\n" for line in blocks.pop(0)).encode())
        return not blocks

    show([path], lambda _, line: seen.append(line), should_stop=write_more)
    log.close()
    assert seen == ["written before", *expected]


def test_the_reason_is_the_error_sentence_wherever_it_stands() -> None:
    """Libraries print after it, when the interpreter ends."""
    tail = Tail()
    tail.feed(f"starting\n{ERROR_MARK}bundle x@1 is damaged.\nsome warning\n".encode())
    assert tail.reason(3) == "bundle x@1 is damaged."


def test_without_an_error_sentence_the_last_line_is_the_reason() -> None:
    """Of a traceback that is the error itself; it may have no line end."""
    tail = Tail()
    tail.feed(b"Traceback (most recent call last):\n  ...\nKeyError: 'x'")
    tail.close()
    assert tail.reason(1) == "KeyError: 'x'"


def test_who_was_killed_gave_no_reason() -> None:
    """Its last line is whatever it happened to say before, and would mislead."""
    tail = Tail()
    tail.feed(b"core 0 serves demo@1\n")
    assert tail.reason(-9) == ""


def test_a_line_that_arrives_in_pieces_is_one_line() -> None:
    """A pipe gives what is there."""
    tail = Tail()
    for piece in (b"one ", b"line\ntwo", b" lines\n"):
        tail.feed(piece)
    assert list(tail.lines) == ["one line", "two lines"]


def test_the_tail_is_bounded_in_lines_and_in_their_length() -> None:
    """It stands in the status file, and one line may be a whole request."""
    tail = Tail()
    for number in range(100):
        tail.feed(f"{number}".encode() + b"x" * 100_000 + b"\n")
    assert len(tail.lines) == TAIL_LINES
    assert max(map(len, tail.lines)) <= 2048


def test_bytes_that_are_no_text_do_not_stop_the_tail() -> None:
    """A crashing native library prints what it likes."""
    tail = Tail()
    tail.feed(b"\xff\xfe broken\n")
    assert tail.reason(1).endswith("broken")

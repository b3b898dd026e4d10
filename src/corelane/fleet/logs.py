"""Log files with a size cap: written by the supervisor, read by `corelane logs`."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 5 * 1024 * 1024  # of one file; there are two, so a core keeps at most 10 MiB
TAIL_LINES = 20
_LINE_BYTES = 2048  # of a line in the tail; the file has it whole
_POLL_S = 0.1

ERROR_MARK = "corelane: error: "  # begins the one line in which a core server says why it ends


class CappedLog:
    """A file that is moved to `.1`, over the one before, when it is full. Never raises: a full disk must
    stop no core."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file: BinaryIO | None = None
        self._size_bytes = 0

    def write(self, data: bytes) -> None:
        try:
            if self._file is None or self._size_bytes + len(data) > self._max_bytes:
                self._open(room_bytes=len(data))
            if self._file is not None:
                self._file.write(data)
                self._size_bytes += len(data)
        except OSError:
            self.close()

    def _open(self, room_bytes: int) -> None:
        self.close()
        self._size_bytes = self._path.stat().st_size if self._path.exists() else 0
        if self._size_bytes and self._size_bytes + room_bytes > self._max_bytes:
            self._path.replace(previous(self._path))
            self._size_bytes = 0
        self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Tail:
    """The last lines of one process, and the one that says why it ended."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial = b""
        self._error = ""

    def feed(self, data: bytes) -> None:
        *whole, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[:_LINE_BYTES]
        for line in whole:
            self._keep(line)

    def close(self) -> None:
        """The process has ended: what stands without a line end is its last line."""
        if self._partial:
            self._keep(self._partial)
            self._partial = b""

    def _keep(self, raw: bytes) -> None:
        line = raw[:_LINE_BYTES].decode(errors="replace").rstrip()
        if not line:
            return
        self.lines.append(line)
        if line.startswith(ERROR_MARK):
            self._error = line.removeprefix(ERROR_MARK)

    def reason(self, code: int) -> str:
        """Why it ended with this code: its error sentence; else, if it failed by itself, its last line, which of a
        traceback is the error. Who was killed had no time to say why."""
        last = self.lines[-1] if self.lines and code > 0 else ""
        return self._error or last


def previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def read(path: Path) -> Iterator[str]:
    """The lines that are kept, oldest first, without line ends."""
    for file in (previous(path), path):
        if file.exists():
            with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                for line in lines:
                    yield line.rstrip("\n")


def follow(paths: list[Path], emit: Callable[[Path, str], None], should_stop: Callable[[], bool]) -> None:
    """Emit what is appended from now on, over the moves of full files, until told to stop."""
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(_Follower(path))) for path in paths]
        while True:
            is_last = should_stop()
            for reader in readers:
                for line in reader.lines():
                    emit(reader.path, line)
            if is_last:
                return
            time.sleep(_POLL_S)


class _Follower:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._partial = b""
        if path.exists():
            self._file = path.open("rb")
            self._file.seek(0, 2)

    def lines(self) -> Iterator[str]:
        yield from self._rest()
        if self._is_moved():
            # What was written between the read and the move.
            yield from self._rest()
            self.close()
            self._file = self.path.open("rb")
            yield from self._rest()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_moved(self) -> bool:
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False
        if self._file is None:
            return True
        held = os.fstat(self._file.fileno())
        return (held.st_dev, held.st_ino) != (now.st_dev, now.st_ino)

    def _rest(self) -> Iterator[str]:
        if self._file is None:
            return
        *whole, self._partial = (self._partial + self._file.read()).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)

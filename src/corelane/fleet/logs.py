"""Log files with a size cap: written by the supervisor, read by `corelane logs`."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
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


def show(paths: list[Path], emit: Callable[[Path, str], None], should_stop: Callable[[], bool]) -> None:
    """Emit the lines that are kept, oldest first, and then what is appended, over the moves of full files, until
    told to stop; no line is left out or comes twice."""
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(_Reader(path))) for path in paths]
        while True:
            is_last = should_stop()
            for reader in readers:
                for line in reader.lines():
                    emit(reader.path, line)
                if is_last and (rest := reader.unfinished()):
                    emit(reader.path, rest)
            if is_last:
                return
            time.sleep(_POLL_S)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._partial = b""
        self._older: BinaryIO | None = None
        # In this order: what is moved between the two is then found twice, never missed.
        with suppress(FileNotFoundError):
            self._file = path.open("rb")
        with suppress(FileNotFoundError):
            self._older = previous(path).open("rb")
        if self._file and self._older and os.path.sameopenfile(self._file.fileno(), self._older.fileno()):
            self._older.close()
            self._older = None

    def lines(self) -> Iterator[str]:
        if self._older is not None:
            with self._older as older:
                yield from self._whole(older.read())
            self._older = None
        yield from self._rest()
        if self._is_moved():
            # What was written between the read and the move.
            yield from self._rest()
            self.close()
            self._file = self.path.open("rb")
            yield from self._rest()

    def unfinished(self) -> str:
        """What stands at the end without a line end."""
        return self._partial.decode(errors="replace")

    def close(self) -> None:
        for file in (self._older, self._file):
            if file is not None:
                file.close()
        self._older = self._file = None

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
        if self._file is not None:
            yield from self._whole(self._file.read())

    def _whole(self, data: bytes) -> Iterator[str]:
        *whole, self._partial = (self._partial + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)

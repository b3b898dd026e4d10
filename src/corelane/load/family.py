"""A process and all that it started, on Linux: what they cost together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)

# Fields of /proc/PID/stat, counted from the one after the name.
_PARENT, _USER, _SYSTEM = 1, 11, 12


def cpu_s(root: int) -> float:
    """CPU seconds, user and system, that the members alive now have used."""
    ticks = sum(int(fields[_USER]) + int(fields[_SYSTEM]) for fields in _members(root).values())
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_mib(root: int) -> float:
    """Their memory; what several share counts once."""
    return sum(_pss_kib(pid) for pid in _members(root)) / 1024


def _members(root: int) -> dict[int, list[str]]:
    """The process and its descendants, with their fields of stat."""
    everybody = dict(_everybody())
    found = {root} & everybody.keys()
    while more := {pid for pid, fields in everybody.items() if int(fields[_PARENT]) in found} - found:
        found |= more
    return {pid: everybody[pid] for pid in found}


def _everybody() -> Iterator[tuple[int, list[str]]]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            yield int(entry.name), text.rpartition(")")[2].split()  # a name may hold blanks and brackets


def _pss_kib(pid: int) -> int:
    try:
        found = _PSS.search((_PROC / str(pid) / "smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0

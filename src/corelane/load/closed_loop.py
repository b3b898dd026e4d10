"""One endpoint, some connections, the next request when the last is answered: how much comes back, and how fast.

By wrk where it is installed, since it takes little of the machine that is measured; else by aiohttp.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from corelane.load.driver import open_session
from corelane.load.percentiles import summary

TIMEOUT_S = 30

# Where this stands in a body, each request has a number of its own, so that no two are the same.
NUMBER = "@@"

_HEADERS = {"content-type": "application/json"}

# Bodies come from a file, one a line; the last line of the output is for us, with times in milliseconds.
_SCRIPT = """
local bodies, turn, number = {}, 0, 0
for line in io.lines("%(bodies)s") do bodies[#bodies + 1] = line end
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
request = function()
  turn = turn %% #bodies + 1
  local body = bodies[turn]:gsub("%(number)s", function() number = number + 1; return tostring(number) end)
  return wrk.format(nil, nil, nil, body)
end
done = function(all, latency)
  local e = all.errors
  local failed = e.status + e.connect + e.read + e.write + e.timeout
  io.write(string.format("FOUND %%d %%d %%d %%f %%f\\n", all.requests, failed, all.duration,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
"""
_FOUND = re.compile(r"FOUND (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+)")


@dataclass(frozen=True)
class Measured:
    """`requests` that ended in `seconds`, and how many of them `failed`; times of all that were answered, in ms."""

    requests: int
    failed: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_s(self) -> float:
        """Those that did not fail."""
        return max(0, self.requests - self.failed) / self.seconds


def client() -> str:
    """The name of the program that `measure` uses here."""
    return "wrk" if shutil.which("wrk") else "aiohttp"


def measure(url: str, bodies: Sequence[str], connections: int, seconds: float) -> Measured:
    """Send the bodies (JSON, no line break) in turn for so long, over so many connections."""
    if client() == "wrk":
        return by_wrk(url, bodies, connections, seconds)
    return asyncio.run(by_aiohttp(url, bodies, connections, seconds))


def by_wrk(url: str, bodies: Sequence[str], connections: int, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory(prefix="corelane-wrk-") as folder:
        lines, script = Path(folder, "bodies"), Path(folder, "load.lua")
        lines.write_text("\n".join(bodies), encoding="utf-8")
        script.write_text(_SCRIPT % {"bodies": lines, "number": NUMBER}, encoding="utf-8")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", f"{TIMEOUT_S}s"]
        done = subprocess.run([*command, "-s", str(script), url], capture_output=True, text=True, check=False)
    found = _FOUND.search(done.stdout)
    if found is None:
        raise RuntimeError(f"wrk on {urlsplit(url).netloc} ended with {done.returncode}: {done.stdout}{done.stderr}")
    requests, failed, micros, p50_ms, p99_ms = map(float, found.groups())
    return Measured(int(requests), int(failed), micros / 1e6, p50_ms, p99_ms)


async def by_aiohttp(url: str, bodies: Sequence[str], connections: int, seconds: float) -> Measured:
    latencies_ms: list[float] = []
    ended = failed = 0
    turns = _numbered(bodies)
    began = time.perf_counter()

    async def caller(session: aiohttp.ClientSession) -> None:
        nonlocal ended, failed
        while time.perf_counter() - began < seconds:
            sent = time.perf_counter()
            ended += 1
            try:
                async with session.post(url, data=next(turns), headers=_HEADERS) as reply:
                    await reply.read()
                    failed += reply.status != 200
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                failed += 1
                continue
            latencies_ms.append((time.perf_counter() - sent) * 1e3)

    async with open_session(TIMEOUT_S) as session:
        await asyncio.gather(*(caller(session) for _ in range(connections)))
    times = summary(latencies_ms)
    nothing = float("nan")
    return Measured(ended, failed, time.perf_counter() - began, times["p50"] or nothing, times["p99"] or nothing)


def _numbered(bodies: Sequence[str]) -> Iterator[bytes]:
    for number, body in zip(itertools.count(1), itertools.cycle(bodies), strict=False):
        yield body.replace(NUMBER, str(number)).encode()

"""The engine under hard callers, through HTTP: a core server on a simulated core, whose times are known."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from corelane.settings import load
from corelane.tracing.simulate import simulate
from support.servers import free_port, started, until

pytestmark = pytest.mark.slow

PATH = "/predictions_neuron_core_0/model_0"
# Some 30,000 requests more: a kept request body or answer of 1 KiB each would be 30 MiB.
MOST_GROWTH_MIB = 16
OVERLOAD_S = float(os.environ.get("OVERLOAD_S", "30"))


@contextmanager
def simulated_server(folder: Path, times: str, **settings: object):
    """One core server on a core that takes these times, such as `1x128=12.5,8x128=100` (ms)."""
    values = {"compiled_model": "timed", "gateway": "none", **settings}
    (folder / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    simulate(load(folder, {}), "timed", times=times)
    port = free_port()
    argv = [sys.executable, "-m", "corelane", "serve", "--core", "0", "--port", str(port)]
    with started(argv, port, folder) as server:
        yield server.wait_ready()


def rows(server) -> dict[str, int]:
    return server.ask("/info").json["load"]["rows"]


def resident_mib(pid: int) -> float:
    found = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024


def test_of_callers_who_hang_up_at_random_only_those_in_time_are_computed(tmp_path):
    """100 hang up among 100 who stay: who stays is answered, and every row is accounted for."""
    rng = random.Random(7)

    async def caller(session, url, leaves_after_s):
        try:
            timeout = aiohttp.ClientTimeout(total=leaves_after_s)
            async with session.post(url, json={"inputs": f"text {rng.random()}"}, timeout=timeout) as response:
                await response.read()
                return response.status
        except asyncio.TimeoutError:
            return "left"

    async def storm(url):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            leaving = [caller(session, url, rng.uniform(0.01, 0.5)) for _ in range(100)]
            staying = [caller(session, url, 60) for _ in range(100)]
            callers = leaving + staying
            rng.shuffle(callers)
            return Counter(await asyncio.gather(*callers))

    with simulated_server(tmp_path, "1x128=10,8x128=80") as server:
        found = asyncio.run(storm(f"http://127.0.0.1:{server.port}{PATH}"))
        until("nothing waits", lambda: _is_idle(server))
        counted = rows(server)
        assert set(found) <= {200, "left"}
        assert found[200] >= 100
        assert counted["admitted"] == counted["computed"] + counted["dropped"]
        assert counted["dropped"] > 0
        assert server.ask(PATH, {"inputs": "and now?"}).status == 200


def _is_idle(server):
    found = server.ask("/info").json["load"]
    return not found["is_running"] and not found["waiting_rows"]


def test_ten_times_more_than_it_can_serve_costs_neither_throughput_nor_memory(tmp_path):
    """A core of 80 texts/s at 800/s: it serves what it can, refuses the rest at once, and keeps nothing of them.

    OVERLOAD_S in the environment makes it last longer.
    """
    statuses: Counter[int] = Counter()

    async def one(session, url):
        async with session.post(url, json={"inputs": "one of many"}) as response:
            await response.read()
            statuses[response.status] += 1
            if response.status == 429:
                assert int(response.headers["retry-after"]) >= 1

    async def flood(url, seconds, rate):
        loop = asyncio.get_running_loop()
        running = set()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            began = loop.time()
            sent = 0
            while loop.time() - began < seconds:
                due = int((loop.time() - began) * rate)
                for _ in range(due - sent):
                    task = asyncio.create_task(one(session, url))
                    running.add(task)
                    task.add_done_callback(running.discard)
                sent = due
                await asyncio.sleep(0.005)
            await asyncio.gather(*running)
            return loop.time() - began

    with simulated_server(tmp_path, "1x128=12.5,8x128=100", max_queue_rows=256) as server:
        url = f"http://127.0.0.1:{server.port}{PATH}"
        asyncio.run(flood(url, 10, 800))  # until its memory has found its size: as many connections as there will be
        before_mib = resident_mib(server.process.pid)
        statuses.clear()
        seconds = asyncio.run(flood(url, OVERLOAD_S, 800))
        after_mib = resident_mib(server.process.pid)
        print(
            f"{seconds:.0f} s: {dict(statuses)}, {statuses[200] / seconds:.1f} texts/s,"
            f" {before_mib:.0f} -> {after_mib:.0f} MiB"
        )
        assert set(statuses) == {200, 429}
        assert statuses[200] / seconds >= 72
        assert after_mib <= before_mib + MOST_GROWTH_MIB

"""The closed loop against a stand-in: everything that is sent is counted, once, by both clients."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable

import pytest

from corelane.load import closed_loop
from corelane.load.closed_loop import Measured
from support.stand_ins import Reply, Request, StandIn

BODIES = [json.dumps({"inputs": f"{closed_loop.NUMBER} {word}"}) for word in ("one", "two", "three")]

# wrk is no package of ours: where it is not installed, aiohttp is what a benchmark uses, and what is tested.
CLIENTS = ["aiohttp", "wrk"] if shutil.which("wrk") else ["aiohttp"]


def measured(client: str, server: StandIn, path: str = "/predict") -> Measured:
    url = f"http://127.0.0.1:{server.port}{path}"
    if client == "wrk":
        return closed_loop.by_wrk(url, BODIES, 4, 1)
    return asyncio.run(closed_loop.by_aiohttp(url, BODIES, 4, 1))


def always(status: int) -> Callable[[Request], Reply]:
    return lambda request: Reply({}, status=status)


@pytest.mark.parametrize("client", CLIENTS)
def test_requests_are_counted_and_no_two_are_the_same(stand_in: Callable[..., StandIn], client: str) -> None:
    """A cache somewhere on the way would gain nothing."""
    server = stand_in(always(200))
    found = measured(client, server)
    texts = [request.inputs for request in server.asked]
    assert found.failed == 0
    assert 0 <= len(texts) - found.requests <= 4  # wrk does not wait for its last ones
    assert len(set(texts)) == len(texts)
    assert {text.split()[1] for text in texts} == {"one", "two", "three"}
    assert 0 < found.p50_ms <= found.p99_ms
    assert found.per_s == pytest.approx(found.requests / found.seconds)


@pytest.mark.parametrize("client", CLIENTS)
def test_refused_requests_are_failures(stand_in: Callable[..., StandIn], client: str) -> None:
    """A server that refuses everything must not look fast."""
    found = measured(client, stand_in(always(503)))
    assert 0 < found.requests == found.failed
    assert found.per_s == 0


def test_a_server_that_is_not_there_is_a_failure(closed_port: int) -> None:
    """And no answer has a time."""
    found = asyncio.run(closed_loop.by_aiohttp(f"http://127.0.0.1:{closed_port}/", BODIES, 1, 0.2))
    assert 0 < found.requests == found.failed
    assert found.per_s == 0
    assert found.p50_ms != found.p50_ms

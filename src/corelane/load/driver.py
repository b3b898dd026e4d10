"""The closed loop: all endpoints at once, a few connections each, the next call when the last is answered.

A call is served only if its answer came whole, from the core that was asked, and is right. Everything else is
a failure of one kind and has no latency. In a closed loop a stalled server is asked less often, so a stall
weighs little in the percentiles: the reports name the mode.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import orjson

from corelane.load.questions import Call, ModelInfo
from corelane.load.tally import (
    DROPPED,
    REFUSED,
    TIMEOUT,
    UNREACHABLE,
    WRONG_ANSWER,
    WRONG_SERVICE,
    Agreement,
    Failure,
    Plan,
    Served,
    Tally,
)
from corelane.load.targets import CORES, Target

# After a call that failed at once: a closed port must not take the CPU that others are served with.
PAUSE_AFTER_FAILURE_S = 0.02
# /info waits for no model; a server that needs longer would only delay the run.
_INFO_TIMEOUT_S = 5.0


class Reply(NamedTuple):
    """What of an HTTP reply counts here."""

    status: int
    core: str | None  # the header x-corelane-core
    body: bytes


def wrong_core(asked: Target, said: str | None, cores: frozenset[int]) -> Failure | None:
    """Whether the header x-corelane-core names another core than was asked; None where it is absent."""
    if said is None:
        return None
    wanted = cores if asked.core is None else {asked.core}
    if said in {str(core) for core in wanted}:
        return None
    return Failure(WRONG_SERVICE, f"core {said!r} answered (header x-corelane-core)")


def judge(target: Target, call: Call, reply: Reply, cores: frozenset[int]) -> Failure | Any:
    """The answer in a whole reply, or why it is none."""
    if failure := wrong_core(target, reply.core, cores):
        return failure
    # A server of ours that breaks may lose its headers, and a gateway answers for a core that is away; any
    # other reply without our header comes from another program.
    is_ours = reply.core is not None or reply.status >= 500 or (target.through != CORES and reply.status != 200)
    if not is_ours:
        return Failure(WRONG_SERVICE, f"a reply with status {reply.status} and without the header x-corelane-core")
    if reply.status != 200:
        return Failure(f"status {reply.status}", _sentence(reply.body))
    try:
        answer = orjson.loads(reply.body)
        if call.query is not None:
            answer = answer["detail"]
    except (ValueError, KeyError, TypeError):
        return Failure(WRONG_ANSWER, f"no answer in the reply {_beginning(reply.body)!r}")
    wrong = call.check(answer)
    if wrong is None:
        return answer
    return Failure(WRONG_ANSWER, wrong if target.core is not None else f"core {reply.core}: {wrong}")


def _sentence(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return _beginning(body) or "an empty reply"


def _beginning(body: bytes) -> str:
    return " ".join(body[:120].decode(errors="replace").split())


def explain(error: Exception) -> Failure:
    """Why no whole reply came."""
    said = str(error) or type(error).__name__
    if isinstance(error, asyncio.TimeoutError):  # before OSError, of which aiohttp's time-outs are a kind
        return Failure(TIMEOUT, "no whole reply in time")
    if isinstance(error, ConnectionRefusedError) or isinstance(
        getattr(error, "os_error", None), ConnectionRefusedError
    ):
        return Failure(REFUSED, "nothing listens on the port")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure(UNREACHABLE, said)
    if isinstance(error, aiohttp.ClientResponseError):
        return Failure(WRONG_SERVICE, f"the reply is not HTTP ({said.splitlines()[0]})")
    return Failure(DROPPED, f"the connection broke before the reply was whole ({said})")


# What a call can raise: explain() has a kind for each. Anything else is a bug here and must stay one.
_CALL_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


def open_session(timeout_s: float) -> aiohttp.ClientSession:
    """A session with no limit of its own, the workers being one; the environment's proxies are not used."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
    # When a kept connection breaks, aiohttp sends a GET again in silence: that would hide a dropped call.
    session._retry_connection = False
    return session


async def ask_info(
    session: aiohttp.ClientSession, urls: Mapping[int, str], timeout_s: float
) -> dict[int, dict[int, ModelInfo] | Failure]:
    """What every core says it serves (model number -> info), or why it says nothing."""
    limit = aiohttp.ClientTimeout(total=min(timeout_s, _INFO_TIMEOUT_S))
    replies = await asyncio.gather(*(_info_of(session, core, url, limit) for core, url in urls.items()))
    return dict(zip(urls, replies, strict=True))


async def _info_of(
    session: aiohttp.ClientSession, core: int, url: str, limit: aiohttp.ClientTimeout
) -> dict[int, ModelInfo] | Failure:
    try:
        async with session.get(url, allow_redirects=False, timeout=limit) as reply:
            body = await reply.read()
    except _CALL_ERRORS as error:
        return explain(error)
    if reply.status != 200:
        return Failure(f"status {reply.status}", _sentence(body))
    try:
        document = orjson.loads(body)
        said = document["core"]
        models = {
            int(name.removeprefix("model_")): ModelInfo(
                f"{about['name']}@{about['version']}", str(about["model"]), str(about["task"])
            )
            for name, about in document["models"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return Failure(WRONG_SERVICE, "the reply is not what a core server says of itself")
    if said != core:
        return Failure(WRONG_SERVICE, f"core {said!r} answered")
    return models


async def drive(
    session: aiohttp.ClientSession,
    calls: Mapping[Target, Sequence[Call]],
    plan: Plan,
    cores: frozenset[int],
    tallies: Mapping[Target, Tally],
) -> float:
    """Run the plan into `tallies`, which may be watched meanwhile; returns the seconds it took."""
    agreements: dict[int, Agreement] = {target.model: Agreement() for target in calls}
    began = time.perf_counter()
    ends = None if plan.seconds is None else began + plan.seconds

    async def worker(target: Target) -> None:
        tally, mine = tallies[target], calls[target]
        while (plan.requests is None or tally.sent < plan.requests) and (ends is None or time.perf_counter() < ends):
            call = mine[tally.sent % len(mine)]
            tally.sent += 1
            sent_at = time.perf_counter()
            try:
                reply = await _send(session, target, call)
            except _CALL_ERRORS as error:
                failure = explain(error)
                tally.fail(failure)
                if failure.kind != TIMEOUT:
                    await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
                continue
            latency_ms = (time.perf_counter() - sent_at) * 1000
            outcome = judge(target, call, reply, cores)
            if isinstance(outcome, Failure):
                tally.fail(outcome)
            else:
                variant = agreements[target.model].variant(call.key, str(reply.core), outcome)
                tally.served.append(Served(latency_ms, call.key, variant))

    await asyncio.gather(*(worker(target) for target in calls for _ in range(plan.connections)))
    took_s = time.perf_counter() - began
    for tally in tallies.values():
        _take_back_outvoted(tally, agreements[tally.target.model])
    return took_s


async def _send(session: aiohttp.ClientSession, target: Target, call: Call) -> Reply:
    if call.query is None:
        request = session.post(
            target.url, data=call.body, headers={"content-type": "application/json"}, allow_redirects=False
        )
    else:
        request = session.get(f"{target.url}?{call.query}" if call.query else target.url, allow_redirects=False)
    async with request as reply:
        return Reply(reply.status, reply.headers.get("x-corelane-core"), await reply.read())


def _take_back_outvoted(tally: Tally, agreement: Agreement) -> None:
    """Make failures of answers that other cores contradict; who stands alone is known only at the end."""
    kept = [one for one in tally.served if not agreement.is_outvoted(one.call, one.variant)]
    if outvoted := len(tally.served) - len(kept):
        tally.served = kept
        tally.fail(Failure(WRONG_ANSWER, "other cores answer the same question differently"), outvoted)

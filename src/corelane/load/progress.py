"""How far a run is, on stderr: a bar where a person watches, a line now and then where nobody does."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection

from corelane.load.tally import Plan, Tally

_REFRESH_S = 0.2
_LINE_EVERY_S = 10.0


async def show(tallies: Collection[Tally], plan: Plan) -> None:
    """Show progress until cancelled."""
    began = time.perf_counter()

    def share() -> float:
        """Of the limit that will be reached first."""
        by_time = (time.perf_counter() - began) / plan.seconds if plan.seconds else 0.0
        wanted = plan.requests * len(tallies) if plan.requests else 0
        by_count = sum(tally.done for tally in tallies) / wanted if wanted else 0.0
        return min(1.0, max(by_time, by_count))

    if sys.stderr.isatty():
        await _bar(tallies, share)
    else:
        await _lines(tallies, share)


def _counts(tallies: Collection[Tally]) -> str:
    failed = sum(tally.failures.total() for tally in tallies)
    return f"{sum(len(tally.served) for tally in tallies)} ok, {failed} failed"


async def _bar(tallies: Collection[Tally], share: Callable[[], float]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn(f"{len(tallies)} endpoints"), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=1.0)
        while True:
            bar.update(task, completed=share(), description=_counts(tallies))
            bar.refresh()
            await asyncio.sleep(_REFRESH_S)


async def _lines(tallies: Collection[Tally], share: Callable[[], float]) -> None:
    print(f"calling {len(tallies)} endpoints", file=sys.stderr, flush=True)
    while True:
        await asyncio.sleep(_LINE_EVERY_S)
        print(f"{share():.0%}: {_counts(tallies)}", file=sys.stderr, flush=True)

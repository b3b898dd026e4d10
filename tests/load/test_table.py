"""The report: what a person and a program read of the same run."""

from __future__ import annotations

from corelane.load.table import Run, document, render
from corelane.load.tally import Failure, Plan, Served, Tally
from corelane.load.targets import Target


def tally(core: int, latencies_ms: list[float], *failures: Failure) -> Tally:
    made = Tally(Target(core, 0, "cores", f"http://127.0.0.1:{8081 + core}/x"), sent=len(latencies_ms) + len(failures))
    made.served = [Served(latency_ms, "post 0", 0) for latency_ms in latencies_ms]
    for failure in failures:
        made.fail(failure)
    return made


def run(*tallies: Tally, took_s: float = 2.0, silent: dict[int, Failure] | None = None) -> Run:
    return Run(Plan(2, took_s, None, 10.0), took_s, tallies, silent or {}, ["a note of the run"])


def test_the_table_has_a_line_per_endpoint_and_one_for_all() -> None:
    """Rates and latencies are those of served requests: two of core 1's three failed."""
    slow = Failure("timeout", "no whole reply in time")
    lines = render(run(tally(0, [10.0, 20.0, 30.0]), tally(1, [100.0], slow, slow))).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["core", "0", "model_0", "3", "3", "0", "1.5", "20.0", "30.0", "30.0", "30.0"],
        ["core", "1", "model_0", "3", "1", "2", "0.5", "100.0", "100.0", "100.0", "100.0"],
        ["total", "6", "4", "2", "2.0", "20.0", "100.0", "100.0", "100.0"],
    ]
    assert lines[-1] == "failed: core 1 model_0: timeout (2)"


def test_percentiles_of_all_are_those_of_all_samples() -> None:
    """Not means of the endpoints' own percentiles."""
    total = document(run(tally(0, [1.0] * 9), tally(1, [100.0])))["total"]
    assert total["latency_ms"] == {"p50": 1.0, "p90": 1.0, "p99": 100.0, "max": 100.0}


def test_the_columns_stand_below_each_other() -> None:
    """Whatever is in them."""
    lines = render(run(tally(0, [1.0]), tally(11, [12345.6]), tally(2, []))).splitlines()[:5]
    assert len({len(line) for line in lines}) == 1


def test_an_endpoint_that_answered_nothing_failed_even_without_a_failed_call() -> None:
    """A run too short for one answer has shown nothing."""
    report = run(tally(0, []))
    assert report.complaints == ["core 0 model_0: answered nothing"]
    assert "no data" in render(report)


def test_the_mode_is_named() -> None:
    """Percentiles of a closed loop hide stalls; a reader has to know which loop it was."""
    assert "closed loop, 2 connections per endpoint, 2.0 s" in render(run(tally(0, [1.0])))
    assert document(run(tally(0, [1.0])))["mode"] == "closed loop"


def test_the_first_failure_of_a_kind_is_told_in_words() -> None:
    """The server's own sentence says more than a status."""
    bad = [Failure("status 503", "core 0 is draining"), Failure("status 503", "later")]
    text = render(run(tally(0, [1.0], *bad)))
    assert "core 0 model_0: 2 x status 503, the first: core 0 is draining" in text


def test_a_silent_core_whose_calls_failed_is_blamed_once() -> None:
    """The endpoint's line says it already."""
    gone = Failure("refused", "nothing listens on the port")
    report = run(tally(0, [1.0]), tally(1, [], gone), silent={1: gone})
    assert report.complaints == ["core 1 model_0: refused (1), answered nothing"]


def test_notes_come_before_the_last_line() -> None:
    """The last line is always the verdict."""
    lines = render(run(tally(0, [1.0]))).splitlines()
    assert lines[-2:] == [
        "a note of the run",
        "all 1 calls to 1 endpoints were answered, and no answer was wrong",
    ]

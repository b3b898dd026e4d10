"""What follows an exit code: tables over a pure counter."""

from __future__ import annotations

import pytest

from corelane.fleet.restarts import (
    BUSY_LONGEST_DELAY_S,
    CORE_RULES,
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    LOOP_FAILURES,
    OTHER_RULES,
    SOUND_AFTER_S,
    Next,
    Restarts,
    describe,
)


def test_every_exit_code_of_a_core_server_has_a_rule() -> None:
    """The codes are a contract: none may fall through to the rule for unknown programs."""
    assert set(CORE_RULES) == set(range(7))


@pytest.mark.parametrize("code", [2, 3])
def test_a_refused_configuration_or_bundle_is_never_started_again(code: int) -> None:
    """It would be refused again, for ever."""
    assert Restarts(CORE_RULES).after(code, None) == Next("refused", None)


@pytest.mark.parametrize("code", [0, 1, 5, 6, -9, -11, 42], ids=str)
def test_any_other_end_is_followed_by_a_start_after_a_tenth_of_a_second(code: int) -> None:
    """An exit code 0 that nobody asked for included."""
    assert Restarts(CORE_RULES).after(code, 1.0) == Next("backing-off", FIRST_DELAY_S)


def test_the_delay_doubles_up_to_its_bound() -> None:
    """A core that dies as soon as it is ready must not become a hot loop."""
    restarts = Restarts(CORE_RULES)
    delays = [restarts.after(5, 1.0).delay_s for _ in range(12)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == LONGEST_DELAY_S


def test_a_minute_of_being_ready_begins_a_new_series() -> None:
    """One crash a day is not a series."""
    restarts = Restarts(CORE_RULES)
    for _ in range(5):
        restarts.after(1, 1.0)
    assert restarts.after(1, SOUND_AFTER_S).delay_s == FIRST_DELAY_S


def test_failures_without_ever_being_ready_end_in_a_stated_state() -> None:
    """A crash loop has to end where a person can see it."""
    restarts = Restarts(CORE_RULES)
    outcomes = [restarts.after(1, None).state for _ in range(LOOP_FAILURES)]
    assert outcomes == ["backing-off"] * (LOOP_FAILURES - 1) + ["failed"]


def test_being_ready_once_breaks_the_crash_loop() -> None:
    """What can be ready is worth another start, only a later one."""
    restarts = Restarts(CORE_RULES)
    for _ in range(LOOP_FAILURES - 1):
        restarts.after(1, None)
    restarts.after(1, 0.5)
    assert restarts.after(1, None).state == "backing-off"


def test_a_busy_core_is_tried_for_ever_and_more_slowly() -> None:
    """Its owner may end at any time, and is no fault of the core. After a day the doubling alone is no number."""
    restarts = Restarts(CORE_RULES)
    outcomes = [restarts.after(4, None) for _ in range(1500)]
    assert {outcome.state for outcome in outcomes} == {"backing-off"}
    assert outcomes[0].delay_s == 2.0
    assert outcomes[-1].delay_s == BUSY_LONGEST_DELAY_S


def test_forgetting_begins_anew() -> None:
    """After a person has said that the cause is gone."""
    restarts = Restarts(CORE_RULES)
    for _ in range(LOOP_FAILURES):
        restarts.after(1, None)
    restarts.forget()
    assert restarts.after(1, None) == Next("backing-off", FIRST_DELAY_S)


def test_the_codes_of_a_core_server_mean_nothing_for_the_gateway() -> None:
    """HAProxy's 2 or 3 is no refusal of ours."""
    assert Restarts(OTHER_RULES).after(3, None).state == "backing-off"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exit 3 (bundle refused)"),
        (4, "exit 4 (core busy)"),
        (99, "exit 99 (ended)"),
        (-9, "killed by SIGKILL"),
        (-60, "killed by signal 60"),
    ],
    ids=str,
)
def test_an_end_is_described_in_words(code: int, text: str) -> None:
    """A number alone sends people to the manual."""
    assert describe(CORE_RULES, code) == text

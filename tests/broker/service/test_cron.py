"""When schedules are due, around the hours that are skipped and doubled."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from broker.errors import InvalidTask
from broker.leading.cron import (
    MISSED_MAX,
    check_cron,
    check_zone,
    missed,
    next_cron_ms,
    next_interval_ms,
)

ROME = "Europe/Rome"


def _ms(text: str, zone: str = ROME, fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(moment.timestamp() * 1000)


def _texts(expression: str, after_ms: int, count: int, zone: str = ROME) -> list[str]:
    found = []
    for _ in range(count):
        following_ms = next_cron_ms(expression, zone, after_ms)
        assert following_ms is not None and following_ms > after_ms
        after_ms = following_ms
        found.append(datetime.fromtimestamp(after_ms / 1000, ZoneInfo(zone)).isoformat())
    return found


def test_a_schedule_in_an_hour_that_is_skipped_fires_once_right_after() -> None:
    assert _texts("30 2 * * *", _ms("2026-03-28T12:00"), 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_a_schedule_in_an_hour_that_comes_twice_fires_once() -> None:
    assert _texts("30 2 * * *", _ms("2026-10-24T12:00"), 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


def test_asked_in_the_second_of_two_equal_hours_the_first_is_over() -> None:
    after_ms = _ms("2026-10-25T02:10", fold=1)
    assert _texts("30 2 * * *", after_ms, 1) == ["2026-10-26T02:30:00+01:00"]


def test_every_quarter_of_an_hour_goes_on_through_both() -> None:
    assert len(set(_texts("*/15 * * * *", _ms("2026-10-25T01:50"), 9))) == 9
    skipped = _texts("*/15 * * * *", _ms("2026-03-29T01:40"), 2)
    assert skipped == ["2026-03-29T01:45:00+01:00", "2026-03-29T03:00:00+02:00"]


def test_moments_are_those_of_the_named_zone() -> None:
    at_ms = next_cron_ms("0 9 * * MON", "Asia/Tokyo", _ms("2026-11-21T00:00", "UTC"))
    assert at_ms is not None
    assert datetime.fromtimestamp(at_ms / 1000, UTC).isoformat() == "2026-11-23T00:00:00+00:00"


@pytest.mark.parametrize("expression", ["", "* * *", "61 * * * *", "0 0 30 2 *", "a b c d e"])
def test_what_is_no_expression_is_refused_in_words(expression: str) -> None:
    with pytest.raises(InvalidTask):
        check_cron(expression, "UTC")


@pytest.mark.parametrize("zone", ["", "Europe/Atlantis", "../etc/passwd", "/etc/localtime"])
def test_an_unknown_time_zone_is_refused_in_words(zone: str) -> None:
    with pytest.raises(InvalidTask, match="time zone"):
        check_cron("0 0 * * *", zone)
    with pytest.raises(InvalidTask, match="time zone"):
        check_zone(zone)


def test_intervals_are_counted_from_their_start() -> None:
    assert next_interval_ms(10, 105, 0) == 105
    assert next_interval_ms(10, 105, 105) == 115
    assert next_interval_ms(10, 105, 114) == 115
    assert next_interval_ms(10, 105, 1_114) == 1_115


def test_moments_that_passed_unnoticed_are_counted() -> None:
    due_ms = _ms("2026-11-21T02:30")
    assert missed("30 2 * * *", ROME, 0, due_ms, due_ms + 3 * 86_400_000 + 1) == 3
    assert missed("30 2 * * *", ROME, 0, due_ms, due_ms) == 0
    assert missed("* * * * *", ROME, 0, due_ms, due_ms + 30 * 86_400_000) == MISSED_MAX
    assert missed("", "", 1_000, due_ms, due_ms + 5_500) == 5

"""Commands of earlier versions, and those that wait until every replica knows them."""

from hashlib import sha256
from typing import Any

import pytest

from broker.commands import (
    LEVEL,
    Begin,
    Command,
    Commit,
    CorrectDue,
    ExpireTransactions,
    Fire,
    PoolDelete,
    Purge,
    RestartWaits,
    Rollback,
    Schedule,
    SchedulePause,
    ScheduleSet,
    SetTime,
    Spec,
    encode,
    level_of,
)
from broker.machine import BrokerMachine
from tests.broker.machine.driving import START_MS, Driver

ROWS_OF_LEVEL_1 = "be338c6eb80a103c8054e5837c587f4519ef4927b1ccc04ca9ddbc012877a6dd"
"""The digest of the answers and rows that versions before level 2 made of `_log_of_level_1`."""


def _log_of_level_1() -> list[bytes]:
    """Commands as arrays, as the versions before level 2 wrote them."""
    now = START_MS
    slot = Spec("a", slot="s", unique_key="u")
    big = [Spec("a", due_ms=now + 50)] + [Spec("a")] * 999
    related = [Spec("a"), Spec("b", due_ms=now + 9)]
    schedule = Schedule("n", Spec("a"), interval_ms=100, next_due_ms=now + 100)
    said: list[list[Any]] = [
        *([2, now + 1_000, now, "ann"] for _ in range(4)),
        *([1, big, now, number, False, ""] for number in (1, 2, 3) for _ in range(2)),
        *([1, [slot], now, number, False, "ann"] for number in (1,)),
        [1, related, now],
        [3, 1, now + 60, "ann"],
        [11, [1_999, 2_001, 4_001], "ann", now + 61],
        [8, [1, 1_001, 2_001], now + 70],
        [1, [slot, Spec("b")], now + 30, 0, False, ""],
        [4, 2, now + 80, ""],
        [12, [1_999, 2_000], "ann", now + 81],
        [22, now + 82],
        [22, now + 83],
        [5, now + 2_000],
        [22, now + 2_001],
        [22, now + 2_002],
        [18, schedule, "ann", now + 2_003],
        [20, "n", True, now + 9_000, "ann", now + 2_004],
        [20, "n", False, now + 9_000, "ann", now + 2_005],
        [20, "n", False, now + 2_010, "ann", now + 2_006],
        [21, "n", now + 2_010, now + 2_110, now + 2_011, 3, False],
        [18, Schedule("n", Spec("a"), interval_ms=7), "bob", now + 9_999],
        [10, now + 4_000_000, 1_000],
        [2, now + 1, now, "late"],
    ]
    return [encode(each) for each in said]


def test_logs_of_earlier_versions_make_the_same_rows() -> None:
    driver = Driver()
    answers = [driver.send(command) for command in _log_of_level_1()]
    digest = sha256(b"".join(answers))
    for key, value in driver.all():
        digest.update(key + value)
    assert digest.hexdigest() == ROWS_OF_LEVEL_1


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (Begin(2, 1), 1),
        (Commit(1, 1), 1),
        (Commit(1, 1, whole=True), LEVEL),
        (Rollback(1, 1), 1),
        (Rollback(1, 1, whole=True), LEVEL),
        (ExpireTransactions(1), 1),
        (ExpireTransactions(1, whole=True), LEVEL),
        (SchedulePause("n", True, 1, "", 1), 1),
        (SchedulePause("n", True, 1, "", 1, keep_due=True), LEVEL),
        (ScheduleSet(Schedule("n", Spec("a")), "", 1), 1),
        (ScheduleSet(Schedule("n", Spec("a")), "", 1, count_due=True), LEVEL),
        (Purge(1), 1),
        (Purge(1, keep_code=True), LEVEL),
        (Fire("n", 1, 2, 1), 1),
        (Fire("n", 1, 2, 1, keep_code=True), LEVEL),
        (PoolDelete("p", 1), 1),
        (PoolDelete("p", 1, keep_code=True), LEVEL),
        (SetTime(1), LEVEL),
        (RestartWaits(1), LEVEL),
        (CorrectDue("n", 1, 2, 1), LEVEL),
    ],
)
def test_commands_that_older_replicas_would_apply_differently_wait_for_the_level(
    command: Command, level: int
) -> None:
    assert level_of(command) == level <= BrokerMachine.level

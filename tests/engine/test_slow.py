"""The log of slow operations: one line each, no values, no flood, and silence until it is asked."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import herdbook
from engine.bookie.measures import BookieMeasures
from engine.errors import InvalidRequest
from engine.ports.clock import SystemClock
from engine.ports.metrics import NO_METRICS
from engine.slow import SLOW, VARIABLE, SlowLog, SlowSettings, configure_from, parse_settings
from herd.sql.session import Session
from herd.sql.shape import shape_of
from herdbook.book import AsyncBook, open_async
from tests.acceptance.broker_functions import leave_a_line


class SetClock:
    """A clock that stands where it was set."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def slow() -> Iterator[SlowLog]:
    """The log of this process, quiet again afterwards."""
    yield SLOW
    SLOW.configure(None)


@pytest.fixture
def everything(slow: SlowLog) -> SlowLog:
    """Everything is slow, also what took no time by a loop that counts whole milliseconds."""
    slow.configure(SlowSettings(lines_a_second=100_000), SystemClock())
    slow.append_s = slow.sync_s = slow.sql_s = slow.object_s = slow.round_s = -1.0
    return slow


def lines(caplog: pytest.LogCaptureFixture, kind: str = "") -> list[dict[str, Any]]:
    """What was written of a kind."""
    told = [each.getMessage() for each in caplog.records if each.name == "herdbook.slow"]
    found = [json.loads(each) for each in told]
    return [each for each in found if not kind or each["slow"] == kind]


def test_more_lines_than_a_second_takes_are_counted_and_told_with_the_next(
    slow: SlowLog, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SetClock()
    slow.configure(SlowSettings(lines_a_second=3), clock)
    for number in range(10):
        slow.note("sync", 0.5, bookie=f"b{number}")
    assert [each["bookie"] for each in lines(caplog)] == ["b0", "b1", "b2"]
    clock.now_s += 0.4
    slow.note("sync", 0.5, bookie="later")
    assert lines(caplog)[-1] == {"slow": "sync", "ms": 500.0, "bookie": "later", "unwritten": 7}
    clock.now_s += 1_000
    for _ in range(10):
        slow.note("sync", 0.5)
    assert len(lines(caplog)) == 7 and "unwritten" not in lines(caplog)[-1]


def test_a_sync_that_took_long_is_told_and_one_that_did_not_is_not(
    slow: SlowLog, caplog: pytest.LogCaptureFixture
) -> None:
    slow.configure(SlowSettings(sync_ms=200), SystemClock())
    BookieMeasures(NO_METRICS, "b1").written(7, 4096, [0.1, 0.25, 0.2])
    assert lines(caplog) == [
        {"slow": "sync", "ms": 250.0, "waited": "disk", "bookie": "b1", "requests": 7}
    ]


async def used(book: AsyncBook) -> None:
    """An append, statements, an object, a task."""
    writer = await book.ledgers.create_ledger()
    await writer.append(b"a body that nobody reads")
    await writer.close()
    session = await book.herd.session("default")
    await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
    await session.execute("INSERT INTO cow VALUES (1, 'Elsa the secret'), (2, 'Berta')")
    await session.execute("SELECT count(*) FROM cow WHERE name = 'Elsa the secret' OR id > 41")
    await session.close()
    bucket = await book.blobs.create_bucket("photos")
    await bucket.put("of a secret", b"moo")
    await bucket.put("large", b"moo" * 2_000_000)
    await bucket.get("large")


async def test_each_kind_has_a_line_with_ids_and_without_values(
    everything: SlowLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_async(tmp_path) as book:
        await used(book)
        (bookie_id,) = book.ledgers.bookies
    # Clusters that other tests keep in this process have slow calls, too.
    appends, syncs = (
        [each for each in lines(caplog, kind) if each["bookie"] == bookie_id]
        for kind in ("append", "sync")
    )
    assert appends and syncs and all(each["ledger"] > 0 for each in appends)
    shapes = [each["shape"] for each in lines(caplog, "sql") if each["tablespace"] == "default"]
    assert "SELECT count ( * ) FROM cow WHERE name = ? OR id > ?" in shapes
    assert "INSERT INTO cow VALUES ( ? ) , ( ? )" in shapes
    puts, gets = lines(caplog, "put"), lines(caplog, "get")
    assert [each["length"] for each in puts] == [3, 6_000_000] and len(gets) == 1
    assert all(each["bucket"] == "photos" and each["object"] for each in puts + gets)
    assert all(each["waited"] in ("bytes", "name") for each in puts + gets)
    text = "\n".join(each.getMessage() for each in caplog.records if each.name == "herdbook.slow")
    assert "secret" not in text and "Berta" not in text and "nobody reads" not in text


async def test_a_statement_that_waited_for_another_one_s_lock_says_so(
    everything: SlowLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_async(tmp_path) as book:
        first = await book.herd.session("default", autocommit=False)
        await first.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        await first.execute("INSERT INTO cow VALUES (1, 'Elsa')")
        await first.execute("COMMIT")
        await first.execute("UPDATE cow SET name = 'Berta' WHERE id = 1")
        other = await book.herd.session("default")
        assert isinstance(other, Session)
        caplog.clear()
        waiting = asyncio.ensure_future(other.execute("DELETE FROM cow WHERE id < 5"))
        async with asyncio.timeout(10):
            while other._latest is None or other._latest.waiting is None:
                await asyncio.wait([waiting], timeout=0.01)
        await first.execute("COMMIT")
        await waiting
        (told,) = [each for each in lines(caplog, "sql") if each["shape"].startswith("DELETE")]
        assert told["locks_ms"] > 0 and told["work_ms"] >= 0
        await first.close()
        await other.close()


def test_a_round_of_a_broker_tells_how_many_tasks_it_gave_to_how_many_workers(
    everything: SlowLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = {"number": 42, "file": str(tmp_path / "lines"), "pause_ms": 0}
    with herdbook.open(tmp_path / "store") as book, book.tasks.workers(1):
        assert book.tasks.submit(leave_a_line, wanted).wait(30_000) == 42
    (told,) = lines(caplog, "round")
    assert (told["tasks"], told["workers"]) == (1, 1)
    assert told["waited"] in ("taking", "log") and told["log_ms"] >= 0


async def test_a_process_that_said_nothing_writes_nothing(
    slow: SlowLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configure_from({}, SystemClock())
    async with open_async(tmp_path) as book:
        await used(book)
    assert lines(caplog) == []


def test_the_environment_says_what_is_slow(slow: SlowLog) -> None:
    configure_from({VARIABLE: "on"}, SystemClock())
    assert (slow.append_s, slow.sql_s) == (0.5, 1.0)
    configure_from({VARIABLE: "append_ms=20, sql_ms=0"}, SystemClock())
    assert (slow.append_s, slow.sql_s, slow.object_s) == (0.02, float("inf"), 2.0)


@pytest.mark.parametrize("told", ["off", "append_ms", "append_ms=x", "moo=1", "lines_a_second=0"])
def test_what_is_no_setting_is_refused(told: str) -> None:
    with pytest.raises(InvalidRequest, match=VARIABLE):
        parse_settings(told)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'hidden'",
        "SELECT E'hid\\'den'",
        "SELECT $$hidden$$",
        "SELECT $tag$hidden$tag$",
        "SELECT X'4D'  -- hidden",
        "/* hidden */ SELECT 8151.5e3, 0x8151",
        "INSERT INTO t VALUES (8151, 'hidden', N'hidden'), (8151, U&'hidden', B'0101')",
        "SELECT 'hidden",
    ],
)
def test_a_shape_has_no_value_in_it(text: str) -> None:
    assert "hid" not in shape_of(text) and "8151" not in shape_of(text)
    assert "4D" not in shape_of(text) and "0101" not in shape_of(text)


def test_a_long_statement_has_a_short_shape() -> None:
    shape = shape_of("SELECT " + ", ".join(f"column_{n}" for n in range(1_000)))
    assert len(shape) == 500 and shape.endswith("...")
    assert logging.getLogger("herdbook.slow").isEnabledFor(logging.WARNING)


def test_a_program_that_says_what_is_slow_needs_no_clock(
    slow: SlowLog, caplog: pytest.LogCaptureFixture
) -> None:
    slow.configure(SlowSettings(sql_ms=1))
    assert slow.sql_s == 0.001
    slow.note("sql", 0.5)
    assert json.loads(caplog.records[-1].message) == {"slow": "sql", "ms": 500.0}


def test_what_is_named_beside_on_counts_and_the_rest_is_as_usual() -> None:
    assert parse_settings("on") == SlowSettings()
    assert parse_settings("on, object_ms=1") == SlowSettings(object_ms=1)
    with pytest.raises(InvalidRequest, match="'off'"):
        parse_settings("on,off")

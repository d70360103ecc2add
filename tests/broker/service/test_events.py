"""What happened to a broker is told in lines that programs read."""

import json
import logging
from typing import Any

import pytest

from broker.commands import Spec
from broker.leading import events
from broker.leading.clock import BrokerTime
from broker.service import Broker
from broker.settings import Limit
from tests.broker.service.clocks import HandClock, LoopClock
from tests.broker.service.yard import FakeWorker, opened, submitted
from tests.simulation.virtual import elapse, virtually


def _told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    lines = [record.getMessage() for record in caplog.records if record.name == events.EVENTS]
    return [json.loads(line) for line in lines]


async def _fail_all(broker: Broker, worker: FakeWorker, count: int) -> None:
    for run in await worker.until_runs(count):
        await worker.fail(run, "it broke " + "x" * 1_000)


def test_what_happened_is_told_in_its_order(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        async with opened(clock=LoopClock()) as broker:
            await broker.set("resource", "database", Limit(5))
            await broker.set("resource", "database", None)
            worker = await FakeWorker.connected(broker, "mower", places=30)
            await submitted(broker, *[Spec("mow", "green") for _ in range(20)], Spec("plough"))
            await _fail_all(broker, worker, 21)
            await worker.beat()
            await elapse(20.0)

    caplog.set_level(logging.INFO, events.EVENTS)
    virtually(script())
    told = _told(caplog)
    assert [one["event"] for one in told] == [
        *("term_began", "setting_changed", "setting_removed", "worker_connected"),
        *("dead_letters", "dead_letters", "worker_lost", "term_ended"),
    ]
    mown, ploughed = told[4:6]
    assert (mown["tenant"], mown["type"], mown["tasks"]) == ("green", "mow", 20)
    assert (ploughed["type"], ploughed["tasks"], ploughed["newest_id"]) == ("plough", 1, 21)
    assert ploughed["error"].startswith("it broke") and len(ploughed["error"]) == 200
    assert told[6]["worker_id"] == "mower" and told[6]["session"] == told[3]["session"]
    assert told == sorted(told, key=lambda one: one["at_ms"])


def test_dead_letters_of_many_tenants_are_few_events(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        async with opened(clock=LoopClock()) as broker:
            worker = await FakeWorker.connected(broker, places=30)
            await submitted(broker, *[Spec("mow", f"tenant{number}") for number in range(20)])
            await _fail_all(broker, worker, 20)

    monkeypatch.setattr(events, "KINDS_MAX", 3)
    caplog.set_level(logging.INFO, events.EVENTS)
    virtually(script())
    dead = [one for one in _told(caplog) if one["event"] == "dead_letters"]
    assert sum(one["tasks"] for one in dead) == 20
    assert len(dead) == 4 and dead[-1]["tenant"] == ""


def test_words_that_are_no_text_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, events.EVENTS)
    told = events.Events(BrokerTime(HandClock(), 0), 3)
    told.tell("term_ended", why="the file \udcff is gone")
    assert _told(caplog)[0]["why"] == "the file ? is gone"
    assert _told(caplog)[0]["term"] == 3


async def test_nobody_pays_for_what_nobody_hears(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, events.EVENTS)
    async with opened() as broker:
        await broker.set("resource", "database", Limit(5))
    assert not _told(caplog)

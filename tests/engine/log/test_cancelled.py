"""Changes of a log's list whose callers are cancelled, while the store continues without them."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.log.log import ReplicatedLog
from engine.log.log_writer import LogWriter
from tests.engine.log.yard import Yard, bodies, numbered
from tests.engine.metadata.late_store import LateStore, cancelled_at

Step = Callable[[ReplicatedLog, LogWriter], Coroutine[Any, Any, object]]


async def _rolled(log: ReplicatedLog, writer: LogWriter) -> None:
    await writer._turn()


async def _taken_over(log: ReplicatedLog, writer: LogWriter) -> None:
    await log.lead()


async def _pinned(log: ReplicatedLog, writer: LogWriter) -> None:
    await log.pin("reader", writer.last, 60_000)


async def _truncated(log: ReplicatedLog, writer: LogWriter) -> None:
    await log.truncate(writer.last)


async def _swept(log: ReplicatedLog, writer: LogWriter) -> None:
    await log.sweep(set(), writer.epoch)


@pytest.mark.parametrize("step", [_rolled, _taken_over, _pinned, _truncated, _swept])
@pytest.mark.parametrize("lands_before_the_next", [True, False])
async def test_a_log_keeps_acknowledged_entries_if_a_change_is_cancelled_at_any_await(
    step: Step, lands_before_the_next: bool
) -> None:
    place, cut = 0, True
    while cut:
        place += 1
        yard = await Yard.of(3)
        store = LateStore(yard.tree.session())
        log = yard.log(store=store)
        writer = await log.lead()
        await writer.append_many(numbered(0, 4))
        await writer.roll()
        await writer.append_many(numbered(4, 4))
        await log._create(writer.epoch - 1)
        cut = await cancelled_at(place, step(log, writer))
        if lands_before_the_next:
            await store.land()
        following = await log.lead()
        await store.land()
        await following.append_many(numbered(8, 4))
        kept = numbered(0, 12)
        current = await log.list()
        if current.dropped_through.ledger:
            assert step is _truncated
            kept = kept[4:]
        assert await bodies(yard.log(), current.dropped_through) == kept, place
        await log.sweep(set(), following.epoch)
        assert await yard.client().list_ledgers() == list((await log.list()).ledgers), place
        await following.close()
    assert place > 2, "nothing was cancelled"

"""When a snapshot is named, by whom, and when a follower looks for it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from engine.errors import Deposed
from engine.metadata.contract import Versioned
from engine.metadata.memory import FaultyStore
from engine.replica.replica import Replica
from engine.replica.snapshots import PURPOSE, SnapshotRecord
from engine.state.memory import MemoryState
from tests.engine.ledger.scripted import QUICK, turns
from tests.engine.replica.machines import Register
from tests.engine.replica.yard import LOG_SETTINGS, SETTINGS, Yard, yard

KEY = "/logs/log/snapshot"


class LookedAt(FaultyStore):
    """A store in which something happens right after the snapshot's key was looked at."""

    then: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str) -> Versioned | None:
        found = await super().get(key)
        if key == KEY and self.then is not None:
            then, self.then = self.then, None
            await then()
        return found


async def _unnamed(made: Yard, leader: Replica) -> SnapshotRecord:
    """A snapshot of a later position, in a ledger that is closed and not named yet."""
    named = await leader._snapshots.newest()
    assert named is not None
    metadata = leader.log.custom_metadata(PURPOSE, leader.epoch)
    writer = await made.client("writes").create_ledger(metadata=metadata)
    await writer.close()
    later = (named.at.ledger, named.at.entry + 1)
    return msgspec.structs.replace(named, ledger_id=writer.ledger_id, position=later)


async def test_a_follower_looks_at_the_list_before_the_snapshot() -> None:
    """Between its two looks a snapshot is named, and the log is dropped up to it."""
    async with yard() as made:
        one = await made.leader(log_settings=replace(LOG_SETTINGS, roll_entries=10))
        for number in range(40):
            await one.propose(b"a=%d" % number)
        store = LookedAt(made.cluster.tree.session())
        store.then = one.snapshot
        two = await Replica.open(
            made.cluster.client(QUICK, store=store),
            "log",
            Register(),
            MemoryState(),
            replica_id="two",
            settings=SETTINGS,
            log_settings=LOG_SETTINGS,
        )
        assert not (await one.log.list()).full_history
        async with asyncio.timeout(10):
            await two.wait_for(one.position)
        assert two.stale_read(lambda rows: rows.get(b"a"))[0] == b"39"
        await two.close()


async def test_a_snapshot_is_named_only_after_all_of_it_is_durable() -> None:
    async with yard() as made:
        one = await made.leader()
        await one.propose(b"a=1")
        await turns(100)
        for bookie in made.cluster.bookies:
            bookie.holding = True
        taking = asyncio.ensure_future(one.snapshot())
        await turns(200)
        assert any(bookie.held for bookie in made.cluster.bookies)
        assert await one._snapshots.newest() is None
        for bookie in made.cluster.bookies:
            bookie.holding = False
            bookie.release()
        at = await taking
        named = await one._snapshots.newest()
        assert named is not None and named.at == at
        metadata = await made.client("look").ledger_metadata(named.ledger_id)
        assert metadata.closed and metadata.last_entry


@pytest.mark.parametrize("reply", [True, False])
async def test_a_name_whose_write_was_lost_is_settled(reply: bool) -> None:
    async with yard() as made:
        store = FaultyStore(made.cluster.tree.session())
        one = await Replica.open(
            made.cluster.client(QUICK, store=store),
            "log",
            Register(),
            MemoryState(),
            replica_id="one",
            settings=SETTINGS,
            log_settings=LOG_SETTINGS,
            elect=False,
        )
        await one.until_leading(10_000)
        await one.propose(b"a=1")
        await one.snapshot()
        first = await one._snapshots.newest()
        wanted = await _unnamed(made, one)
        await turns(100)
        if reply:
            store.lose_reply()
        else:
            store.lose_request()
        record, replaced = await one._snapshots._name(wanted)
        assert not store.faults_left
        assert record == await one._snapshots.newest()
        assert (record.ledger_id, replaced) == (wanted.ledger_id, [first])
        await one.close()


async def test_a_swept_ledger_is_never_named_afterwards() -> None:
    """An older leader wakes up while its successor sweeps."""
    async with yard() as made:
        one = await made.leader("one")
        await one.propose(b"a=1")
        await one.snapshot()
        unnamed = await _unnamed(made, one)
        await one.close()
        two = await made.leader("two")
        sweep = two.log.sweep

        async def late(keep: set[int], epoch: int) -> list[int]:
            with contextlib.suppress(Deposed):
                await one._snapshots._name(unnamed)
            return await sweep(keep, epoch)

        assert two._duties is not None
        two.log.sweep = late  # type: ignore[method-assign]
        await two._duties._sweep()
        named = await two._snapshots.newest()
        assert named is not None
        ledgers = await made.client("look").list_ledgers()
        assert named.ledger_id in ledgers and unnamed.ledger_id not in ledgers

"""A snapshot whose caller is cancelled: a replica can start, whatever happens to the writes."""

from dataclasses import replace

import pytest

from engine.ledger.client import LedgerClient
from engine.log.position import START
from engine.replica.replica import Replica
from engine.state.memory import MemoryState
from tests.engine.ledger.scripted import QUICK
from tests.engine.metadata.late_store import LateStore, cancelled_at
from tests.engine.replica.machines import Register
from tests.engine.replica.yard import LOG_SETTINGS, PATIENCE_MS, SETTINGS, Yard, yard

ROLLING = replace(LOG_SETTINGS, roll_entries=4)


async def _opened(client: LedgerClient, name: str) -> Replica:
    """A replica on an empty state that leads without an election."""
    replica = await Replica.open(
        client,
        "log",
        Register(),
        MemoryState(),
        address=name,
        replica_id=name,
        settings=SETTINGS,
        log_settings=ROLLING,
        elect=False,
    )
    await replica.until_leading(PATIENCE_MS)
    return replica


async def _propose(replica: Replica, name: str) -> None:
    for number in range(6):
        await replica.propose(f"{name}{number}=v".encode())


async def _check_empty_replica(made: Yard, names: str) -> None:
    """One that has nothing comes to all that was acknowledged, and nothing superfluous stays."""
    client = made.client("look")
    empty = await _opened(client, "empty")
    expected = sorted(f"{name}{number}".encode() for name in names for number in range(6))
    rows, _ = empty.stale_read(lambda rows: rows.scan(b"a"))
    assert [key for key, _ in rows] == expected
    assert empty._duties is not None
    await empty._duties._sweep()
    listed = await empty.log.list()
    named = await empty._snapshots.newest()
    assert not listed.full_history and listed.dropped_through > START and named is not None
    assert set(await client.list_ledgers()) == {*listed.ledgers, named.ledger_id}
    await empty.close()


async def _cancel(place: int, *, lands_before_the_next: bool) -> bool:
    """Cancel the second snapshot at an await, and take a third one; whether it was cancelled."""
    async with yard() as made:
        store = LateStore(made.cluster.tree.session())
        one = await _opened(made.cluster.client(QUICK, store=store), "one")
        await _propose(one, "a")
        await one.snapshot()
        await _propose(one, "b")
        assert one._duties is not None
        cut = await cancelled_at(place, one._duties.snapshot())
        asked_for = set(one._snapshots._perhaps_named)
        if lands_before_the_next:
            await store.land()
            named = await one._snapshots.newest()
            assert named is not None
            assert named.ledger_id in await made.client("look").list_ledgers(), place
        await _propose(one, "c")
        await one.snapshot()
        await store.land()
        assert not asked_for.intersection(await made.client("look").list_ledgers()), place
        await one.close()
        await _check_empty_replica(made, "abc")
        return cut


@pytest.mark.parametrize("lands_before_the_next", [True, False])
async def test_a_snapshot_cancelled_at_any_await_leaves_one_that_a_replica_starts_from(
    lands_before_the_next: bool,
) -> None:
    place = 1
    while await _cancel(place, lands_before_the_next=lands_before_the_next):
        place += 1
    assert place > 20, "nothing was cancelled"


async def test_a_snapshot_that_was_named_late_outlives_the_term_that_took_it() -> None:
    place, named_late = 1, 0
    while True:
        async with yard() as made:
            store = LateStore(made.cluster.tree.session())
            one = await _opened(made.cluster.client(QUICK, store=store), "one")
            await _propose(one, "a")
            await one.snapshot()
            first = await one._snapshots.newest()
            await _propose(one, "b")
            assert one._duties is not None
            cut = await cancelled_at(place, one._duties.snapshot())
            await one.close()
            before = await one._snapshots.newest()
            await store.land()
            named_late += await one._snapshots.newest() != before == first
            await _check_empty_replica(made, "ab")
        if not cut:
            assert named_late
            return
        place += 1

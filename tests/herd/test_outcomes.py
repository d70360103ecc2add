"""Clients that heard no answer ask what became of their transactions, and are told for ever."""

import asyncio

import pytest

from herd.errors import CommitUnknown, InterfaceError, LeaderUnavailable, TransactionEnded
from herd.keys import OUTCOME, successor
from herd.outcomes import IDENTITY_BYTES_MAX, Outcomes
from herd.schema import Table
from herd.tablespace import Tablespace
from tests.engine.ledger.scripted import Cluster, turns
from tests.herd.spaces import insert, made, opened, rows_of


async def put(space: Tablespace, table: Table, number: int, identity: bytes) -> None:
    """A transaction of one row."""
    transaction = space.begin(identity=identity)
    try:
        await insert(transaction, table, [number, 0, ""])
        await transaction.commit()
    finally:
        transaction.rollback()


async def test_what_was_committed_is_known_to_every_later_leader() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        await put(space, table, 1, b"one")
        assert await space.outcome(b"one")
    async with opened(cluster=cluster) as again:
        assert await again.outcome(b"one")
        assert not await again.outcome(b"two")


async def test_whoever_was_told_no_is_right_for_ever() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        late = space.begin(identity=b"late")
        await insert(late, table, [1, 0, ""])
        assert not await space.outcome(b"late")
        with pytest.raises(TransactionEnded, match="was told"):
            await late.commit()
        assert rows_of(space, table) == [] and len(space.locks) == 0
    async with opened(cluster=cluster) as again:
        with pytest.raises(TransactionEnded):
            await put(again, table, 1, b"late")
        assert rows_of(again, table) == []


async def test_one_that_is_sent_again_is_answered_and_not_done_again() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        await put(space, table, 1, b"one")
        await put(space, table, 2, b"one")
        assert rows_of(space, table) == [[1, 0, ""]]
        assert len(space.locks) == 0


async def test_who_asks_while_it_is_under_way_waits_for_its_end() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        bookie = cluster.bookies[0]
        bookie.holding = True
        committing = asyncio.create_task(put(space, table, 1, b"one"))
        await turns()
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        asking = asyncio.create_task(space.outcome(b"one"))
        repeated = asyncio.create_task(put(space, table, 2, b"one"))
        await turns()
        assert not asking.done() and not repeated.done()
        bookie.holding = False
        bookie.release()
        assert await asking
        await repeated
        assert rows_of(space, table) == [[1, 0, ""]]


async def test_a_transaction_that_changed_nothing_has_an_outcome_too() -> None:
    async with opened() as space:
        await space.begin(identity=b"reader").commit()
        assert await space.outcome(b"reader")
        space.begin(identity=b"given up").rollback()
        assert not await space.outcome(b"given up")


async def test_an_unknown_outcome_is_what_the_rows_tell() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        cluster.bookies[0].holding = True
        committing = asyncio.create_task(put(space, table, 1, b"one"))
        await turns()
        closing = asyncio.create_task(space.close())
        await turns()
        cluster.bookies[0].holding = False
        cluster.bookies[0].release()
        heard = (await asyncio.gather(committing, return_exceptions=True))[0]
        await closing
        assert heard is None or isinstance(heard, CommitUnknown | LeaderUnavailable)
    async with opened(cluster=cluster) as again:
        assert await again.outcome(b"one") == bool(rows_of(again, again.catalog.table("cows")))


def of(client: str, sequence: int) -> bytes:
    return client.encode() + sequence.to_bytes(8)


async def test_however_many_others_commit_since_a_client_is_told_of_its_last_one() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        space._outcomes = Outcomes(space, kept=3)
        await put(space, table, 1, of("quiet", 1))
        for number in range(2, 30):
            await put(space, table, number, of("busy", number))
        assert len(space.rows_scan(OUTCOME, successor(OUTCOME), 100)) == 2
        assert await space.outcome(of("quiet", 1)) and await space.outcome(of("busy", 29))
        assert not await space.outcome(of("quiet", 2))
        with pytest.raises(CommitUnknown, match="later"):
            await space.outcome(of("busy", 28))
        with pytest.raises(CommitUnknown, match="later"):
            await put(space, table, 99, of("busy", 3))
        assert [99, 0, ""] not in rows_of(space, table)


async def test_a_client_that_was_forgotten_is_told_that_nobody_knows_and_never_no() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        space._outcomes = Outcomes(space, kept=3)
        for number in range(7):
            await put(space, table, number, of(f"client {number}", 1))
        assert len(space.rows_scan(OUTCOME, successor(OUTCOME), 100)) == 3
        assert [await space.outcome(of(f"client {n}", 1)) for n in (4, 5, 6)] == [True] * 3
        with pytest.raises(CommitUnknown, match="other clients"):
            await space.outcome(of("client 0", 1))
    async with opened(cluster=cluster) as again:
        again._outcomes = Outcomes(again, kept=3)
        with pytest.raises(CommitUnknown):
            await again.outcome(of("client 0", 1))
        await put(again, table, 7, of("client 7", 1))
        assert len(again.rows_scan(OUTCOME, successor(OUTCOME), 100)) == 3
        assert await again.outcome(of("client 6", 1)) and await again.outcome(of("client 7", 1))
        assert len(rows_of(again, table)) == 8


async def test_beside_a_later_one_that_is_under_way_an_earlier_one_is_not_denied() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        await put(space, table, 4, of("client", 4))
        bookie = cluster.bookies[0]
        bookie.holding = True
        committing = asyncio.create_task(put(space, table, 5, of("client", 5)))
        await turns()
        with pytest.raises(CommitUnknown):
            await space.outcome(of("client", 4))
        bookie.holding = False
        bookie.release()
        await committing
        assert await space.outcome(of("client", 5))


async def test_marks_of_commits_that_failed_half_way_do_not_pile_up() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        for number in range(5):
            transaction = space.begin(identity=of("client", number))
            await insert(transaction, table, [number, 0, ""])
            transaction.end("it was idle")
            with pytest.raises(TransactionEnded):
                await transaction.commit()
        await put(space, table, 9, of("client", 9))
        assert len(space.rows_scan(OUTCOME, successor(OUTCOME), 100)) == 1
        assert await space.outcome(of("client", 9))


async def test_what_names_no_transaction_is_refused() -> None:
    async with opened() as space:
        for identity in (b"x" * (IDENTITY_BYTES_MAX + 1),):
            with pytest.raises(InterfaceError):
                space.begin(identity=identity)
            with pytest.raises(InterfaceError):
                await space.outcome(identity)
        with pytest.raises(InterfaceError):
            await space.outcome(b"")

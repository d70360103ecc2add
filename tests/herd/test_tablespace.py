"""A tablespace: terms, commits that are cut short, idle transactions, rows that nobody owns."""

import asyncio

import pytest

from engine.errors import Overloaded
from engine.log import Position
from engine.replica.election import Holding
from engine.state.memory import MemoryState
from herd.catalog import erasing, load
from herd.commands import Command, Erase
from herd.errors import (
    CommitUnknown,
    LeaderUnavailable,
    NameTaken,
    NoSuchTable,
    SerializationFailure,
    TransactionEnded,
)
from herd.keys import ERASE, prefix, successor
from herd.schema import Table, View
from herd.settings import HerdSettings
from tests.engine.ledger.scripted import Cluster, turns
from tests.engine.replica.yard import until
from tests.herd.spaces import PLAIN, insert, key_of, locked, made, opened, rows_in, rows_of, update


async def test_definitions_are_found_again_by_another_replica_of_the_same_log() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "Cows")
        transaction = space.begin()
        view = View("old cows", "SELECT 1")
        transaction.set_catalog(*transaction.catalog.with_view(view, replace=False))
        await insert(transaction, table, [1, 2, "three"])
        await transaction.commit()
    async with opened(cluster=cluster) as again:
        assert again.catalog.names == ["Cows", "old cows"]
        found = again.catalog.table("COWS")
        assert (found.id, found.columns) == (table.id, table.columns)
        assert rows_of(again, found) == [[1, 2, "three"]]
        assert again.catalog.find("OLD COWS") == view


async def test_a_name_is_taken_once_whatever_its_letters() -> None:
    async with opened() as space:
        await made(space, "cows")
        with pytest.raises(NameTaken):
            await made(space, "COWS")
        with pytest.raises(NoSuchTable):
            space.catalog.table("cow")


async def test_a_failed_transaction_defines_nothing() -> None:
    async with opened() as space:
        transaction = space.begin()
        catalog, [number] = transaction.catalog.new_ids(1)
        table = Table(number, "cows", number, PLAIN, (0,), next_column=3)
        with transaction.statement():
            transaction.set_catalog(*catalog.with_table(table))
        assert transaction.defines and transaction.catalog.find("cows") is not None
        assert space.catalog.find("cows") is None
        transaction.rollback()
        assert space.catalog.find("cows") is None


async def test_two_that_define_at_once_do_not_both_succeed() -> None:
    async with opened() as space:
        one, two = space.begin(), space.begin()
        for number, transaction in enumerate((one, two)):
            catalog, [table_id] = transaction.catalog.new_ids(1)
            table = Table(table_id, f"t{number}", table_id, PLAIN, (0,), next_column=3)
            transaction.set_catalog(*catalog.with_table(table))
        await one.commit()
        with pytest.raises(SerializationFailure):
            await two.commit()
        assert space.catalog.names == ["t0"]


async def test_rows_of_a_dropped_table_are_erased_in_steps() -> None:
    async with opened(HerdSettings(erase_rows=3)) as space:
        table = await made(space, "cows")
        transaction = space.begin()
        await insert(transaction, table, *[[number, 0, ""] for number in range(10)])
        await transaction.commit()
        keys = [key for key, _ in left(space.rows_scan, table.store)]
        steps: list[bytes] = []

        def note(_: Position, command: Command) -> None:
            if isinstance(command, Erase):
                steps.append(command.above)

        end = space.watch(note)
        transaction = space.begin()
        transaction.set_catalog(*transaction.catalog.without_table(table))
        await transaction.commit()
        await until(lambda: not left(space.rows_scan, table.store))
        await until(lambda: not space.rows_scan(ERASE, successor(ERASE), 10))
        end()
        assert not left(space.rows_scan, table.store), "the mark goes last"
        assert steps == [b"", keys[2], keys[5], keys[8]], "none passes over what is gone already"


async def test_rows_that_a_leader_left_behind_are_erased_by_the_next_one() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        transaction = space.begin()
        await insert(transaction, table, [1, 2, ""])
        # A mark that this leader is not told of, as if it had ended at once.
        space._machine.watcher = None
        key, value = erasing(table.store)
        transaction.set_plain(key, value)
        await transaction.commit()
        assert left(space.rows_scan, table.store)
    async with opened(HerdSettings(idle_timeout_ms=40), cluster=cluster) as again:
        await until(lambda: not left(again.rows_scan, table.store))


def left(scan: object, store: int) -> list[tuple[bytes, bytes]]:
    """What is there of a store."""
    first = prefix(store)[:5]
    found: list[tuple[bytes, bytes]] = scan(first, successor(first), 100)  # type: ignore[operator]
    return found


async def test_a_commit_that_nobody_waits_for_any_more_keeps_its_locks_until_it_is_applied() -> (
    None
):
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        transaction = space.begin()
        await insert(transaction, table, [1, 0, ""])
        await transaction.commit()
        bookie = cluster.bookies[0]
        one, two = space.begin(), space.begin()
        await update(one, table, (1, [1, 1, ""]))
        bookie.holding = True
        committing = asyncio.create_task(one.commit())
        await turns()
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        one.rollback()
        reading = asyncio.create_task(locked(two, table, key_of(space, table, 1)))
        await turns()
        assert not reading.done(), "the row is another's until its commit is applied"
        bookie.holding = False
        bookie.release()
        assert await reading == [1, 1, ""]
        two.rollback()
        assert len(space.locks) == 0


async def test_a_rollback_during_the_commit_comes_too_late() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        transaction = space.begin()
        await insert(transaction, table, [1, 0, ""])
        committing = asyncio.create_task(transaction.commit())
        await asyncio.sleep(0)
        transaction.rollback()
        assert len(space.locks) > 0
        await committing
        assert rows_of(space, table) == [[1, 0, ""]]
        assert len(space.locks) == 0


async def test_an_idle_transaction_is_rolled_back_and_says_so() -> None:
    async with opened(HerdSettings(idle_timeout_ms=20)) as space:
        table = await made(space, "cows")
        transaction = space.begin()
        await insert(transaction, table, [1, 0, ""])
        await until(lambda: transaction.ended)
        assert len(space.locks) == 0 and space.transactions == []
        with pytest.raises(TransactionEnded, match="nobody used it"):
            await transaction.commit()
        assert rows_of(space, table) == []


async def test_a_transaction_in_a_long_statement_is_not_idle() -> None:
    async with opened(HerdSettings(idle_timeout_ms=20)) as space:
        await made(space, "cows")
        idle, busy = space.begin(), space.begin()
        with busy.statement():
            await until(lambda: idle.ended)
            await turns()
        assert not busy.ended


async def test_a_commit_that_waits_for_room_is_not_idle_and_is_not_logged_once_it_is_ended() -> (
    None
):
    async with opened(HerdSettings(idle_timeout_ms=20)) as space:
        table = await made(space, "cows")
        propose, idle = space.replica.propose, space.begin()
        patient, ended = space.begin(), space.begin(identity=b"ended")
        await insert(patient, table, [1, 0, ""])
        await insert(ended, table, [2, 0, ""])

        def disk_full_error(*_: object, **__: object) -> None:
            raise Overloaded("the log has no room")

        space.replica.propose = disk_full_error  # type: ignore[assignment]
        commits = [asyncio.create_task(one.commit()) for one in (patient, ended)]
        await until(lambda: idle.ended)
        assert not patient.ended and not ended.ended
        ended.rollback()
        space.replica.propose = propose  # type: ignore[method-assign]
        with pytest.raises(TransactionEnded):
            await commits[1]
        await commits[0]
        assert rows_of(space, table) == [[1, 0, ""]]
        assert not await space.outcome(b"ended")


async def test_a_transaction_ends_with_the_term_of_its_leader() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        one, two = space.begin(), space.begin()
        await insert(one, table, [1, 0, ""])
        await two.lock_table(table)
        waiting = asyncio.create_task(two.lock_row(table, key_of(space, table, 1)))
        await turns()
        leading = space.replica._leading
        assert leading is not None
        leading.over.set()
        await until(lambda: space.term == 0)
        with pytest.raises(LeaderUnavailable):
            space.begin()
        with pytest.raises(TransactionEnded):
            one.check()
        await until(lambda: space.term != 0)
        with pytest.raises(TransactionEnded):
            await waiting
        with pytest.raises(TransactionEnded, match="another leader"):
            await one.commit()
        assert len(space.locks) == 0
        assert rows_of(space, table) == []


async def test_a_leader_whose_lease_is_over_answers_no_read_by_key_nor_of_a_range() -> None:
    async with opened(elect=True) as space:
        await until(lambda: space.term != 0)
        table = await made(space, "cows")
        transaction = space.begin()
        await insert(transaction, table, [1, 0, ""])
        await transaction.commit()
        key = key_of(space, table, 1)
        assert space.rows_get(key) is not None
        assert len(space.rows_scan(key, successor(key), 1)) == 1
        leading = space.replica._leading
        assert leading is not None and isinstance(leading.holding, Holding)
        leading.holding._incarnation._lease_end_s = 0.0
        assert space.term, "it knows of nobody else who leads"
        with pytest.raises(LeaderUnavailable):
            space.rows_get(key)
        with pytest.raises(LeaderUnavailable):
            space.rows_scan(key, successor(key), 1)


async def test_a_commit_whose_end_nobody_saw_says_so_and_is_whole_or_not_there() -> None:
    cluster = await Cluster.of(1)
    async with opened(cluster=cluster) as space:
        table = await made(space, "cows")
        transaction = space.begin()
        await insert(transaction, table, [1, 0, ""], [2, 0, ""])
        cluster.bookies[0].holding = True
        committing = asyncio.create_task(transaction.commit())
        await turns()
        closing = asyncio.create_task(space.close())
        await turns()
        cluster.bookies[0].holding = False
        cluster.bookies[0].release()
        outcome = (await asyncio.gather(committing, return_exceptions=True))[0]
        await closing
    assert outcome is None or isinstance(outcome, CommitUnknown)
    async with opened(cluster=cluster) as again:
        found = rows_of(again, again.catalog.table("cows"))
        assert found in ([], [[1, 0, ""], [2, 0, ""]])
        assert outcome is not None or found


async def test_a_follower_sees_definitions_that_came_without_a_command() -> None:
    async with opened() as space:
        state = space.replica._state
        assert isinstance(state, MemoryState)
        table = await made(space, "cows")
        before = space.catalog
        renamed = Table(table.id, "oxen", table.store, PLAIN, (0,), next_column=3)
        _, changes = before.with_table(renamed)
        for key, value in changes:
            assert value is not None
            state.put(key, value)
        state.commit(state.position)
        assert space.catalog is before, "a leader is told of every change"
        leading = space.replica._leading
        space.replica._leading = None
        assert space.catalog.names == ["oxen"]
        space.replica._leading = leading


async def test_close_ends_what_is_open_and_may_be_called_twice() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        one, two = space.begin(), space.begin()
        await insert(one, table, [1, 0, ""])
        await two.lock_table(table)
        waiting = asyncio.create_task(two.lock_row(table, key_of(space, table, 1)))
        await turns()
        await space.close()
        with pytest.raises(TransactionEnded):
            await waiting
        for transaction in (one, two):
            with pytest.raises(TransactionEnded, match="closed"):
                rows_in(transaction, table)


async def test_a_catalog_is_read_as_it_was_written() -> None:
    async with opened() as space:
        for number in range(30):
            await made(space, f"t{number}")
        assert space.stale_read(load)[0].names == space.catalog.names
        assert len(space.catalog.names) == 30

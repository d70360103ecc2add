"""Short writes that are answered without the log: by a leader whose lease holds, or not at all."""

import asyncio
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import pytest

from herd.catalog import rows_of
from herd.errors import CommitUnknown, LeaderUnavailable, SerializationFailure, UniqueViolation
from herd.schema import Table as Definition
from herd.table import create_table, open_table
from herd.tablespace import Tablespace
from herd.transaction import Isolation
from herd.types import BIGINT, TEXT
from tests.herd.spaces import PLAIN, made, opened, snapshot
from tests.herd.sql.sessions import asking


def lapsed(space: Tablespace) -> object:
    """As long as it lasts the lease of a leader does not hold, and the leader does not know why."""
    leading = space.replica._leading
    assert leading is not None
    return patch.object(leading.holding, "holds", lambda: False)


async def test_who_may_have_been_replaced_refuses_no_write_for_what_it_sees() -> None:
    async with opened() as space:
        table = await create_table(space, "cows", {"id": BIGINT, "name": TEXT}, ["id"])
        await table.put({"id": 1, "name": "a"})
        assert not await table.update(2, {"name": "b"})
        with pytest.raises(UniqueViolation):
            await table.insert({"id": 1, "name": "b"})
        with lapsed(space):  # type: ignore[attr-defined]
            with pytest.raises(LeaderUnavailable):
                await table.update(2, {"name": "b"})
            with pytest.raises(LeaderUnavailable):
                await table.delete(2)
            with pytest.raises(LeaderUnavailable):
                await table.insert({"id": 1, "name": "b"})
        assert len(space.locks) == 0
        assert await table.get(1) == {"id": 1, "name": "a"}


async def test_a_row_that_only_the_snapshot_shows_is_not_taken_for_missing() -> None:
    async with opened() as space:
        table = await create_table(space, "cows", {"id": BIGINT, "name": TEXT}, ["id"])
        await table.put({"id": 1, "name": "a"})
        late = snapshot(space)
        await table.delete(1)
        assert await table.get(1, transaction=late) == {"id": 1, "name": "a"}
        with pytest.raises(SerializationFailure):
            await table.update(1, {"name": "b"}, transaction=late)
        late.rollback()


async def test_two_tables_that_are_made_at_once_have_numbers_of_their_own() -> None:
    async with opened() as space:
        both = await asyncio.gather(
            *[create_table(space, name, {"id": BIGINT}, ["id"]) for name in ("cows", "bulls")]
        )
        assert sorted(space.catalog.names) == ["bulls", "cows"]
        assert len({table.bound.table.store for table in both}) == 2
        for place, table in enumerate(both):
            await table.put({"id": place})
        assert [await both[0].get(1), await both[1].get(0)] == [None, None]


async def test_two_that_commit_definitions_at_once_do_not_both_succeed() -> None:
    async with opened() as space:
        both = [space.begin(), space.begin()]
        for number, transaction in enumerate(both):
            catalog, [table_id] = transaction.catalog.new_ids(1)
            table = Definition(table_id, f"t{number}", table_id, PLAIN, (0,), next_column=3)
            transaction.set_catalog(*catalog.with_table(table))
        commits = [transaction.commit() for transaction in both]
        ended = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(one) for one in ended] == [type(None), SerializationFailure]
        assert space.catalog.names == ["t0"] and len(space.locks) == 0


async def test_a_write_at_whose_command_the_replica_failed_may_have_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as space:
        await made(space, "cows")
        table = await open_table(space, "cows")
        await table.put({"a": 1, "b": 1, "c": ""})

        def fail(*given: object) -> bytes:
            raise OSError("no space left on the device")

        monkeypatch.setattr(space._machine, "apply", fail)
        with pytest.raises(CommitUnknown):
            await table.update(1, lambda row: {"b": row["b"] + 1})


async def test_a_short_write_keeps_its_lock_until_it_is_applied() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE cow (id BIGINT PRIMARY KEY, fed BIGINT)")
        await on.run("INSERT INTO cow VALUES (1, 0)")
        sessions = [on.another() for _ in range(20)]
        feed = "UPDATE cow SET fed = fed + 1 WHERE id = 1"
        for _ in range(3):
            # All begin in one turn of the loop, before the first of them is in the log.
            await asyncio.gather(*[one.execute(feed) for one in sessions])
        assert await on.rows("SELECT fed FROM cow WHERE id = 1") == [(60,)]
        assert len(on.space.locks) == 0


@pytest.mark.parametrize("isolation", Isolation)
async def test_a_transaction_begins_to_read_only_while_the_lease_holds(
    isolation: Isolation,
) -> None:
    async with opened() as space:
        table = await create_table(space, "cows", {"id": BIGINT, "name": TEXT}, ["id"])
        await table.put({"id": 1, "name": "a"})
        first, end = rows_of(table.bound.table)
        with lapsed(space):  # type: ignore[attr-defined]
            for number in range(8):
                transaction = space.begin(isolation)
                looks: list[Callable[[], object]] = [
                    partial(transaction.get, first),
                    partial(transaction.get_plain, first),
                    partial(transaction.get_newest, first),
                    partial(transaction.get_newest_plain, first),
                    partial(transaction.scan, first, end),
                    partial(transaction.scan_plain, first, end),
                    partial(transaction.scan_newest, first, end),
                    partial(transaction.scan_newest_plain, first, end),
                ]
                with pytest.raises(LeaderUnavailable):
                    looks[number]()
                transaction.rollback()
        transaction = space.begin(isolation)
        assert len(transaction.scan(first, end)) == 1
        transaction.rollback()

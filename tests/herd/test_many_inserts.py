"""Rows that are added together take the quick way each, and the long one where it must be."""

import asyncio

import pytest

from herd.errors import NotNullViolation, SerializationFailure, UniqueViolation
from herd.settings import HerdSettings
from tests.herd.spaces import delete, insert, made, opened, rows_of, snapshot


async def test_a_key_that_is_there_or_comes_twice_refuses_all_rows() -> None:
    async with opened() as space:
        table = await made(space, "t")
        one = space.begin()
        await insert(one, table, [7, 0, "there"])
        with pytest.raises(UniqueViolation, match="primary key 7"):
            await insert(one, table, [8, 0, "a"], [7, 0, "b"])
        with pytest.raises(UniqueViolation, match="primary key 9"):
            await insert(one, table, [9, 0, "a"], [9, 0, "b"])
        with pytest.raises(NotNullViolation):
            await insert(one, table, [10, 0, "a"], [None, 0, "b"])
        await one.commit()
        two = space.begin()
        with pytest.raises(UniqueViolation, match="primary key 7"):
            await insert(two, table, [11, 0, "a"], [7, 0, "b"])
        two.rollback()
        assert rows_of(space, table) == [[7, 0, "there"]]
        assert len(space.locks) == 0


async def test_what_a_transaction_removed_itself_it_may_add_again() -> None:
    async with opened() as space:
        table = await made(space, "t")
        one = space.begin()
        await insert(one, table, [1, 0, "old"], [2, 0, "old"])
        await one.commit()
        two = space.begin()
        await delete(two, table, 1)
        await insert(two, table, [1, 1, "new"], [3, 1, "new"])
        await two.commit()
        assert rows_of(space, table) == [[1, 1, "new"], [2, 0, "old"], [3, 1, "new"]]


async def test_a_key_that_another_transaction_holds_is_waited_for() -> None:
    async with opened() as space:
        table = await made(space, "t")
        one, two = space.begin(), space.begin()
        await insert(one, table, [1, 0, "one"])
        waiting = asyncio.ensure_future(insert(two, table, [0, 0, "two"], [1, 0, "two"]))
        await asyncio.sleep(0)
        assert not waiting.done()
        one.rollback()
        await waiting
        await two.commit()
        assert rows_of(space, table) == [[0, 0, "two"], [1, 0, "two"]]


async def test_a_snapshot_adds_no_key_that_has_come_and_gone_since() -> None:
    async with opened() as space:
        table = await made(space, "t")
        first = space.begin()
        await insert(first, table, [1, 0, "old"])
        await first.commit()
        late = snapshot(space)
        between = space.begin()
        await delete(between, table, 1)
        await between.commit()
        with pytest.raises(SerializationFailure):
            await insert(late, table, [2, 0, "new"], [1, 0, "new"])
        late.rollback()


async def test_more_rows_than_may_be_locked_lock_their_table() -> None:
    async with opened(HerdSettings(row_locks_max=10)) as space:
        table = await made(space, "t")
        one = space.begin()
        await insert(one, table, *[[number, 0, "x"] for number in range(40)])
        # The table's own lock, and those of the rows before it.
        assert len(one.locks) <= 13
        with pytest.raises(UniqueViolation):
            await insert(one, table, [50, 0, "a"], [5, 0, "b"])
        await one.commit()
        assert len(rows_of(space, table)) == 40 and len(space.locks) == 0


async def test_others_run_while_many_rows_are_added() -> None:
    async with opened() as space:
        table = await made(space, "t")
        one, turns = space.begin(), 0
        adding = asyncio.ensure_future(
            insert(one, table, *[[number, 0, "x"] for number in range(3_000)])
        )
        while not adding.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5
        await one.commit()
        assert len(rows_of(space, table)) == 3_000

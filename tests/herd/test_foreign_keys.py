"""Foreign keys: refused, removed, detached, taken along; to oneself, in circles, at once."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herd.changing import Changer
from herd.errors import (
    CheckViolation,
    Deadlock,
    Error,
    ForeignKeyViolation,
    NotNullViolation,
    SerializationFailure,
)
from herd.rows import Row
from herd.schema import ForeignKey, Index, OnDelete, Table
from herd.settings import HerdSettings
from herd.tablespace import Tablespace
from herd.types import BIGINT
from tests.engine.ledger.scripted import turns
from tests.herd.spaces import (
    columns,
    delete,
    index_is_right,
    insert,
    key_of,
    locked,
    made,
    opened,
    rows_of,
    snapshot,
    update,
)

RESTRICT, CASCADE, SET_NULL = OnDelete.RESTRICT, OnDelete.CASCADE, OnDelete.SET_NULL
PARENT = columns(BIGINT, BIGINT)
CHILD = columns(BIGINT, BIGINT, BIGINT)
BY_PARENT = (Index(1, "by b", (1,)),)


async def family(
    space: Tablespace, on_delete: OnDelete, on_update: OnDelete = RESTRICT
) -> tuple[Table, Table]:
    """Parents 1, 2 and 3; children 11 of 1, 21 and 22 of 2, 31 of nobody."""
    parent = await made(space, "parent", PARENT)
    key = ForeignKey("fk", (1,), parent.id, (0,), on_delete, on_update)
    child = await made(space, "child", CHILD, indexes=BY_PARENT, foreign_keys=[key])
    transaction = space.begin()
    await insert(transaction, parent, [1, 0], [2, 0], [3, 0])
    await insert(transaction, child, [11, 1, 0], [21, 2, 0], [22, 2, 0], [31, None, 0])
    await transaction.commit()
    return parent, child


async def test_a_row_names_only_rows_that_are_there() -> None:
    async with opened() as space:
        parent, child = await family(space, RESTRICT)
        transaction = space.begin()
        with pytest.raises(ForeignKeyViolation, match="fk refers to a row that is not there"):
            await insert(transaction, child, [12, 9, 0])
        with pytest.raises(ForeignKeyViolation):
            await update(transaction, child, (11, [11, 9, 0]))
        await insert(transaction, parent, [9, 0])
        await insert(transaction, child, [12, 9, 0])
        await update(transaction, child, (11, [11, None, 0]))
        await transaction.commit()
        index_is_right(space, child)


async def test_a_row_that_is_named_stays() -> None:
    async with opened() as space:
        parent, child = await family(space, RESTRICT)
        transaction = space.begin()
        with pytest.raises(ForeignKeyViolation, match="still refers"):
            await delete(transaction, parent, 1)
        with pytest.raises(ForeignKeyViolation):
            await update(transaction, parent, (1, [8, 0]))
        await delete(transaction, child, 11)
        await delete(transaction, parent, 1)
        await update(transaction, parent, (3, [8, 0]))
        await transaction.commit()
        assert rows_of(space, parent) == [[2, 0], [8, 0]]


async def test_children_go_with_their_parent() -> None:
    async with opened() as space:
        parent, child = await family(space, CASCADE)
        transaction = space.begin()
        await delete(transaction, parent, 1, 2)
        await transaction.commit()
        assert rows_of(space, child) == [[31, None, 0]]
        index_is_right(space, child)


async def test_children_are_detached_from_their_parent() -> None:
    async with opened() as space:
        parent, child = await family(space, SET_NULL, SET_NULL)
        transaction = space.begin()
        await delete(transaction, parent, 2)
        await update(transaction, parent, (1, [5, 0]))
        await transaction.commit()
        assert [row[1] for row in rows_of(space, child)] == [None] * 4
        index_is_right(space, child)


async def test_a_child_that_may_not_be_detached_keeps_its_parent() -> None:
    async with opened() as space:
        parent = await made(space, "parent", PARENT)
        key = ForeignKey("fk", (1,), parent.id, (0,), SET_NULL)
        shape = columns(BIGINT, BIGINT, nullable=False)
        child = await made(space, "child", shape, indexes=BY_PARENT, foreign_keys=[key])
        transaction = space.begin()
        await insert(transaction, parent, [1, 0])
        await insert(transaction, child, [11, 1])
        with pytest.raises(NotNullViolation):
            await delete(transaction, parent, 1)
        await transaction.commit()
        assert rows_of(space, parent) == [[1, 0]]


async def test_what_is_taken_along_is_verified() -> None:
    def verify(row: Row) -> None:
        if row[1] is None:
            raise CheckViolation("has a parent")

    async with opened() as space:
        parent, _ = await family(space, SET_NULL)
        transaction = space.begin()
        key = key_of(space, parent, 1)
        with pytest.raises(CheckViolation), transaction.statement():
            row = await locked(transaction, parent, key)
            assert row is not None
            await Changer(transaction, parent, None, lambda table: verify).delete(key, row)


async def test_children_follow_their_parents_key_also_when_it_is_part_of_theirs() -> None:
    async with opened() as space:
        parent, child = await family(space, RESTRICT, CASCADE)
        key = ForeignKey("own", (0,), child.id, (0,), CASCADE, CASCADE)
        grandchild = await made(space, "part", columns(BIGINT, BIGINT), foreign_keys=[key])
        own = ForeignKey("own", (0, 1), parent.id, (0, 1), CASCADE, CASCADE)
        pair = await made(space, "pair", PARENT, indexes=[Index(1, "pair", (0, 1), unique=True)])
        named = ForeignKey("named", (1, 0), pair.id, (1, 0), CASCADE, CASCADE)
        named_by = await made(space, "named by", PARENT, foreign_keys=[named], primary=(1, 0))
        assert own.parent == parent.id
        transaction = space.begin()
        await insert(transaction, grandchild, [21, 7])
        await insert(transaction, pair, [1, 2])
        await insert(transaction, named_by, [1, 2])
        await update(transaction, parent, (2, [5, 0]))
        await update(transaction, child, (21, [20, 5, 0]))
        await update(transaction, pair, (1, [3, 4]))
        await transaction.commit()
        assert [row[:2] for row in rows_of(space, child)] == [[11, 1], [20, 5], [22, 5], [31, None]]
        assert rows_of(space, grandchild) == [[20, 7]]
        assert rows_of(space, named_by) == [[3, 4]]
        for table in (child, grandchild, named_by):
            index_is_right(space, table)


async def test_parents_swap_their_keys_and_children_follow() -> None:
    async with opened() as space:
        parent, child = await family(space, RESTRICT, CASCADE)
        transaction = space.begin()
        await update(transaction, parent, (1, [2, 0]), (2, [1, 0]))
        await transaction.commit()
        assert [row[1] for row in rows_of(space, child)] == [2, 1, 1, None]
        index_is_right(space, child)


async def test_a_unique_key_is_named_as_a_primary_one_is() -> None:
    async with opened() as space:
        indexes = (Index(1, "plain", (1,)), Index(2, "unique", (1,), unique=True))
        parent = await made(space, "parent", PARENT, indexes=indexes)
        key = ForeignKey("fk", (1,), parent.id, (1,), CASCADE, CASCADE)
        child = await made(space, "child", CHILD, indexes=BY_PARENT, foreign_keys=[key])
        transaction = space.begin()
        await insert(transaction, parent, [1, 10], [2, 20], [3, None])
        await insert(transaction, child, [1, 10, 0], [2, 20, 0], [3, None, 0])
        with pytest.raises(ForeignKeyViolation):
            await insert(transaction, child, [4, 1, 0])
        await update(transaction, parent, (1, [1, 11]))
        await delete(transaction, parent, 2, 3)
        await transaction.commit()
        assert rows_of(space, child) == [[1, 11, 0], [3, None, 0]]
        index_is_right(space, child)


async def tree(space: Tablespace, on_delete: OnDelete, on_update: OnDelete = RESTRICT) -> Table:
    """A table whose rows name others of it."""
    key = ForeignKey("up", (1,), 0, (0,), on_delete, on_update)
    return await made(space, "tree", PARENT, indexes=BY_PARENT, foreign_keys=[key])


async def test_a_row_may_name_itself_and_rows_that_come_with_it() -> None:
    async with opened() as space:
        table = await tree(space, RESTRICT, CASCADE)
        transaction = space.begin()
        await insert(transaction, table, [1, 1], [2, 3], [3, 2])
        with pytest.raises(ForeignKeyViolation):
            await delete(transaction, table, 2)
        await update(transaction, table, (1, [9, 1]))
        assert space.begin().get(key_of(space, table, 9)) is None
        await delete(transaction, table, 2, 3)
        await transaction.commit()
        assert rows_of(space, table) == [[9, 9]]
        transaction = space.begin()
        await delete(transaction, table, 9)
        await transaction.commit()
        assert rows_of(space, table) == []
        index_is_right(space, table)


async def test_a_circle_of_rows_goes_as_a_whole() -> None:
    async with opened() as space:
        table = await tree(space, CASCADE)
        transaction = space.begin()
        await insert(transaction, table, *[[number, (number + 1) % 5] for number in range(5)])
        await insert(transaction, table, [7, 3], [8, None])
        await transaction.commit()
        transaction = space.begin()
        await delete(transaction, table, 2)
        await transaction.commit()
        assert rows_of(space, table) == [[8, None]]
        index_is_right(space, table)


async def test_a_long_chain_of_rows_goes_as_a_whole() -> None:
    async with opened() as space:
        table = await tree(space, CASCADE)
        transaction = space.begin()
        chain = [[number, number - 1 if number else None] for number in range(2_000)]
        await insert(transaction, table, *chain)
        await transaction.commit()
        transaction = space.begin()
        await delete(transaction, table, 0)
        await transaction.commit()
        assert rows_of(space, table) == []
        index_is_right(space, table)


async def test_a_parent_and_its_children_go_by_two_ways_at_once() -> None:
    async with opened() as space:
        top = await made(space, "top", PARENT)
        left = await made(
            space,
            "left",
            CHILD,
            indexes=BY_PARENT,
            foreign_keys=[ForeignKey("l", (1,), top.id, (0,), CASCADE)],
        )
        keys = [
            ForeignKey("l", (1,), left.id, (0,), RESTRICT),
            ForeignKey("t", (2,), top.id, (0,), CASCADE),
        ]
        indexes = (*BY_PARENT, Index(2, "by c", (2,)))
        bottom = await made(space, "bottom", CHILD, indexes=indexes, foreign_keys=keys)
        transaction = space.begin()
        await insert(transaction, top, [1, 0])
        await insert(transaction, left, [2, 1, 0])
        await insert(transaction, bottom, [3, 2, 1])
        await delete(transaction, top, 1)
        await transaction.commit()
        assert rows_of(space, bottom) == rows_of(space, left) == []


@pytest.mark.parametrize("commits", [True, False])
async def test_a_child_that_comes_while_its_parent_goes(commits: bool) -> None:
    async with opened() as space:
        parent, child = await family(space, RESTRICT)
        going, coming = space.begin(), space.begin()
        await delete(going, parent, 3)
        waiting = asyncio.create_task(insert(coming, child, [33, 3, 0]))
        await turns()
        assert not waiting.done()
        if commits:
            await going.commit()
            with pytest.raises(ForeignKeyViolation):
                await waiting
        else:
            going.rollback()
            await waiting
        coming.rollback()


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("by", [(0,), (1,)])
async def test_a_parent_that_goes_while_a_child_comes(commits: bool, by: tuple[int, ...]) -> None:
    async with opened() as space:
        unique = (Index(1, "unique", (1,), unique=True),)
        parent = await made(space, "parent", PARENT, indexes=unique)
        key = ForeignKey("fk", (1,), parent.id, by)
        child = await made(space, "child", CHILD, indexes=BY_PARENT, foreign_keys=[key])
        transaction = space.begin()
        await insert(transaction, parent, [3, 3])
        await transaction.commit()
        coming, going = space.begin(), space.begin()
        await insert(coming, child, [33, 3, 0])
        waiting = asyncio.create_task(delete(going, parent, 3))
        await turns()
        assert not waiting.done()
        if commits:
            await coming.commit()
            with pytest.raises(ForeignKeyViolation):
                await waiting
        else:
            coming.rollback()
            await waiting
            await going.commit()
            assert rows_of(space, parent) == []


async def test_a_child_that_moves_while_its_parent_goes_is_not_left_alone() -> None:
    async with opened() as space:
        parent, child = await family(space, CASCADE)
        moving, going = space.begin(), space.begin()
        await update(moving, child, (11, [99, 1, 0]))
        waiting = asyncio.create_task(delete(going, parent, 1))
        await turns()
        await moving.commit()
        await waiting
        await going.commit()
        assert [row[0] for row in rows_of(space, child)] == [21, 22, 31]


@pytest.mark.parametrize("rule", [RESTRICT, CASCADE, SET_NULL])
async def test_children_that_a_snapshot_does_not_show_are_found(rule: OnDelete) -> None:
    async with opened() as space:
        parent, child = await family(space, rule)
        late, early = snapshot(space), space.begin()
        await insert(early, child, [33, 3, 0])
        await early.commit()
        with pytest.raises(SerializationFailure):
            await delete(late, parent, 3)


async def test_a_parent_that_only_a_snapshot_shows_is_not_there() -> None:
    async with opened() as space:
        parent, child = await family(space, RESTRICT)
        late, early = snapshot(space), space.begin()
        await delete(early, parent, 3)
        await early.commit()
        with pytest.raises(ForeignKeyViolation):
            await insert(late, child, [33, 3, 0])


async def test_who_removes_so_many_parents_that_it_locks_the_table_keeps_children_out() -> None:
    async with opened(HerdSettings(row_locks_max=2, lock_timeout_ms=60_000)) as space:
        parent = await made(space, "parent", PARENT)
        key = ForeignKey("fk", (1,), parent.id, (0,))
        child = await made(space, "child", CHILD, indexes=BY_PARENT, foreign_keys=[key])
        transaction = space.begin()
        await insert(transaction, parent, *[[number, 0] for number in range(6)])
        await transaction.commit()
        going, coming = space.begin(), space.begin()
        await delete(going, parent, 0, 1, 2, 3, 4, 5)
        waiting = asyncio.create_task(insert(coming, child, [1, 5, 0]))
        await turns()
        assert not waiting.done()
        await going.commit()
        with pytest.raises(ForeignKeyViolation):
            await waiting


WORK = st.lists(
    st.tuples(st.sampled_from(["parent", "child", "less"]), st.integers(1, 4), st.integers(0, 3)),
    max_size=16,
)


@given(st.lists(WORK, min_size=2, max_size=4), st.sampled_from([RESTRICT, CASCADE, SET_NULL]))
def test_no_child_ever_stands_without_its_parent(
    work: list[list[tuple[str, int, int]]], rule: OnDelete
) -> None:
    async def live() -> None:
        async with opened() as space:
            parent = await made(space, "parent", PARENT)
            key = ForeignKey("fk", (1,), parent.id, (0,), rule)
            child = await made(space, "child", CHILD, indexes=BY_PARENT, foreign_keys=[key])
            await asyncio.gather(*[_live(space, parent, child, one) for one in work])
            assert len(space.locks) == 0
            there = {row[0] for row in rows_of(space, parent)}
            assert {row[1] for row in rows_of(space, child)} <= there | {None}
            index_is_right(space, child)

    asyncio.run(live())


async def _live(
    space: Tablespace, parent: Table, child: Table, work: list[tuple[str, int, int]]
) -> None:
    for what, number, pause in work:
        transaction = space.begin()
        try:
            if what == "less":
                key = key_of(space, parent, number)
                if await locked(transaction, parent, key) is not None:
                    await delete(transaction, parent, number)
            else:
                row: list[Any] = [number, 0] if what == "parent" else [number, number, 0]
                await insert(transaction, parent if what == "parent" else child, row)
            await turns(pause)
            await transaction.commit()
        except Deadlock:
            assert transaction.ended
        except Error:
            transaction.rollback()


async def test_many_rows_that_name_one_parent_look_for_it_once_and_keep_it() -> None:
    async with opened() as space:
        parent, child = await family(space, RESTRICT)
        transaction = space.begin()
        with pytest.raises(ForeignKeyViolation):
            await insert(transaction, child, [12, 3, 0], [13, 3, 0], [14, 9, 0], [15, 3, 0])
        looks = 0
        get_newest = transaction.get_newest

        def counted(key: bytes) -> bytes | None:
            nonlocal looks
            looks += key == key_of(space, parent, 3)
            return get_newest(key)

        transaction.get_newest = counted  # type: ignore[method-assign]
        await insert(transaction, child, *[[20 + number, 3, 0] for number in range(50, 60)])
        assert looks == 1
        other = space.begin()
        waiting = asyncio.create_task(delete(other, parent, 3))
        await turns()
        assert not waiting.done(), "the parent is locked until the children are there"
        await transaction.commit()
        with pytest.raises(ForeignKeyViolation, match="still refers"):
            await waiting
        other.rollback()
        index_is_right(space, child)

"""Changing rows: keys, unique keys and NULL, moves and swaps, and who comes second."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herd.changing import Changer
from herd.errors import (
    CheckViolation,
    Error,
    NotNullViolation,
    SerializationFailure,
    UniqueViolation,
    ValueTooLong,
)
from herd.rows import Row
from herd.schema import Index
from herd.tablespace import Tablespace
from herd.types import BIGINT, TEXT
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

UNIQUE = (Index(1, "by b", (1,), unique=True), Index(2, "by c", (2,)))


async def test_a_primary_key_is_taken_once() -> None:
    async with opened() as space:
        table = await made(space, "t", indexes=UNIQUE)
        transaction = space.begin()
        await insert(transaction, table, [1, 1, "x"])
        with pytest.raises(UniqueViolation, match="primary key 1"):
            await insert(transaction, table, [2, 2, "y"], [1, 3, "z"])
        await transaction.commit()
        assert rows_of(space, table) == [[1, 1, "x"]]
        index_is_right(space, table)


async def test_a_unique_key_is_taken_once_and_null_is_nobodys() -> None:
    async with opened() as space:
        table = await made(space, "t", indexes=UNIQUE)
        transaction = space.begin()
        await insert(transaction, table, [1, 1, "x"], [2, None, "x"], [3, None, None])
        with pytest.raises(UniqueViolation, match="by b 1"):
            await insert(transaction, table, [4, 1, ""])
        with pytest.raises(UniqueViolation, match="by b 1"):
            await update(transaction, table, (2, [2, 1, ""]))
        await update(transaction, table, (1, [1, None, "x"]), (2, [2, 1, "x"]))
        await delete(transaction, table, 2)
        await insert(transaction, table, [5, 1, "x"])
        await transaction.commit()
        assert rows_of(space, table) == [[1, None, "x"], [3, None, None], [5, 1, "x"]]
        index_is_right(space, table)


async def test_a_column_that_takes_no_null_gets_none() -> None:
    async with opened() as space:
        table = await made(space, "t", columns(BIGINT, BIGINT, nullable=False))
        transaction = space.begin()
        await insert(transaction, table, [1, 1])
        with pytest.raises(NotNullViolation, match=r"t\.b"):
            await insert(transaction, table, [2, None])
        with pytest.raises(NotNullViolation, match=r"t\.b"):
            await update(transaction, table, (1, [1, None]))


async def test_every_row_is_verified() -> None:
    def verify(row: Row) -> None:
        if row[1] == 13:
            raise CheckViolation("not thirteen")

    async with opened() as space:
        table = await made(space, "t", columns(BIGINT, BIGINT))
        transaction = space.begin()
        with transaction.statement():
            await transaction.lock_table(table)
            await Changer(transaction, table, verify).insert([1, 1])
        with pytest.raises(CheckViolation), transaction.statement():
            await Changer(transaction, table, verify).update(
                key_of(space, table, 1), [1, 1], [1, 13]
            )


async def test_a_row_moves_to_another_key_with_all_its_entries() -> None:
    async with opened() as space:
        table = await made(space, "t", indexes=UNIQUE)
        transaction = space.begin()
        await insert(transaction, table, [1, 10, "x"], [2, 20, "x"])
        await transaction.commit()
        transaction = space.begin()
        await update(transaction, table, (1, [7, 10, "y"]))
        with pytest.raises(UniqueViolation, match="primary key 2"):
            await update(transaction, table, (7, [2, 10, "y"]))
        await transaction.commit()
        assert rows_of(space, table) == [[2, 20, "x"], [7, 10, "y"]]
        index_is_right(space, table)


async def test_rows_that_are_put_come_in_place_of_those_with_their_keys() -> None:
    async with opened() as space:
        for indexes in ((), UNIQUE):
            table = await made(space, f"t{len(indexes)}", indexes=indexes)
            first = space.begin()
            await insert(first, table, [1, 1, "x"], [2, 2, "y"])
            await first.commit()
            transaction = space.begin()
            with transaction.statement():
                await transaction.lock_table(table)
                rows: list[Row] = [[2, 5, "new"], [3, 2, "z"], [4, None, None], [4, 7, "twice"]]
                if indexes:
                    with pytest.raises(UniqueViolation, match="by b 2"):
                        await Changer(transaction, table).put_all(rows)
                else:
                    await Changer(transaction, table).put_all(rows)
            if not indexes:
                await transaction.commit()
                assert rows_of(space, table) == [
                    [1, 1, "x"],
                    [2, 5, "new"],
                    [3, 2, "z"],
                    [4, 7, "twice"],
                ]
            transaction.rollback()
            other = space.begin()
            with other.statement():
                await other.lock_table(table)
                await Changer(other, table).put_all([[2, 9, "other"]])
            await other.commit()
            assert [2, 9, "other"] in rows_of(space, table)
            index_is_right(space, table)


async def test_keys_are_swapped_and_shifted_among_rows_that_change_together() -> None:
    async with opened() as space:
        table = await made(space, "t", indexes=UNIQUE)
        transaction = space.begin()
        await insert(transaction, table, [1, 10, "one"], [2, 20, "two"], [3, 30, "three"])
        await transaction.commit()
        transaction = space.begin()
        await update(transaction, table, (1, [2, 20, "one"]), (2, [1, 10, "two"]))
        await update(
            transaction, table, (1, [2, 20, "two"]), (2, [3, 30, "one"]), (3, [4, 10, "three"])
        )
        await transaction.commit()
        assert rows_of(space, table) == [[2, 20, "two"], [3, 30, "one"], [4, 10, "three"]]
        index_is_right(space, table)


async def test_two_that_put_one_key_wait_for_each_other_and_one_fails() -> None:
    async with opened() as space:
        table = await made(space, "t", indexes=UNIQUE)

        async def put(row: list[Any]) -> Error | None:
            transaction = space.begin()
            try:
                await insert(transaction, table, row)
                await asyncio.sleep(0)
                await transaction.commit()
            except Error as error:
                transaction.rollback()
                return error
            return None

        for rows in ([[1, 1, "x"], [1, 2, "y"]], [[3, 9, "x"], [4, 9, "y"]]):
            outcomes = await asyncio.gather(*[put(row) for row in rows])
            assert [type(outcome) for outcome in outcomes] == [type(None), UniqueViolation]
        assert len(space.locks) == 0
        index_is_right(space, table)


async def test_a_key_is_free_again_when_who_took_it_rolls_back() -> None:
    async with opened() as space:
        table = await made(space, "t", indexes=UNIQUE)
        one, two = space.begin(), space.begin()
        await insert(one, table, [1, 1, "x"])
        waiting = asyncio.create_task(insert(two, table, [2, 1, "y"]))
        await turns()
        assert not waiting.done()
        one.rollback()
        await waiting
        await two.commit()
        assert rows_of(space, table) == [[2, 1, "y"]]


async def test_a_unique_key_that_a_snapshot_does_not_show_is_taken_all_the_same() -> None:
    async with opened() as space:
        table = await made(space, "t", indexes=UNIQUE)
        late, early = snapshot(space), space.begin()
        await insert(early, table, [1, 1, "x"])
        await early.commit()
        with pytest.raises(UniqueViolation):
            await insert(late, table, [2, 1, "y"])
        late.rollback()
        index_is_right(space, table)


async def test_a_key_that_a_snapshot_shows_and_that_is_gone_is_not_put_anew() -> None:
    async with opened() as space:
        table = await made(space, "t")
        transaction = space.begin()
        await insert(transaction, table, [1, 1, "x"])
        await transaction.commit()
        late, early = snapshot(space), space.begin()
        await delete(early, table, 1)
        await early.commit()
        with pytest.raises(SerializationFailure):
            await insert(late, table, [1, 2, "y"])


async def test_an_entry_that_no_replica_could_store_is_refused() -> None:
    async with opened() as space:
        shape = columns(TEXT, TEXT)
        table = await made(space, "t", shape, indexes=(Index(1, "by b", (1,)),))
        transaction = space.begin()
        with pytest.raises(ValueTooLong, match="by b"):
            await insert(transaction, table, ["k" * 3_000, "v" * 3_000])
        await insert(transaction, table, ["k" * 2_000, "v" * 2_000])
        await transaction.commit()
        index_is_right(space, table)


NUMBERS = st.integers(0, 4)
STATEMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), NUMBERS, st.none() | NUMBERS, NUMBERS),
        st.tuples(st.just("move"), NUMBERS, st.none() | NUMBERS, NUMBERS),
        st.tuples(st.just("update"), NUMBERS, st.none() | NUMBERS, NUMBERS),
        st.tuples(st.just("delete"), NUMBERS, st.none(), NUMBERS),
        st.tuples(st.just("commit"), NUMBERS, st.none(), NUMBERS),
        st.tuples(st.just("rollback"), NUMBERS, st.none(), NUMBERS),
    ),
    max_size=30,
)


@given(STATEMENTS)
def test_statements_of_one_row_do_what_a_table_with_a_unique_column_does(
    statements: list[tuple[str, int, int | None, int]],
) -> None:
    async def compare() -> None:
        async with opened() as space:
            await _Twin(space).check(statements)

    asyncio.run(compare())


class _Twin:
    """A table, and a dict that should have the same rows."""

    def __init__(self, space: Tablespace) -> None:
        self.space = space
        self.kept: dict[int, list[Any]] = {}

    async def check(self, statements: list[tuple[str, int, int | None, int]]) -> None:
        """One after the other; what the dict refuses the table has to refuse."""
        space = self.space
        table = await made(space, "t", indexes=UNIQUE)
        transaction, model = space.begin(), dict(self.kept)
        for what, number, unique, other in statements:
            if what in ("commit", "rollback"):
                if what == "commit":
                    await transaction.commit()
                    self.kept = model
                transaction.rollback()
                transaction, model = space.begin(), dict(self.kept)
                continue
            wanted = self._changed(model, what, number, unique, other)
            try:
                with transaction.statement():
                    row = await locked(transaction, table, key_of(space, table, number))
                    changer = Changer(transaction, table)
                    if what == "insert":
                        await changer.insert([number, unique, f"{other}"])
                    elif row is not None:
                        after: Row | None = [number, unique, f"{other}"]
                        if what == "delete":
                            after = None
                        if after is not None and what == "move":
                            after[0] = other
                        await changer.change_all([(key_of(space, table, number), row, after)])
            except UniqueViolation:
                assert wanted is None, (what, number, unique, other, model)
            else:
                assert wanted is not None, (what, number, unique, other, model)
                model = wanted
        await transaction.commit()
        assert rows_of(space, table) == [model[number] for number in sorted(model)]
        index_is_right(space, table)

    def _changed(
        self, model: dict[int, list[Any]], what: str, number: int, unique: int | None, other: int
    ) -> dict[int, list[Any]] | None:
        found = dict(model)
        if what == "insert":
            if number in found:
                return None
            row: list[Any] = [number, unique, f"{other}"]
        else:
            if number not in found:
                return found
            del found[number]
            if what == "delete":
                return found
            row = [other if what == "move" else number, unique, f"{other}"]
            if row[0] in found:
                return None
        if unique is not None and any(one[1] == unique for one in found.values()):
            return None
        found[row[0]] = row
        return found

"""One transaction: what it sees, what it keeps, what it locks and how it ends."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herd.changing import Changer
from herd.commands import Change
from herd.errors import (
    Deadlock,
    Error,
    LockTimeout,
    SerializationFailure,
    TooLarge,
    TransactionEnded,
    ValueTooLong,
)
from herd.rows import encode_row
from herd.schema import Table
from herd.settings import HerdSettings
from herd.tablespace import Tablespace
from herd.transaction import FRESH, Isolation, Transaction
from tests.engine.ledger.scripted import turns
from tests.herd.spaces import (
    PATIENT,
    delete,
    insert,
    key_of,
    locked,
    made,
    opened,
    rows_in,
    rows_of,
    snapshot,
    update,
)


async def filled(space: Tablespace, count: int = 3) -> Table:
    """A table with rows [1, 0, ""], [2, 0, ""] and so on."""
    table = await made(space, "cows")
    transaction = space.begin()
    await insert(transaction, table, *[[number + 1, 0, ""] for number in range(count)])
    await transaction.commit()
    return table


async def test_read_committed_sees_what_is_committed_at_each_look() -> None:
    async with opened() as space:
        table = await filled(space, 1)
        reader, writer = space.begin(), space.begin()
        await update(writer, table, (1, [1, 5, ""]))
        assert rows_in(reader, table) == [[1, 0, ""]]
        assert rows_in(writer, table) == [[1, 5, ""]]
        await writer.commit()
        assert rows_in(reader, table) == [[1, 5, ""]]


async def test_a_snapshot_sees_one_moment_and_its_own_changes() -> None:
    async with opened() as space:
        table = await filled(space, 2)
        reader, writer = snapshot(space), space.begin()
        await update(writer, table, (1, [1, 5, ""]))
        await insert(writer, table, [9, 9, ""])
        await writer.commit()
        assert rows_in(reader, table) == [[1, 0, ""], [2, 0, ""]]
        assert reader.get(key_of(space, table, 9)) is None
        await update(reader, table, (2, [2, 7, ""]))
        await insert(reader, table, [3, 3, ""])
        assert rows_in(reader, table) == [[1, 0, ""], [2, 7, ""], [3, 3, ""]]
        await reader.commit()
        assert rows_of(space, table) == [[1, 5, ""], [2, 7, ""], [3, 3, ""], [9, 9, ""]]


@pytest.mark.parametrize("what", ["change", "remove", "put there"])
async def test_a_snapshot_may_not_overwrite_what_it_has_not_seen(what: str) -> None:
    async with opened() as space:
        table = await filled(space, 1)
        late, early = snapshot(space), space.begin()
        key = key_of(space, table, 2 if what == "put there" else 1)
        if what == "change":
            await update(early, table, (1, [1, 5, ""]))
        elif what == "remove":
            await delete(early, table, 1)
        else:
            await insert(early, table, [2, 5, ""])
        await early.commit()
        with pytest.raises(SerializationFailure, match="begin again"):
            await locked(late, table, key)
        with pytest.raises(SerializationFailure):
            await insert(late, table, [2 if what == "put there" else 1, 6, ""])


async def test_an_update_under_a_snapshot_is_never_lost() -> None:
    async with opened() as space:
        table = await filled(space, 1)
        key, attempts = key_of(space, table, 1), 0

        async def add_one() -> None:
            nonlocal attempts
            while True:
                attempts += 1
                transaction = snapshot(space)
                try:
                    seen = rows_in(transaction, table)[0][1]
                    await asyncio.sleep(0)
                    assert isinstance(seen, int)
                    await locked(transaction, table, key)
                    await update(transaction, table, (1, [1, seen + 1, ""]))
                    await transaction.commit()
                    return
                except SerializationFailure:
                    transaction.rollback()

        await asyncio.gather(*[add_one() for _ in range(12)])
        assert rows_of(space, table) == [[1, 12, ""]]
        assert attempts > 12
        assert len(space.locks) == 0


async def test_a_row_that_is_locked_is_read_as_it_is_now() -> None:
    async with opened() as space:
        table = await filled(space, 1)
        key = key_of(space, table, 1)

        async def add_one() -> None:
            transaction = space.begin()
            row = await locked(transaction, table, key)
            assert row is not None and isinstance(row[1], int)
            await update(transaction, table, (1, [1, row[1] + 1, ""]))
            await transaction.commit()

        await asyncio.gather(*[add_one() for _ in range(12)])
        assert rows_of(space, table) == [[1, 12, ""]]


async def test_a_statement_that_fails_leaves_nothing_and_the_rest_stays() -> None:
    async with opened() as space:
        table = await filled(space, 1)
        transaction = space.begin()
        await insert(transaction, table, [2, 2, ""])
        size_bytes = transaction.size_bytes
        with pytest.raises(ZeroDivisionError), transaction.statement():
            await Changer(transaction, table).insert([3, 3, ""])
            transaction.mark()
            await Changer(transaction, table).insert([4, 4, ""])
            raise ZeroDivisionError
        assert rows_in(transaction, table) == [[1, 0, ""], [2, 2, ""]]
        assert transaction.size_bytes == size_bytes
        await transaction.commit()
        assert rows_of(space, table) == [[1, 0, ""], [2, 2, ""]]


async def test_savepoints_are_undone_one_in_the_other() -> None:
    async with opened() as space:
        table = await filled(space, 0)
        transaction = space.begin()
        await insert(transaction, table, [1, 1, ""])
        outer = transaction.mark()
        await insert(transaction, table, [2, 2, ""])
        inner = transaction.mark()
        await update(transaction, table, (1, [1, 9, ""]))
        assert [row[1] for row in rows_in(transaction, table)] == [9, 2]
        transaction.undo(inner)
        assert [row[1] for row in rows_in(transaction, table)] == [1, 2]
        kept = transaction.mark()
        await delete(transaction, table, 1)
        transaction.release(kept)
        assert [row[1] for row in rows_in(transaction, table)] == [2]
        transaction.undo(outer)
        assert [row[1] for row in rows_in(transaction, table)] == [1]
        await transaction.commit()
        assert rows_of(space, table) == [[1, 1, ""]]


async def test_what_is_undone_makes_room_again() -> None:
    async with opened(HerdSettings(transaction_bytes_max=1_000)) as space:
        table = await filled(space, 0)
        transaction = space.begin()
        for number in range(30):
            mark = transaction.mark()
            await insert(transaction, table, [number, 0, "x" * 500])
            transaction.undo(mark)
        await insert(transaction, table, [1, 0, "x" * 500])
        with pytest.raises(TooLarge, match="in parts"):
            await insert(transaction, table, [2, 0, "x" * 500])
        await transaction.commit()
        assert len(rows_of(space, table)) == 1


async def test_a_row_or_key_that_no_replica_could_store_is_refused_before_the_log() -> None:
    async with opened() as space:
        table = await filled(space, 0)
        transaction = space.begin()
        with pytest.raises(ValueTooLong):
            await insert(transaction, table, [1, 0, "x" * (17 << 20)])
        with pytest.raises(ValueTooLong):
            transaction.set_plain(b"\x02" + bytes(4_096), b"")
        await insert(transaction, table, [2, 0, "x" * ((17 << 20) - 100)])
        await transaction.commit()
        assert [row[0] for row in rows_of(space, table)] == [2]


async def test_what_was_before_is_told_of_rows_that_changed_and_of_no_others() -> None:
    told: list[Change] = []
    async with opened() as space:
        table = await filled(space, 2)
        transaction = space.begin()
        full = msgspec.structs.replace(table, full_changes=True)
        transaction.set_catalog(*transaction.catalog.with_table(full))
        await transaction.commit()
        table = space.catalog.table("cows")
        space.watch(lambda _, command: told.extend(getattr(command, "before", ())))
        transaction = space.begin()
        with pytest.raises(ZeroDivisionError), transaction.statement():
            row = await locked(transaction, table, key_of(space, table, 1))
            assert row is not None
            await Changer(transaction, table).delete(key_of(space, table, 1), row)
            raise ZeroDivisionError
        await update(transaction, table, (2, [2, 1, ""]))
        await update(transaction, table, (2, [2, 2, ""]))
        await insert(transaction, table, [3, 3, ""])
        await transaction.commit()
    two, three = (table.prefix + table.encode_primary((number,)) for number in (2, 3))
    assert told == [(two, encode_row([2, 0, ""])), (three, None)]


async def test_after_the_end_every_call_says_so_and_takes_nothing() -> None:
    async with opened() as space:
        table = await filled(space, 1)
        key = key_of(space, table, 1)
        for isolation in Isolation:
            transaction = space.begin(isolation)
            transaction.rollback()
            transaction.rollback()
            calls: list[Callable[[Transaction], object]] = [
                lambda one: one.get(key),
                lambda one: one.get_plain(key),
                lambda one: one.get_newest(key),
                lambda one: one.get_newest_plain(key),
                lambda one: one.scan(b"\x01", b"\x03"),
                lambda one: one.scan_plain(b"\x01", b"\x03"),
                lambda one: one.snapshot(),
                lambda one: one.set_row(key, b""),
                lambda one: one.set_plain(key, b""),
                lambda one: one.mark(),
                lambda one: one.release(2),
                lambda one: one.undo(2),
                lambda one: one.check(),
            ]
            for call in calls:
                with pytest.raises(TransactionEnded, match="rolled back"):
                    call(transaction)
            for locking in (
                transaction.lock_table(table),
                transaction.lock_row(table, key),
                transaction.lock_name("cows"),
                transaction.commit(),
            ):
                with pytest.raises(TransactionEnded):
                    await locking
            assert len(space.locks) == 0
            assert transaction._snapshot is None


async def test_a_deadlock_ends_the_one_that_closed_it_and_the_other_goes_on() -> None:
    async with opened() as space:
        table = await filled(space, 2)
        one, two = space.begin(), space.begin()
        await update(one, table, (1, [1, 1, ""]))
        await update(two, table, (2, [2, 2, ""]))
        waiting = asyncio.create_task(update(one, table, (2, [2, 1, ""])))
        await turns()
        with pytest.raises(Deadlock):
            await update(two, table, (1, [1, 2, ""]))
        assert two.ended
        await waiting
        await one.commit()
        assert rows_of(space, table) == [[1, 1, ""], [2, 1, ""]]
        assert len(space.locks) == 0


async def test_a_lock_that_does_not_come_fails_the_statement_and_not_the_transaction() -> None:
    async with opened(HerdSettings(lock_timeout_ms=5)) as space:
        table = await filled(space, 2)
        one, two = space.begin(), space.begin()
        await update(one, table, (1, [1, 1, ""]))
        await update(two, table, (2, [2, 2, ""]))
        with pytest.raises(LockTimeout):
            await update(two, table, (1, [1, 2, ""]))
        await two.commit()
        await one.commit()
        assert rows_of(space, table) == [[1, 1, ""], [2, 2, ""]]


async def test_many_row_locks_become_one_of_the_table() -> None:
    async with opened(HerdSettings(row_locks_max=3)) as space:
        table = await filled(space, 10)
        many, other = space.begin(), space.begin()
        await update(many, table, *[(number, [number, 1, ""]) for number in range(1, 9)])
        assert len(many.locks) < 8
        waiting = asyncio.create_task(update(other, table, (10, [10, 2, ""])))
        await turns()
        assert not waiting.done()
        await many.commit()
        await waiting
        await other.commit()
        assert [row[1] for row in rows_of(space, table)] == [1] * 8 + [0, 2]


async def test_one_row_that_is_locked_often_is_one_lock() -> None:
    async with opened(HerdSettings(row_locks_max=3)) as space:
        table = await filled(space, 2)
        often, other = space.begin(), space.begin()
        for number in range(9):
            await update(often, table, (1, [1, number, ""]))
        await update(other, table, (2, [2, 2, ""]))
        await other.commit()
        await often.commit()
        assert rows_of(space, table) == [[1, 8, ""], [2, 2, ""]]


async def test_a_table_that_could_not_be_locked_leaves_no_row_unlocked() -> None:
    async with opened(HerdSettings(row_locks_max=2, lock_timeout_ms=5)) as space:
        table = await filled(space, 6)
        many, other = space.begin(), space.begin()
        await update(other, table, (6, [6, 6, ""]))
        for number in (1, 2):
            await update(many, table, (number, [number, 1, ""]))
        for number in (3, 4, 6):
            with pytest.raises(LockTimeout):
                await update(many, table, (number, [number, 1, ""]))
        assert rows_in(many, table)[5] == [6, 0, ""]
        await other.commit()
        await update(many, table, (6, [6, 1, ""]))
        await many.commit()
        assert [row[1] for row in rows_of(space, table)] == [1, 1, 0, 0, 0, 1]


async def test_two_that_both_want_the_whole_table_do_not_wait_for_ever() -> None:
    async with opened(HerdSettings(row_locks_max=2, lock_timeout_ms=60_000)) as space:
        table = await filled(space, 8)

        async def change(first: int) -> Error | None:
            transaction = space.begin()
            try:
                for number in range(first, first + 4):
                    await update(transaction, table, (number, [number, first, ""]))
                    await asyncio.sleep(0)
                await transaction.commit()
            except Deadlock as error:
                return error
            return None

        outcomes = await asyncio.gather(change(1), change(5))
        assert sum(outcome is None for outcome in outcomes) >= 1
        assert len(space.locks) == 0


async def test_a_table_locked_alone_keeps_all_changes_of_others_out() -> None:
    async with opened() as space:
        table = await filled(space, 1)
        one, two = space.begin(), space.begin()
        await one.lock_table(table, exclusive=True)
        waiting = asyncio.create_task(update(two, table, (1, [1, 1, ""])))
        await turns()
        assert not waiting.done()
        one.rollback()
        await waiting
        two.rollback()
        assert len(space.locks) == 0


KEYS = st.integers(0, 12)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 9)),
        st.tuples(st.just("remove"), KEYS, st.just(0)),
        st.tuples(st.just("mark"), st.just(0), st.just(0)),
        st.tuples(st.just("undo"), st.just(0), st.just(0)),
        st.tuples(st.just("keep"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@given(st.sets(KEYS), CHANGES, st.sampled_from(Isolation), st.integers(1, 5))
def test_scans_show_own_changes_over_the_others_rows(
    there: set[int],
    changes: list[tuple[str, int, int]],
    isolation: Isolation,
    limit: int,
) -> None:
    async def compare() -> None:
        async with opened(PATIENT) as space:
            await _assert_equal(space, there, changes, isolation, limit)

    asyncio.run(compare())


async def _assert_equal(
    space: Tablespace,
    there: set[int],
    changes: list[tuple[str, int, int]],
    isolation: Isolation,
    limit: int,
) -> None:
    table = await made(space, "t")
    filling = space.begin()
    for number in there:
        filling.set_row(key_of(space, table, number), b"old")
    await filling.commit()
    transaction = space.begin(isolation)
    model, saved = dict.fromkeys(there, b"old"), []
    for what, number, value in changes:
        if what == "put":
            model[number] = b"%d" % value
            transaction.set_row(key_of(space, table, number), b"%d" % value)
        elif what == "remove":
            model.pop(number, None)
            transaction.set_row(key_of(space, table, number), None)
        elif what == "mark":
            saved.append((transaction.mark(), dict(model)))
        elif saved:
            mark, before = saved.pop()
            if what == "undo":
                model = before
                transaction.undo(mark)
            else:
                transaction.release(mark)
        _see(space, table, transaction, model, limit)
    await transaction.commit()
    _see(space, table, space.begin(), model, limit)


def _see(
    space: Tablespace, table: Table, transaction: Transaction, model: dict[int, bytes], limit: int
) -> None:
    wanted = [(key_of(space, table, number), model[number]) for number in sorted(model)]
    first, end = table.prefix, table.prefix + b"\xff"
    found: list[tuple[bytes, bytes]] = []
    while page := transaction.scan(first, end, limit):
        assert len(page) <= limit
        found += page
        first = page[-1][0] + b"\x00"
    assert [(key, value[len(FRESH) :]) for key, value in found] == wanted
    for number in range(13):
        value = transaction.get(key_of(space, table, number))
        assert (None if value is None else value[len(FRESH) :]) == model.get(number)


async def test_a_snapshot_ends_when_others_have_changed_definitions() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        other = await made(space, "bulls")
        writer = space.begin()
        await insert(writer, table, [1, 1, "a"])
        await writer.commit()
        late = snapshot(space)
        assert rows_in(late, table) == [[1, 1, "a"]]
        await made(space, "calves")
        assert rows_in(late, table) == [[1, 1, "a"]], "a table that it has not seen is no matter"
        # TRUNCATE gives a table another store: the catalog leads nowhere in the snapshot.
        definer = space.begin()
        catalog, store, changes = definer.catalog.with_store()
        emptied = msgspec.structs.replace(table, store=store)
        both = catalog.with_table(emptied)
        definer.set_catalog(both[0], [*changes, *both[1]])
        await definer.commit()
        with pytest.raises(SerializationFailure, match="definitions"):
            rows_in(late, other)
        late.rollback()

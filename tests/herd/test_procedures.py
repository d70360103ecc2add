"""Batches of rows that are changed in one turn of the loop, and what they leave to the long way."""

from unittest.mock import patch

import pytest

from herd.binding import BoundTable
from herd.errors import CommitUnknown, ForeignKeyViolation, LeaderUnavailable
from herd.procedures import Procedure, Target, begin
from herd.rows import Row
from herd.schema import ForeignKey, Index
from herd.schema import Table as Definition
from herd.tablespace import Tablespace
from tests.herd.spaces import delete, insert, key_of, made, opened, rows_of


def target(space: Tablespace, table: Definition) -> Target:
    return Target(BoundTable(space, table.name))


def begun(space: Tablespace) -> Procedure:
    procedure = begin(space)
    assert procedure is not None
    return procedure


def keyed(space: Tablespace, table: Definition, *rows: Row) -> list[tuple[bytes, Row]]:
    return [(key_of(space, table, row[0]), row) for row in rows]


async def family(space: Tablespace) -> tuple[Definition, Definition]:
    """Cows of herds; of herds there is number 1."""
    herds = await made(space, "herds")
    cows = await made(space, "cows", foreign_keys=[ForeignKey("of", (1,), herds.id, (0,))])
    first = space.begin()
    await insert(first, herds, [1, 0, "alps"])
    await first.commit()
    return herds, cows


async def test_rows_are_looked_at_put_and_removed_as_one_command() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        one = space.begin()
        await insert(one, table, [1, 0, "old"], [2, 0, "gone"])
        await one.commit()
        cows, procedure = target(space, table), begun(space)
        keys = [key_of(space, table, number) for number in (1, 2, 3)]
        found = procedure.lock(cows, keys)
        assert found is not None and [value is not None for value in found] == [True, True, False]
        assert procedure.put(cows, keyed(space, table, [1, 1, "new"], [3, 0, "born"]))
        assert procedure.remove(cows, keys[1:2])
        answered = procedure.propose()
        assert answered is not None
        procedure.drop()
        assert len(space.locks) > 0
        await answered
        assert rows_of(space, table) == [[1, 1, "new"], [3, 0, "born"]]
        assert len(space.locks) == 0


async def test_where_somebody_holds_a_row_it_lets_go_of_everything() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        other = space.begin()
        await insert(other, table, [2, 0, "theirs"])
        before, procedure = len(space.locks), begun(space)
        keys = [key_of(space, table, number) for number in (1, 2)]
        assert procedure.lock(target(space, table), keys) is None
        procedure.drop()
        assert len(space.locks) == before
        blind = begun(space)
        assert not blind.put(target(space, table), keyed(space, table, [2, 0, "mine"]))
        blind.drop()
        await other.commit()
        assert rows_of(space, table) == [[2, 0, "theirs"]] and len(space.locks) == 0


async def test_what_it_has_locked_others_wait_for_until_it_is_applied() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        procedure = begun(space)
        assert procedure.put(target(space, table), keyed(space, table, [1, 0, "mine"]))
        answered = procedure.propose()
        assert answered is not None
        # Whoever gives up waiting leaves the locks to the command.
        answered.cancel()
        procedure.drop()
        other = space.begin()
        await other.lock_table(table)
        await other.lock_row(table, key_of(space, table, 1))
        assert other.get_newest(key_of(space, table, 1)) is not None
        other.rollback()
        assert len(space.locks) == 0


async def test_a_row_whose_parent_is_missing_takes_the_long_way() -> None:
    async with opened() as space:
        _, table = await family(space)
        cows, procedure = target(space, table), begun(space)
        assert procedure.put(cows, keyed(space, table, [1, 1, "a"], [2, None, "stray"]))
        assert not procedure.put(cows, keyed(space, table, [3, 2, "of no herd"]))
        procedure.drop()
        assert rows_of(space, table) == [] and len(space.locks) == 0


async def test_a_parent_that_was_found_stays_until_its_child_is_there() -> None:
    async with opened() as space:
        herds, table = await family(space)
        procedure = begun(space)
        assert procedure.put(target(space, table), keyed(space, table, [1, 1, "a"]))
        answered = procedure.propose()
        other = space.begin()
        with pytest.raises(ForeignKeyViolation):
            await delete(other, herds, 1)
        other.rollback()
        assert answered is not None and answered.done()
        assert rows_of(space, table) == [[1, 1, "a"]]


async def test_a_parent_that_somebody_removes_meanwhile_is_not_found() -> None:
    async with opened() as space:
        herds, table = await family(space)
        other = space.begin()
        await delete(other, herds, 1)
        procedure = begun(space)
        assert not procedure.put(target(space, table), keyed(space, table, [1, 1, "a"]))
        procedure.drop()
        await other.commit()
        assert len(space.locks) == 0


async def test_what_other_rows_or_entries_depend_on_takes_the_long_way() -> None:
    async with opened() as space:
        herds, _ = await family(space)
        indexed = await made(space, "sheep", indexes=[Index(1, "by_b", (1,))])
        twice = await made(space, "calves", foreign_keys=[ForeignKey("f", (1,), herds.id, (1,))])
        for table in (herds, indexed, twice):
            procedure = begun(space)
            assert not procedure.put(target(space, table), keyed(space, table, [7, 1, "x"]))
            assert not procedure.remove(target(space, table), [key_of(space, table, 7)])
            procedure.drop()
        assert len(space.locks) == 0


async def test_a_column_that_may_not_be_null_takes_the_long_way() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        procedure = begun(space)
        key = key_of(space, table, 1)
        assert procedure.put(target(space, table), [(key, [1, None, None])])
        assert not procedure.put(target(space, table), [(key, [None, 0, "x"])])
        procedure.drop()
        assert len(space.locks) == 0


async def test_a_table_that_is_defined_anew_is_not_what_was_bound() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        old = target(space, table)
        await made(space, "sheep")
        procedure = begun(space)
        assert procedure.lock(old, [key_of(space, table, 1)]) is None
        procedure.drop()
        changing = space.begin()
        await changing.lock_table(table, exclusive=True)
        procedure = begun(space)
        assert procedure.lock(target(space, table), [key_of(space, table, 1)]) is None
        procedure.drop()
        changing.rollback()
        assert len(space.locks) == 0


async def test_what_it_sees_counts_only_while_the_lease_holds() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        leading = space.replica._leading
        assert leading is not None
        procedure = begun(space)
        with (
            patch.object(leading.holding, "holds", lambda: False),
            pytest.raises(LeaderUnavailable),
        ):
            procedure.lock(target(space, table), [key_of(space, table, 1)])
        procedure.drop()
        assert len(space.locks) == 0


async def test_what_is_too_large_for_one_turn_takes_the_long_way() -> None:
    async with opened() as space:
        table = await made(space, "cows")
        procedure = begun(space)
        rows: list[Row] = [[number, 0, "x" * 400_000] for number in range(3)]
        assert procedure.put(target(space, table), keyed(space, table, *rows))
        assert procedure.propose() is None
        procedure.drop()
        assert rows_of(space, table) == [] and len(space.locks) == 0


async def test_a_command_at_which_the_replica_failed_may_have_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as space:
        table = await made(space, "cows")
        procedure = begun(space)
        assert procedure.put(target(space, table), keyed(space, table, [1, 0, "a"]))
        answered = procedure.propose()
        assert answered is not None

        def fail(*given: object) -> bytes:
            raise OSError("no space left on the device")

        monkeypatch.setattr(space._machine, "apply", fail)
        with pytest.raises(CommitUnknown):
            await answered


async def test_who_does_not_lead_begins_none() -> None:
    async with opened() as space:
        with patch.object(Tablespace, "term", 0):
            assert begin(space) is None

"""Restoration to any moment of a history, and what one that was cut short leaves."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from engine.log import START, Position, ReplicatedLog
from engine.ports.system_workers import ThreadWorkers
from engine.state.memory import MemoryState
from herd.backup import copy_checkpoint
from herd.catalog import stores_to_erase
from herd.errors import LeaderUnavailable, ProgrammingError, StorageFailed
from herd.keys import DATA, store_of
from herd.reading_log import log_of
from herd.restoring import _Filling, restore_until
from herd.schema import Building, Index
from herd.sql.indexing import builds_of
from herd.store import open_folder
from herd.table import AsyncTable, create_table
from herd.tablespace import Tablespace
from herd.types import BIGINT, TEXT
from tests.engine.ledger.scripted import turns
from tests.herd.checkpoint.test_building import Setup, change, opened, taken
from tests.herd.spaces import index_is_right, insert, made, rows_of
from tests.herd.wire.wiring import other_opener

Rows = dict[bytes, bytes]


@asynccontextmanager
async def empty(setup: Setup, name: str) -> AsyncIterator[Tablespace]:
    """A new tablespace beside the one of the setup."""
    space = await Tablespace.open(setup.client, name, MemoryState())
    try:
        yield space
    finally:
        await space.close()


def shown(space: Tablespace) -> tuple[Sequence[str], Rows]:
    """The names of all tables and views, and all rows that they own, without their positions."""
    live = {table.store for table in space.catalog.tables.values()}
    found, _ = space.stale_read(lambda rows: rows.scan(DATA, None, 100_000))
    rows = {
        key: value[16:] if store_of(key)[1] == 0 else value
        for key, value in found
        if store_of(key)[0] in live
    }
    return space.catalog.names, rows


async def lived(setup: Setup, *, checkpoints: bool) -> list[tuple[Position, Sequence[str], Rows]]:
    """A small history with definitions among it; how everything was after each transaction."""
    space = setup.space
    moments = []

    def note() -> None:
        moments.append((space.replica.position, *shown(space)))

    for number in range(3):
        await change(setup, {number: "old", 10 * number + 5: f"{number}"})
        note()
    if checkpoints:
        await taken(setup)
    await change(setup, {1: "new"}, remove=range(5, 6))
    note()
    bull = await made(space, "bull", indexes=[Index(1, "by_b", (1,))])
    note()
    transaction = space.begin()
    await insert(transaction, bull, [1, 7, "x"], [2, 7, "y"])
    await transaction.commit()
    note()
    if checkpoints:
        await taken(setup)
    emptied = msgspec.structs.replace(bull, store=50)
    transaction = space.begin()
    transaction.set_catalog(*transaction.catalog.with_table(emptied))
    await insert(transaction, emptied, [3, 9, "after"])
    await transaction.commit()
    note()
    transaction = space.begin()
    transaction.set_catalog(*transaction.catalog.without_table(emptied))
    await transaction.commit()
    note()
    await change(setup, {1: "last"})
    note()
    return moments


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_each_moment_of_a_history_comes_back_as_it_was(
    tmp_path: Path, checkpoints: bool
) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        moments = await lived(setup, checkpoints=checkpoints)
        for number, (position, names, rows) in enumerate(moments):
            async with empty(setup, f"copy{number}") as copy:
                reached = await restore_until(copy, setup.client, workers, "farm", position)
                assert reached == position
                assert shown(copy) == (names, rows)
                for table in copy.catalog.tables.values():
                    index_is_right(copy, table)
                await made(copy, "later")
                assert shown(copy)[1] == rows
        assert (await setup.checkpointer.list.get()).pins == ()
        await workers.close()


async def test_a_position_between_two_transactions_has_the_first_and_not_the_second(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {1: "a"})
        first, wanted = setup.space.replica.position, shown(setup.space)
        await setup.space.replica.open_session()
        between = setup.space.replica.position
        await change(setup, {2: "b"})
        async with empty(setup, "copy") as copy:
            assert first < between
            assert await restore_until(copy, setup.client, workers, "farm", between) == first
            assert shown(copy) == wanted
        async with empty(setup, "nothing") as copy:
            assert await restore_until(copy, setup.client, workers, "farm", START) == START
            assert shown(copy) == ([], {})
        await workers.close()


async def test_an_index_that_was_being_built_then_is_built_here(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {number: f"{number}" for number in range(50)})
        index = Index(1, "by_name", (1,), state=Building.BUILDING)
        building = msgspec.structs.replace(setup.table, indexes=(index,), next_index=2)
        transaction = setup.space.begin()
        transaction.set_catalog(*transaction.catalog.with_table(building))
        await transaction.commit()
        async with empty(setup, "copy") as copy:
            builds_of(copy)
            until = setup.space.replica.position
            await restore_until(copy, setup.client, workers, "farm", until)
            while copy.catalog.table("cow").indexes[0].state is Building.BUILDING:
                await turns()
            assert copy.catalog.table("cow").indexes[0].state is Building.READY
            index_is_right(copy, copy.catalog.table("cow"))
        await workers.close()


@patch("herd.restoring._LOOKS_MAX", 2)
async def test_a_position_that_nobody_has_reached_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {1: "a"})
        ledger, entry = setup.space.replica.position
        async with empty(setup, "copy") as copy:
            with pytest.raises(ProgrammingError, match="ends at"):
                await restore_until(
                    copy, setup.client, workers, "farm", Position(ledger, entry + 100)
                )
            assert shown(copy) == ([], {})
        await workers.close()


async def test_a_log_that_is_cut_off_before_the_position_is_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {1: "a"})
        early = setup.space.replica.position
        await setup.space.replica._leading.writer.roll()  # type: ignore[union-attr]
        await change(setup, {2: "b"})
        await setup.space.replica.log.truncate(setup.space.replica.position)
        async with empty(setup, "copy") as copy:
            with pytest.raises(StorageFailed, match="not kept"):
                await restore_until(copy, setup.client, workers, "farm", early)
        await workers.close()


async def test_what_a_cut_restoration_left_is_erased_and_belongs_to_no_table(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {number: f"{number}" for number in range(300)})
        manifest = await taken(setup)
        async with empty(setup, "copy") as copy:
            writes, propose = 0, copy.propose

            async def some(command: bytes, term: int, transaction: object = None) -> bytes:
                nonlocal writes
                writes += 1
                if writes == 3:
                    raise LeaderUnavailable("the leader goes away here")
                return await propose(command, term)

            copy.propose = some  # type: ignore[method-assign]
            with pytest.raises(LeaderUnavailable):
                await copy_checkpoint(copy, setup.client, workers, manifest)
            copy.propose = propose  # type: ignore[method-assign]
            assert copy.catalog.names == []
            cow = await made(copy, "cow")
            assert cow.id > setup.table.id, "its rows would lie among those that were left"
            copy._erase()
            while copy.stale_read(stores_to_erase)[0]:
                await turns()
            assert shown(copy) == (["cow"], {})
            assert not copy.rows_scan(DATA, b"\x03", 10)
        await workers.close()


async def test_two_restorations_into_one_tablespace_do_not_mix(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, {number: f"{number}" for number in range(300)})
        manifest = await taken(setup)
        async with empty(setup, "copy") as copy:
            both = await asyncio.gather(
                *[copy_checkpoint(copy, setup.client, workers, manifest) for _ in range(2)],
                return_exceptions=True,
            )
            assert [type(one) for one in both] == [type(None), ProgrammingError]
            assert shown(copy) == shown(setup.space)
        await workers.close()


async def test_a_folder_restores_a_tablespace_to_a_moment_or_leaves_no_trace(
    tmp_path: Path,
) -> None:
    async with open_folder(tmp_path / "data") as herd:
        cows = await herd.create_table("cow", {"id": BIGINT, "name": TEXT}, ["id"])
        await cows.put({"id": 1, "name": "before"})
        before = (await herd.tablespace()).replica.position
        await cows.put({"id": 1, "name": "after"})
        await herd.restore_until("default", before, "then")
        assert await (await herd.table("cow", "then")).get(1) == {"id": 1, "name": "before"}
        for wrong, error in ((Position(10**6, 0), ProgrammingError), (before, ProgrammingError)):
            name = "then" if wrong == before else "other"
            with patch("herd.restoring._LOOKS_MAX", 2), pytest.raises(error):
                await herd.restore_until("default", wrong, name)
        (tmp_path / "bad").write_bytes(b"no backup")
        with pytest.raises(StorageFailed):
            await herd.restore(tmp_path / "bad", "other")
        assert await herd.names() == ["default", "then"]


async def test_a_restoration_may_be_the_first_thing_that_a_folder_is_opened_for(
    tmp_path: Path,
) -> None:
    async with open_folder(tmp_path) as herd:
        cows = await herd.create_table("cow", {"id": BIGINT, "name": TEXT}, ["id"])
        await cows.put({"id": 1, "name": "before"})
        before = (await herd.tablespace()).replica.position
        await cows.put({"id": 1, "name": "after"})
    async with open_folder(tmp_path) as herd:
        await herd.restore_until("default", before, "then")
    async with open_folder(tmp_path) as herd:
        for name, wanted in (("then", "before"), ("default", "after")):
            assert await (await herd.table("cow", name)).get(1) == {"id": 1, "name": wanted}


async def test_another_opener_has_the_owner_of_a_folder_restore(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await herd.make("farm")
        cows = await herd.create_table("cow", {"id": BIGINT, "name": TEXT}, ["id"], "farm")
        await cows.put({"id": 1, "name": "before"})
        before = (await herd.tablespace("farm")).replica.position
        await cows.put({"id": 1, "name": "after"})
    async with open_folder(tmp_path) as herd:
        await herd.tablespace()
        async with other_opener(herd, tmp_path) as other:
            # The owner has not opened that tablespace yet.
            await other.restore_until("FARM", before, "then")
            with pytest.raises(ProgrammingError, match="already"):
                await other.restore_until("farm", before, "then")
            assert not await other._route.own_or_reach()
        assert await (await herd.table("cow", "then")).get(1) == {"id": 1, "name": "before"}
        assert await (await herd.table("cow", "farm")).get(1) == {"id": 1, "name": "after"}


async def test_the_log_is_kept_from_the_oldest_checkpoint_on_whatever_the_replica_needs(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "first"})
        await taken(setup)
        await change(setup, {1: "second"})
        position = setup.space.replica.position
        await change(setup, {1: "third"})
    async with opened(tmp_path) as setup:
        await change(setup, {1: "fourth"})
        await setup.space.replica.snapshot()
        workers = ThreadWorkers(asyncio.get_running_loop())
        async with empty(setup, "copy") as copy:
            assert await restore_until(copy, setup.client, workers, "farm", position) == position
            (row,) = rows_of(copy, copy.catalog.table("cow"))
            assert row == [1, "second"]
        await workers.close()
        log = ReplicatedLog(setup.client, log_of("farm"))
        before = len((await log.list()).listed)
        for number in range(3):
            await change(setup, {1: f"{number}"})
            await taken(setup)
        await setup.space.replica.snapshot()
        assert len((await log.list()).listed) < before, "what no checkpoint needs goes"


async def test_tables_that_others_want_to_make_wait_for_the_end_of_a_restoration(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "first"})
        await taken(setup)
        position = setup.space.replica.position
        workers = ThreadWorkers(asyncio.get_running_loop())
        async with empty(setup, "copy") as copy:
            making: list[asyncio.Task[AsyncTable]] = []
            take = _Filling.take

            async def beside(filling: _Filling, *given: Any) -> None:
                making.append(
                    asyncio.ensure_future(create_table(copy, "mine", {"a": BIGINT}, ["a"]))
                )
                await turns(100)
                assert not making[0].done()
                await take(filling, *given)

            with patch.object(_Filling, "take", beside):
                await restore_until(copy, setup.client, workers, "farm", position)
            await making[0]
            assert copy.catalog.names == ["cow", "mine"]
            assert rows_of(copy, copy.catalog.table("cow")) == [[1, "first"]]
            ids = {table.id for table in copy.catalog.tables.values()}
            assert len(ids) == 2
        await workers.close()

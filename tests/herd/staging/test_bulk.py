"""What is seen of a write in bulk while it goes on, and what is left of one that is cut short."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from engine.log import Position
from herd.catalog import stores_to_erase
from herd.errors import (
    CommitUnknown,
    LeaderUnavailable,
    LockTimeout,
    NotSupportedError,
    StorageFailed,
)
from herd.keys import JOB, successor
from herd.staging.layout import Mode
from herd.store import AsyncHerd, open_folder
from herd.tablespace import Tablespace
from herd.transaction import Transaction
from tests.herd.staging.staged import Writing, begun, rows_of, run
from tests.herd.staging.test_ingesting import cows, farm_in, nothing_is_left

COUNT = 300


async def staged(herd: AsyncHerd, mode: Mode = Mode.APPEND) -> Writing:
    """A job with rows of several tasks, among each other and those of the table."""
    writing = await begun(herd, "cow", mode)
    for task in range(3):
        await writing.stage(cows(*range(10 + task, 10 + COUNT, 3)))
    return writing


async def count(herd: AsyncHerd) -> int:
    [(found,)] = await rows_of(herd, "SELECT count(*) FROM cow")
    return int(found)


def is_last(transaction: Transaction) -> bool:
    """Whether it is the one that ends a job."""
    return any(key.startswith(JOB) for key, _ in transaction.write().plain)


def failing(space: Tablespace, at: int, error: Exception) -> Callable[..., Awaitable[None]]:
    """What proposes for a tablespace, and fails at one of the times that it is asked to."""
    propose, asked = space.propose, 0

    async def some(command: bytes, term: int, transaction: Transaction | None = None) -> None:
        nonlocal asked
        asked += 1
        if asked == at:
            raise error
        await propose(command, term, transaction)

    return some


async def test_nobody_sees_a_part_of_the_rows(tmp_path: Path) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        space = await herd.tablespace()
        seen: list[int] = []

        def look(*_: object) -> None:
            prefix = space.catalog.table("cow").prefix
            rows, _ = space.stale_read(lambda rows: rows.scan(prefix, successor(prefix), 9_999))
            seen.append(len(rows))

        writing = await staged(herd)
        stop = space.watch(look)
        await writing.commit()
        stop()
        assert len(seen) > 3
        # All at once, wherever among what the log tells.
        assert seen == sorted(seen) and set(seen) <= {2, COUNT + 2} and seen[2] == 2
        assert await count(herd) == COUNT + 2


async def test_the_table_can_be_read_meanwhile_and_others_write_afterwards(tmp_path: Path) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        space = await herd.tablespace()
        writing, going_on, go_on = await staged(herd), asyncio.Event(), asyncio.Event()
        propose = space.propose

        async def held(command: bytes, term: int, transaction: Transaction | None = None) -> None:
            if transaction is None:
                going_on.set()
                await go_on.wait()
            await propose(command, term, transaction)

        with patch.object(space, "propose", held):
            committing = asyncio.ensure_future(writing.commit())
            await going_on.wait()
            assert await count(herd) == 2
            with pytest.raises(LockTimeout):
                await run(herd, "UPDATE cow SET name = 'x'")
            await run(herd, "CREATE TABLE bull (id BIGINT PRIMARY KEY)")
            go_on.set()
            await committing
        await run(herd, "UPDATE cow SET name = 'x' WHERE id = 3", "INSERT INTO bull VALUES (1)")
        assert await count(herd) == COUNT + 2


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE])
async def test_a_write_that_is_cut_short_is_done_again_and_leaves_nothing(
    tmp_path: Path, mode: Mode
) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        space = await herd.tablespace()
        writing = await staged(herd, mode)
        with patch.object(space, "propose", failing(space, 4, LeaderUnavailable("it goes away"))):
            assert await writing.commit() == (COUNT, False)
        assert await count(herd) == COUNT + (2 if mode is Mode.APPEND else 0)
        await nothing_is_left(space)


async def test_what_a_leader_left_half_way_is_erased_by_the_next_one(tmp_path: Path) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        space = await herd.tablespace()
        writing = await staged(herd)
        with (
            patch.object(space, "propose", failing(space, 4, StorageFailed("the disk is full"))),
            patch.object(space, "_erase"),
            pytest.raises(StorageFailed),
        ):
            await writing.commit()
        assert space.stale_read(stores_to_erase)[0], "it should have left something"
    async with open_folder(tmp_path) as herd:
        assert await count(herd) == 2
        await nothing_is_left(await herd.tablespace())


async def test_a_commit_whose_answer_is_lost_is_asked_about_and_not_done_twice(
    tmp_path: Path,
) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        writing = await staged(herd)
        commit = Transaction.commit

        async def lost(transaction: Transaction) -> None:
            marked = is_last(transaction)
            await commit(transaction)
            if marked:
                raise CommitUnknown("the answer got lost")

        with patch.object(Transaction, "commit", lost):
            assert (await writing.commit()).repeated
        assert await count(herd) == COUNT + 2
        await nothing_is_left(await herd.tablespace())


async def test_who_stops_waiting_at_the_last_moment_loses_no_rows(tmp_path: Path) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        space = await herd.tablespace()
        writing = await staged(herd, Mode.OVERWRITE)
        proposed: list[asyncio.Future[bytes]] = []
        propose = space.propose

        async def last(command: bytes, term: int, transaction: Transaction | None = None) -> bytes:
            proposing = asyncio.ensure_future(propose(command, term, transaction))
            if transaction is not None and is_last(transaction):
                proposed.append(proposing)
                # It is in the log now, and not yet applied, when its caller goes.
                await asyncio.sleep(0)
                committing.cancel()
            return await asyncio.shield(proposing)

        with patch.object(space, "propose", last):
            committing = asyncio.ensure_future(writing.commit())
            with pytest.raises(asyncio.CancelledError):
                await committing
            await asyncio.gather(*proposed)
        await nothing_is_left(space)
        assert await count(herd) == COUNT


async def test_what_only_a_transaction_can_check_is_refused_in_bulk(tmp_path: Path) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        await run(
            herd,
            "CREATE TABLE tree (id BIGINT PRIMARY KEY, above BIGINT REFERENCES tree (id))",
        )
        writing = await begun(herd, "tree")
        await writing.stage(pa.record_batch({"id": [1, 2], "above": [1, 1]}))
        with pytest.raises(NotSupportedError, match="smaller than a transaction"):
            await writing.commit()
        await nothing_is_left(await herd.tablespace())


async def test_the_log_restores_every_moment_of_a_write(tmp_path: Path) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        space = await herd.tablespace()
        moments: dict[int, Position] = {}

        def look(position: Position, _: object) -> None:
            prefix = space.catalog.table("cow").prefix
            rows, _ = space.stale_read(lambda rows: rows.scan(prefix, successor(prefix), 9_999))
            moments[len(rows)] = position

        stop = space.watch(look)
        await (await staged(herd)).commit()
        stop()
        assert set(moments) == {2, COUNT + 2}
        for name, rows in (("half", 2), ("all", COUNT + 2)):
            moment = moments[rows]
            await herd.restore_until("default", moment, name)
            session = await herd.session(name)
            [(found,)] = (await session.execute("SELECT count(*) FROM cow")).rows
            await session.close()
            assert found == rows
            await nothing_is_left(await herd.tablespace(name))


async def test_who_follows_changes_is_told_of_rows_that_came_in_bulk(tmp_path: Path) -> None:
    async with farm_in(tmp_path, "in bulk") as herd:
        space = await herd.tablespace()
        await run(herd, "CREATE TABLE bull (id BIGINT PRIMARY KEY)")
        begin = space.replica.position
        await (await staged(herd)).commit()
        await run(herd, "INSERT INTO bull VALUES (1)")
        last = space.replica.position
        told = [
            change.table.name
            async for transaction in herd.changes(after=begin, last=last, tables=["bull"])
            for change in transaction.changes
        ]
        assert told == ["bull"]
        with pytest.raises(StorageFailed, match="in bulk"):
            async for _ in herd.changes(after=begin, last=last, tables=["cow"]):
                pass

"""What a table remembers of the jobs that it has taken: each its own, and for a month."""

from pathlib import Path
from unittest.mock import patch

import pytest

from engine.ports.clock import SystemClock
from herd.errors import ProgrammingError
from herd.keys import JOB, successor
from herd.outcomes import Outcomes
from herd.staging.layout import Job, Mode
from herd.staging.marks import KEPT_MS, JobMark
from herd.store import AsyncHerd, open_folder
from herd.tablespace import Tablespace
from tests.herd.staging.staged import begun, rows_of, run, write
from tests.herd.staging.test_ingesting import cows

MONDAY = Job("key load of monday")


async def marks_in(space: Tablespace) -> int:
    found, _ = space.stale_read(lambda rows: rows.scan(JOB, successor(JOB), 9_999))
    return len(found)


async def committed(space: Tablespace, identity: bytes) -> None:
    """A transaction of some client, or a job of the program before, which marked it so."""
    await space.begin(identity=identity).commit()


async def made(herd: AsyncHerd, *names: str) -> None:
    for name in names:
        await run(herd, f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, name VARCHAR)")


async def test_a_job_of_one_name_is_another_one_in_each_table(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await made(herd, "cow", "bull")
        for table in ("cow", "bull"):
            assert not (await begun(herd, table, job=MONDAY)).written
            assert await write(herd, table, [cows(1, 2)], job=MONDAY) == (2, False)
        for table in ("cow", "bull"):
            assert await write(herd, table, [cows(1, 2)], job=MONDAY) == (0, True)
            assert await rows_of(herd, f"SELECT count(*) FROM {table}") == [(2,)]


async def test_a_table_that_is_renamed_knows_what_it_has_taken(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await made(herd, "cow")
        await write(herd, "cow", [cows(1)], job=MONDAY)
        await run(herd, "ALTER TABLE cow RENAME TO animal")
        for name in ("animal", "ANIMAL"):
            assert (await begun(herd, name, job=MONDAY)).written
        await made(herd, "cow")
        assert not (await begun(herd, "cow", job=MONDAY)).written


async def test_a_job_is_remembered_however_many_clients_have_committed_since(
    tmp_path: Path,
) -> None:
    async with open_folder(tmp_path) as herd:
        await made(herd, "cow")
        space = await herd.tablespace()
        space._outcomes = Outcomes(space, kept=3)
        await write(herd, "cow", [cows(1)], job=MONDAY)
        for number in range(9):
            await committed(space, b"client %d" % number + (1).to_bytes(8))
        for number in range(40):
            await write(herd, "cow", [cows(10 + number)])
        assert await write(herd, "cow", [cows(2)], job=MONDAY) == (0, True)


async def test_marks_go_when_they_are_a_month_old_and_others_are_written(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await made(herd, "cow")
        space = await herd.tablespace()
        for number in range(9):
            await write(herd, "cow", [cows(number)], job=Job(f"old {number}"))
        now_ms = SystemClock().wall_ms()
        with patch.object(herd.client.clock, "wall_ms", lambda: now_ms + KEPT_MS - 60_000):
            await write(herd, "cow", [cows(20)], job=Job("before"))
            assert await marks_in(space) == 10
        with patch.object(herd.client.clock, "wall_ms", lambda: now_ms + KEPT_MS + 60_000):
            assert await write(herd, "cow", [cows(0)], job=Job("old 0")) == (0, True)
            await write(herd, "cow", [cows(21)], job=Job("after"))
        assert await marks_in(space) == 2
        assert await write(herd, "cow", [cows(0)], Mode.UPSERT, Job("old 0")) == (1, False)


async def test_a_mark_that_is_renewed_while_it_is_found_old_stays(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await made(herd, "cow")
        space = await herd.tablespace()
        table_id = space.catalog.table("cow").id
        await write(herd, "cow", [cows(0)], job=Job("query", 1))
        now_ms = SystemClock().wall_ms()
        with patch.object(herd.client.clock, "wall_ms", lambda: now_ms + KEPT_MS + 60_000):
            other = space.begin()
            JobMark(space, table_id, Job("other").identity).write(other)
            await write(herd, "cow", [cows(1)], job=Job("query", 2))
            await other.commit()
        assert await write(herd, "cow", [cows(1)], job=Job("query", 2)) == (0, True)
        assert await marks_in(space) == 2


async def test_a_series_has_one_mark_and_does_not_go_back(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await made(herd, "cow")
        space = await herd.tablespace()
        for number in range(5):
            await write(herd, "cow", [cows(number)], job=Job("query", number))
        assert await marks_in(space) == 1
        with pytest.raises(ProgrammingError, match="number 4 of a series is written, and number 3"):
            await write(herd, "cow", [cows(9)], job=Job("query", 3))
        assert await rows_of(herd, "SELECT max(id) FROM cow") == [(4,)]


async def test_what_the_program_before_has_marked_is_not_written_again(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        await made(herd, "cow")
        space = await herd.tablespace()
        await committed(space, MONDAY.identity)
        await committed(space, Job("query 7 default cow", 4).identity)
    async with open_folder(tmp_path) as herd:
        assert (await begun(herd, "cow", job=MONDAY)).written
        assert await write(herd, "cow", [cows(1)], job=MONDAY) == (0, True)
        assert await write(herd, "cow", [cows(1)], job=Job("query 7 default", 4)) == (0, True)
        assert await write(herd, "cow", [cows(1)], job=Job("query 7 default", 5)) == (1, False)

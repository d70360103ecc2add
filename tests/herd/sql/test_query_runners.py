"""The promises of every way to run queries: in threads of this process and in other processes."""

import asyncio
import contextlib
import datetime
import decimal
import gc
import os
import signal
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from engine import limits
from engine.ports.system_workers import ThreadWorkers
from herd import errors
from herd.arrow import python_rows
from herd.reading import Page, SharedBatch, Stream, TablePages, mapped
from herd.sql import query_frames
from herd.sql.duck import DuckThreads, Work
from herd.sql.query_pool import QueryPool
from herd.sql.query_processes import SHARED_BYTES_MIN, QueryProcesses, query_processes
from herd.sql.query_settings import QuerySettings
from tests.herd.sql.querying import until

SETTINGS = QuerySettings(connections=2, threads=1, memory_bytes=192 * limits.MIB)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000) b"
KINDS = ("threads", "processes")


@asynccontextmanager
async def pool_of(kind: str, settings: QuerySettings = SETTINGS) -> AsyncIterator[QueryPool]:
    """A pool that runs queries in one way."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    runner = QueryProcesses if kind == "processes" else DuckThreads
    pool = QueryPool(runner(workers, settings), settings)
    try:
        yield pool
    finally:
        await pool.close()
        await workers.close()


def key_of(number: int) -> bytes:
    """A row's key."""
    return number.to_bytes(8, "big")


def page_of(ids: Sequence[int], text: str = "cow") -> Page:
    """A page of rows."""
    columns = {
        "id": pa.array(ids, pa.int64()),
        "name": pa.array([text] * len(ids)),
        "_key": pa.array([key_of(each) for each in ids], pa.binary()),
        "_position": pa.array([bytes(16)] * len(ids), pa.binary(16)),
    }
    return Page(pa.RecordBatch.from_pydict(columns), key_of(ids[0]), key_of(ids[-1]))


def rows_of(*ids: int) -> pa.RecordBatch:
    """Further rows of a table."""
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": ["calf"] * len(ids)}, SCHEMA)


def itself(made: TablePages) -> TablePages:
    """A function that returns an existing input."""
    return made


def one_page(ids: range) -> TablePages:
    """A function that makes an input of a page that nobody else has."""
    return TablePages(SCHEMA, [(page_of(ids, "x" * 100), [])], None)


async def ask(
    pool: QueryPool, sql: str, *given: Any, **inputs: Callable[[], Any]
) -> list[tuple[Any, ...]]:
    """The answer of a query."""
    return python_rows(await pool.run(lambda: Work(sql, given, inputs)))


async def failure(pool: QueryPool, sql: str, **inputs: Callable[[], Any]) -> errors.Error:
    """The error of a query."""
    with pytest.raises(errors.Error) as caught:
        await ask(pool, sql, **inputs)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
async def test_parameters_and_answers_keep_their_types(kind: str) -> None:
    async with pool_of(kind) as pool:
        given = (
            *(1, 2**100, 1.5, "ö", b"\x00\xff", True, None, decimal.Decimal("1.20")),
            *(datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, 2, 3, 4)),
            *(datetime.time(1, 2, 3), uuid.UUID(int=7)),
        )
        marks = ", ".join(f"${number}" for number in range(1, len(given) + 1))
        assert await ask(pool, f"SELECT {marks}", *given) == [given]


@pytest.mark.parametrize("kind", KINDS)
async def test_pages_are_read_without_changed_rows_and_with_those_beside_them(kind: str) -> None:
    async with pool_of(kind) as pool:
        small = page_of(range(5))
        large = page_of(range(10, 5000), "x" * 100)
        assert small.size_bytes < SHARED_BYTES_MIN < large.size_bytes
        sql = "SELECT count(*), sum(id), max(length(name)) FROM cows"
        for _ in range(2):
            made = TablePages(SCHEMA, [(small, [1, 2]), (large, [0])], rows_of(7, 8))
            count, total, longest = 5 - 2 + 4990 - 1 + 2, 0 + 3 + 4 + sum(range(11, 5000)) + 15, 100
            assert await ask(pool, sql, cows=partial(itself, made)) == [(count, total, longest)]
        made = TablePages(SCHEMA, [(large, [])], None)
        assert await ask(pool, sql, cows=partial(itself, made)) == [
            (4990, sum(range(10, 5000)), 100)
        ]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_is_read_as_often_as_the_query_asks(kind: str) -> None:
    async with pool_of(kind) as pool:
        begun = []

        def batches() -> Iterator[pa.RecordBatch]:
            begun.append(1)
            yield rows_of(1, 2)
            yield rows_of(3)

        sql = "SELECT count(*) FROM cows a JOIN cows b ON a.id <= b.id"
        assert await ask(pool, sql, cows=lambda: Stream(SCHEMA, batches)) == [(6,)]
        assert len(begun) >= 2


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_that_cannot_be_read_end_the_query_with_that_error(kind: str) -> None:
    async with pool_of(kind) as pool:
        failures: list[BaseException] = []

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows_of(1)
            failures.append(errors.StorageFailed("the page is damaged"))
            raise failures[0]

        work = Work("SELECT * FROM cows", (), {"cows": lambda: Stream(SCHEMA, batches)}, failures)
        with pytest.raises(errors.StorageFailed, match="the page is damaged"):
            await pool.run(lambda: work)
        assert await ask(pool, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_large_answer_arrives_whole(kind: str) -> None:
    async with pool_of(kind) as pool:
        sql = "SELECT range AS n, repeat('x', 50) AS x FROM range(600000)"
        found = await pool.run(lambda: Work(sql, (), {}))
        assert found.num_rows == 600_000 and found.nbytes > 30 * limits.MIB
        assert found.column("n").combine_chunks().to_pylist() == list(range(600_000))


@pytest.mark.parametrize(
    ("sql", "kind_of_error"),
    [
        ("SELECT nothing FROM range(1)", errors.NoSuchColumn),
        ("SELECT * FROM nothing", errors.NoSuchTable),
        ("SELEC 1", errors.SqlSyntaxError),
        ("SELECT CAST('x' AS INT)", errors.ValueInvalid),
        ("SELECT error('moo') FROM range(9)", errors.DataError),
        ("SELECT * FROM read_text('/etc/passwd')", errors.NotSupportedError),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_errors_are_the_databases_own(
    kind: str, sql: str, kind_of_error: type[errors.Error]
) -> None:
    async with pool_of(kind) as pool:
        error = await failure(pool, sql)
        assert isinstance(error, kind_of_error) and error.__cause__ is None
        assert await ask(pool, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_past_its_bound_is_refused(kind: str) -> None:
    async with pool_of(kind, replace(SETTINGS, result_bytes_max=100_000)) as pool:
        sql = "SELECT repeat('x', 1000) FROM range(1000)"
        assert "more than 100000 bytes" in str(await failure(pool, sql))
        assert await ask(pool, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_query_is_ended_after_its_time(kind: str) -> None:
    async with pool_of(kind, replace(SETTINGS, run_timeout_ms=3000)) as pool:
        assert "ended after 3000 ms" in str(await failure(pool, ENDLESS))
        assert pool.busy == 0 and await ask(pool, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_query_has_ended_when_its_caller_hears_of_it(kind: str) -> None:
    async with pool_of(kind) as pool:
        for _ in range(3):
            asking = asyncio.ensure_future(ask(pool, ENDLESS))
            await until(lambda: pool.busy == 1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert pool.busy == 0
        assert await ask(pool, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_ending_an_owner_ends_its_queries_and_no_others(kind: str) -> None:
    async with pool_of(kind) as pool:
        one, two = object(), object()
        asked = [
            asyncio.ensure_future(pool.run(lambda: Work(ENDLESS, (), {}), owner=owner))
            for owner in (one, two)
        ]
        await until(lambda: pool.busy == 2)
        await pool.end(one)
        with pytest.raises(errors.InterfaceError, match="closed while the query ran"):
            await asked[0]
        assert pool.busy == 1 and not asked[1].done()
        await pool.close()
        with pytest.raises(errors.InterfaceError, match="closed while the query ran"):
            await asked[1]
        assert (await failure(pool, "SELECT 1")).message == "the query engine is closed"


# Processes


def children_of(pid: int) -> list[int]:
    """The processes that one has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(each) for each in listed.split()]


def is_running(pid: int) -> bool:
    """Whether a process exists."""
    return Path(f"/proc/{pid}").exists()


def supervisor_of(pool: QueryPool) -> int:
    """The process that makes a pool's query processes."""
    runner = pool._runner
    assert isinstance(runner, QueryProcesses) and runner._supervisor is not None
    return runner._supervisor._child.pid


def behind_others(pool: QueryPool) -> list[int]:
    """The query processes with the lowest priority."""
    found = []
    for pid in children_of(supervisor_of(pool)):
        with contextlib.suppress(ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, pid) == 10:
                found.append(pid)
    return found


HOARDERS = [
    "SELECT sum(length(repeat('a', 10000000) || i)) FROM range(1000) t(i)",
    "SELECT length(repeat('x', 4000000000))",
    "SELECT length(string_agg(repeat('x', 1000), '')) FROM range(10000000)",
    "SELECT * FROM range(40000000) t(i) ORDER BY hash(i) LIMIT 1 OFFSET 20000000",
]


@pytest.mark.parametrize("sql", HOARDERS)
async def test_a_process_never_holds_more_than_a_query_may(sql: str) -> None:
    held = 0
    async with pool_of("processes", replace(SETTINGS, disk_bytes=32 * limits.MIB)) as pool:
        assert await ask(pool, "SELECT 1") == [(1,)]
        supervisor = supervisor_of(pool)
        asking = asyncio.ensure_future(failure(pool, sql))
        while not asking.done():
            for pid in children_of(supervisor):
                with contextlib.suppress(OSError):
                    held = max(held, private_bytes_of(pid))
            await asyncio.wait([asking], timeout=0.005)
        assert isinstance(await asking, errors.TooLarge)
        assert await ask(pool, "SELECT 1") == [(1,)]
    assert held < 1.1 * SETTINGS.memory_bytes + 64 * limits.MIB


SORT = "SELECT * FROM range(4000000) t(i) ORDER BY hash(i) LIMIT 1 OFFSET 2000000"
"""A query that needs files, because it holds more than `SMALL` allows."""
SMALL = replace(SETTINGS, memory_bytes=48 * limits.MIB)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_query_writes_no_more_to_the_disk_than_it_may(kind: str) -> None:
    async with pool_of(kind, SMALL) as pool:
        assert len(await ask(pool, SORT)) == 1
    async with pool_of(kind, replace(SMALL, disk_bytes=16 * limits.MIB)) as pool:
        assert isinstance(await failure(pool, SORT), errors.TooLarge)
        assert await ask(pool, "SELECT 1") == [(1,)]


async def test_queries_of_a_server_leave_free_what_is_kept_of_their_disk(tmp_path: Path) -> None:
    memory_bytes = SMALL.memory_bytes
    async with query_processes(memory_bytes, tmp_path / "one", lambda size: 0) as pool:
        assert pool is not None and len(await ask(pool, SORT)) == 1
    async with query_processes(memory_bytes, tmp_path / "two", lambda size: size) as pool:
        assert pool is not None and isinstance(await failure(pool, SORT), errors.TooLarge)


async def test_a_process_that_grows_beside_duckdbs_own_limit_is_killed() -> None:
    async with pool_of("processes") as pool:
        # It holds 300 MB while it makes digests: too much, but less than the system refuses.
        text = "SELECT count(DISTINCT md5(repeat('a', 1000000 + i))) FROM range(300) t(i)"
        said = str(await failure(pool, text))
        assert "more memory than one query may use" in said
        assert await ask(pool, "SELECT 1") == [(1,)]


async def test_queries_that_share_a_page_for_the_first_time_at_once_both_read_it() -> None:
    sql = "SELECT count(*), sum(id) FROM cows"
    async with pool_of("processes") as pool:
        for first in range(0, 50_000, 5_000):
            ids = range(first, first + 5_000)
            made = TablePages(SCHEMA, [(page_of(ids, "x" * 100), [])], None)
            asked = [ask(pool, sql, cows=partial(itself, made)) for _ in range(2)]
            assert await asyncio.gather(*asked) == [[(5_000, sum(ids))]] * 2


async def test_pages_that_nobody_else_keeps_are_read_all_the_same() -> None:
    async with pool_of("processes") as pool:
        for first in range(0, 20_000, 5_000):
            # Each is made for its query alone.
            ids = range(first, first + 5_000)
            found = await ask(
                pool,
                "SELECT count(*), max(length(name)) FROM cows",
                cows=partial(one_page, ids),
            )
            assert found == [(5_000, 100)]


async def test_a_process_whose_answer_was_not_read_to_its_end_is_asked_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pool_of("processes") as pool:
        assert await ask(pool, "SELECT 1") == [(1,)]
        receive = query_frames.receive

        def no_memory(link: socket.socket, size_bytes_max: int) -> Any:
            monkeypatch.setattr(query_frames, "receive", receive)
            raise MemoryError

        monkeypatch.setattr(query_frames, "receive", no_memory)
        assert isinstance(await failure(pool, "SELECT 2"), errors.TooLarge)
        assert await ask(pool, "SELECT 3") == [(3,)]


def descriptors() -> int:
    """The file descriptors of shared pages that this process has open."""
    gc.collect()
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += "herd-page" in os.readlink(f"/proc/self/fd/{name}")
    return found


def test_a_shared_page_takes_one_descriptor_and_a_mapped_one_none() -> None:
    before = descriptors()
    page = page_of(range(5_000))
    shared = page.share()
    assert shared is not None and descriptors() == before + 1
    seen = mapped(shared.fd, shared.size_bytes, shared.schema)
    assert descriptors() == before + 1 and seen.equals(page.batch)
    del shared, page
    # What is mapped stays.
    assert descriptors() == before and seen.column("id")[4_999].as_py() == 4_999


async def test_pages_beyond_a_share_of_the_descriptors_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    files = 4 * (len(SharedBatch.living) + 3)
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    pages = [page_of(range(first, first + 5_000), "x" * 100) for first in range(0, 50_000, 5_000)]
    before = descriptors()
    made = TablePages(SCHEMA, [(page, [0]) for page in pages], None)
    async with pool_of("processes") as pool:
        sql = "SELECT count(*), sum(id) FROM cows"
        rows = set(range(50_000)) - set(range(0, 50_000, 5_000))
        for _ in range(2):
            assert await ask(pool, sql, cows=partial(itself, made)) == [(len(rows), sum(rows))]
    assert descriptors() <= before + 3


def wrong_offsets() -> bytes:
    """The bytes of a batch whose texts lie elsewhere."""
    sound = pa.RecordBatch.from_pydict({"name": ["a", "bc"]}).serialize().to_pybytes()
    return bytes(sound).replace(struct.pack("<iii", 0, 1, 3), struct.pack("<iii", 0, 1 << 30, 3))


TEXTS = pa.schema([("name", pa.string())]).serialize().to_pybytes()
DONE = msgspec.msgpack.encode(query_frames.Done(("VARCHAR",)))
LIES: dict[str, list[tuple[int, bytes]]] = {
    "no frame at all": [(77, b"")],
    "rows before their schema": [(query_frames.BATCH, wrong_offsets())],
    "a schema that is none": [(query_frames.SCHEMA, b"\xff" * 100)],
    "rows that lie elsewhere": [
        *[(query_frames.SCHEMA, TEXTS), (query_frames.BATCH, wrong_offsets())],
        (query_frames.DONE, DONE),
    ],
    "a stream that nobody gave": [
        (query_frames.NEXT, msgspec.msgpack.encode(query_frames.Next("cows", 0)))
    ],
    "a file without a file": [(query_frames.FILE, b"")],
    "an end that is none": [(query_frames.DONE, b"\xc1")],
}


@pytest.mark.parametrize("lie", LIES)
async def test_invalid_frames_of_a_query_process_are_errors(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of("processes") as pool:
        assert await ask(pool, "SELECT 1") == [(1,)]
        receive = query_frames.receive
        told: list[Any] = [(kind, bytearray(body), []) for kind, body in LIES[lie]]

        def lying(link: socket.socket, *left: int) -> Any:
            if not left:
                return receive(link)  # from the processes' supervisor
            return told.pop(0) if told else None

        monkeypatch.setattr(query_frames, "receive", lying)
        found = await failure(pool, "SELECT 2")
        assert isinstance(found, errors.InternalError | errors.StorageFailed)
        assert not told
        monkeypatch.setattr(query_frames, "receive", receive)
        assert await ask(pool, "SELECT 3") == [(3,)]


def test_a_frame_that_is_too_large_takes_no_memory_and_leaves_no_descriptor() -> None:
    here, there = socket.socketpair()
    with here, there:
        page = page_of(range(5_000)).share()
        assert page is not None
        before = descriptors()
        socket.send_fds(there, [struct.pack(">BBQ", query_frames.BATCH, 1, 1 << 60)], [page.fd])
        with pytest.raises(ValueError, match="a frame of"):
            query_frames.receive(here, 1 << 20)
        assert descriptors() == before


def test_nobody_changes_a_page_that_is_shared() -> None:
    shared = page_of(range(5_000)).share()
    assert shared is not None
    with pytest.raises(PermissionError):
        os.pwrite(shared.fd, b"moo", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(shared.fd, 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_query_that_is_cancelled_twice_has_ended_when_its_caller_hears_of_it(
    kind: str,
) -> None:
    ended: list[int] = []
    async with pool_of(kind) as pool:
        assert await ask(pool, "SELECT 1") == [(1,)]
        work = Work(ENDLESS, (), {}, close=lambda: ended.append(pool.busy))
        asking = asyncio.ensure_future(pool.run(lambda: work))
        await until(lambda: pool.busy == 1)
        for _ in range(3):
            asking.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert ended == [0] and await ask(pool, "SELECT 1") == [(1,)]


async def test_a_process_that_is_killed_fails_its_query_alone() -> None:
    async with pool_of("processes") as pool:
        assert await ask(pool, "SELECT 1") == [(1,)]
        asking = asyncio.ensure_future(failure(pool, ENDLESS))
        other = asyncio.ensure_future(ask(pool, ENDLESS))
        await until(lambda: pool.busy == 2)
        await until(lambda: len(children_of(supervisor_of(pool))) == 2)
        pids = children_of(supervisor_of(pool))
        # The newest is one that has a query.
        os.kill(pids[-1], signal.SIGSEGV)
        done, _ = await asyncio.wait([asking, other], return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        other.cancel()
        asking.cancel()
        await asyncio.wait([asking, other])
        assert await ask(pool, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("by", ["its caller", "its owner"])
async def test_a_process_that_looks_for_no_interrupt_is_ended(by: str) -> None:
    owner = object()
    async with pool_of("processes") as pool:
        runner = pool._runner
        assert isinstance(runner, QueryProcesses)
        asking = asyncio.ensure_future(pool.run(lambda: Work(ENDLESS, (), {}), owner=owner))
        await until(lambda: runner._supervisor is not None)
        await until(lambda: bool(children_of(supervisor_of(pool))))
        [pid] = children_of(supervisor_of(pool))
        # From now on only SIGKILL ends it.
        os.kill(pid, signal.SIGSTOP)
        if by == "its owner":
            await pool.end(owner)
        else:
            asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled() == (by == "its caller") and pool.busy == 0
        assert asking.cancelled() or isinstance(asking.exception(), errors.InterfaceError)
        await until(lambda: not is_running(pid))
        assert await ask(pool, "SELECT 1") == [(1,)]


async def test_a_supervisor_that_cannot_start_is_an_error_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pool_of("processes") as pool:
        with monkeypatch.context() as patched:
            patched.setattr("sys.executable", "/nowhere/python")
            assert isinstance(await failure(pool, "SELECT 1"), errors.StorageFailed)
        assert await ask(pool, "SELECT 1") == [(1,)]


async def test_a_terminal_that_goes_away_ends_no_query() -> None:
    async with pool_of("processes") as pool:
        assert await ask(pool, "SELECT 1") == [(1,)]
        asking = asyncio.ensure_future(failure(pool, ENDLESS))
        await until(lambda: bool(children_of(supervisor_of(pool))))
        supervisor = supervisor_of(pool)
        for pid in (supervisor, *children_of(supervisor)):
            os.kill(pid, signal.SIGHUP)
        assert await ask(pool, "SELECT 1") == [(1,)]
        assert supervisor_of(pool) == supervisor and not asking.done()
        asking.cancel()
        await asyncio.wait([asking])


async def test_a_killed_supervisor_is_replaced() -> None:
    async with pool_of("processes") as pool:
        assert await ask(pool, "SELECT 1") == [(1,)]
        asking = asyncio.ensure_future(failure(pool, ENDLESS))
        await until(lambda: pool.busy == 1)
        await until(lambda: bool(children_of(supervisor_of(pool))))
        pids = children_of(supervisor_of(pool))
        os.kill(supervisor_of(pool), signal.SIGKILL)
        assert "killed by the system" in str(await asking)
        await until(lambda: not is_running(pids[0]))
        assert await ask(pool, "SELECT 1") == [(1,)]


async def test_a_query_that_runs_for_long_lets_others_go_first() -> None:
    async with pool_of("processes") as pool:
        assert await ask(pool, "SELECT 1") == [(1,)]
        asking = asyncio.ensure_future(failure(pool, ENDLESS))
        await until(lambda: pool.busy == 1)
        await until(lambda: bool(behind_others(pool)))
        pids = behind_others(pool)
        asking.cancel()
        await asyncio.wait([asking])
        # That process is not asked again.
        assert await ask(pool, "SELECT 1") == [(1,)]
        await until(lambda: pids[0] not in children_of(supervisor_of(pool)))


async def test_processes_leave_no_files_and_no_process_behind(tmp_path: Path) -> None:
    folder = tmp_path / "queries"
    settings = replace(SETTINGS, temporary=str(folder))
    (folder / "left").mkdir(parents=True)
    async with pool_of("processes", settings) as pool:
        sql = "SELECT i FROM range(8000000) t(i) ORDER BY hash(i) LIMIT 1 OFFSET 7000000"
        assert len(await ask(pool, sql)) == 1
        assert not (folder / "left").exists() and folder.stat().st_mode & 0o777 == 0o700
        pids = [supervisor_of(pool), *children_of(supervisor_of(pool))]
    assert not folder.exists() and not any(map(is_running, pids))


def private_bytes_of(pid: int) -> int:
    """The private memory of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")

"""A folder whose disk has no more than its reserve left: what is refused, and what goes on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import blobit
import herdbook
from broker import errors as broker
from broker.commands import Spec
from engine import errors as engine
from engine.ports.disk import Space
from engine.ports.system_disk import SystemDisk
from herd import errors as herd
from herdbook.book import AsyncBook
from herdbook.node.settings import NodeSettings
from herdbook.node.status import NodeStatus, lack_of_room

MIB = 1024 * 1024
RESERVE_BYTES = 100 * MIB
ROOMY_BYTES, FULL_BYTES, EXHAUSTED_BYTES = 900 * MIB, 90 * MIB, 1 * MIB
SOON_S = 5.0
T = TypeVar("T")


class Room:
    """What every disk says of its free bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_bytes = ROOMY_BYTES
        monkeypatch.setattr(SystemDisk, "space", lambda _: Space(1_000 * MIB, self.free_bytes))
        monkeypatch.setattr("engine.ledger.capacity._LOOK_S", 0.01)

    async def becomes(self, free_bytes: int, book: AsyncBook) -> None:
        """So many bytes are free from now on, and the store has seen it."""
        self.free_bytes = free_bytes
        capacity = book.ledgers.capacity
        short = free_bytes < RESERVE_BYTES, free_bytes == EXHAUSTED_BYTES
        async with asyncio.timeout(SOON_S):
            while (bool(capacity.lack), bool(capacity.exhausted)) != short:  # noqa: ASYNC110
                await asyncio.sleep(0)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """The room of all disks."""
    return Room(monkeypatch)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[AsyncBook]:
    """A folder with a table of two rows, two objects and two tasks, if it is a new one."""
    async with (
        asyncio.timeout(60),
        herdbook.open_async(folder, reserve_bytes=RESERVE_BYTES) as book,
    ):
        yield book


async def fill(book: AsyncBook) -> None:
    """Two rows, two objects, two tasks."""
    sql = await book.herd.session()
    await sql.execute("CREATE TABLE cows (id BIGINT PRIMARY KEY, name VARCHAR)")
    await sql.execute("INSERT INTO cows VALUES (1, 'elsa'), (2, 'anna')")
    await sql.close()
    bucket = await book.blobs.create_bucket("milk")
    await bucket.put("a", b"moo")
    await bucket.put("b", b"x" * 100_000)
    await (await book.broker.calls()).submit([Spec("milk"), Spec("milk")])


async def refused(kind: type[Exception], call: Callable[[], Awaitable[object]], words: str) -> None:
    """A call is refused at once, with an error that says what to do."""
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(kind, match=words) as caught:
        await call()
    assert asyncio.get_running_loop().time() - began_s < SOON_S
    assert getattr(caught.value, "retryable", True)


async def soon(call: Callable[[], Awaitable[T]]) -> T:
    """What a call answers once the bookie, which looks every second, has told of its room."""
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                return await call()
            except (herd.DiskFull, blobit.DiskFull, broker.DiskFull):
                await asyncio.sleep(0)


async def refuses_new_data(book: AsyncBook, words: str) -> None:
    """Whatever adds data is refused."""
    sql, bucket = await book.herd.session(), await book.blobs.bucket("milk")
    for text in (
        "INSERT INTO cows VALUES (3, 'late')",
        "UPDATE cows SET name = 'later' WHERE id = 2",
        "UPDATE cows SET name = name || '!' WHERE id > 0",
        "CREATE TABLE more (id BIGINT PRIMARY KEY)",
        "CREATE INDEX names ON cows (name)",
        "ALTER TABLE cows ADD COLUMN milk BIGINT",
        "CREATE TABLESPACE other",
    ):
        await refused(herd.DiskFull, partial(sql.execute, text), words)
    await refused(
        herd.DiskFull, lambda: sql.execute_many("INSERT INTO cows (id) VALUES (?)", [[7]]), words
    )
    table = await book.herd.table("cows")

    async def put() -> None:
        # A table may refuse a row before there is anything to wait for.
        await table.put({"id": 9})

    await refused(herd.DiskFull, put, words)
    await refused(herd.DiskFull, lambda: table.put_many([{"id": 9}]), words)
    await sql.close()
    for size in (10, 100_000, 3 * MIB):
        await refused(blobit.DiskFull, partial(bucket.put, "c", bytes(size)), words)
    await refused(blobit.DiskFull, lambda: book.blobs.put(b"loose"), words)
    calls = await book.broker.calls()
    await refused(broker.DiskFull, lambda: calls.submit([Spec("milk")]), words)
    await refused(broker.DiskFull, lambda: calls.put_code("tools", b"an archive"), words)
    await refused(engine.DiskFull, book.ledgers.create_ledger, words)


async def reads(book: AsyncBook) -> None:
    """All that was stored is read."""
    sql, bucket = await book.herd.session(), await book.blobs.bucket("milk")
    assert list((await sql.execute("SELECT name FROM cows WHERE id = 2")).rows) == [("anna",)]
    assert list((await sql.execute("SELECT count(*) FROM cows WHERE id > 1")).rows) == [(1,)]
    await sql.close()
    assert await bucket.get("b") == b"x" * 100_000
    assert (await (await book.broker.calls()).task(2)).type == "milk"


async def test_a_full_disk_refuses_new_data_at_once_and_takes_deletions(
    tmp_path: Path, room: Room
) -> None:
    async with opened(tmp_path / "data") as book:
        await fill(book)
        writer = await book.ledgers.create_ledger()
        await writer.append(b"before")
        await room.becomes(FULL_BYTES, book)
        await refuses_new_data(book, "94,371,840 bytes free")
        await reads(book)
        sql, calls = await book.herd.session(), await book.broker.calls()
        assert (await sql.execute("DELETE FROM cows WHERE id = 1")).count == 1
        # The bookie has looked at its disk by now, and takes no entries of other ledgers.
        with pytest.raises((engine.DiskFull, engine.AppendFailed), match="full disks"):
            async with asyncio.timeout(SOON_S):
                await writer.append(b"late")
        await book.ledgers.delete_ledger(writer.ledger_id)
        bucket = await book.blobs.bucket("milk")
        await bucket.delete("a")
        await calls.cancel([1])
        await sql.execute("TRUNCATE TABLE cows")
        await sql.execute("DROP TABLE cows")
        await book.blobs.delete_bucket("milk", force=True)
        # It turns back by itself.
        room.free_bytes = ROOMY_BYTES
        await soon(lambda: sql.execute("CREATE TABLE again (id BIGINT PRIMARY KEY)"))
        await sql.execute("INSERT INTO again VALUES (1)")
        await calls.submit([Spec("milk")])
        await (await book.blobs.create_bucket("more")).put("late", b"moo")
        await sql.close()


async def test_if_the_reserve_is_used_up_reads_go_on_and_nothing_needs_a_restart(
    tmp_path: Path, room: Room
) -> None:
    async with opened(tmp_path / "data") as book:
        await fill(book)
        await room.becomes(EXHAUSTED_BYTES, book)
        await refuses_new_data(book, "1,048,576 bytes free")
        sql, calls = await book.herd.session(), await book.broker.calls()
        bucket = await book.blobs.bucket("milk")
        words = "not even deletions"
        await refused(herd.DiskFull, lambda: sql.execute("DELETE FROM cows WHERE id = 1"), words)
        await refused(herd.DiskFull, lambda: sql.execute("DROP TABLE cows"), words)
        await refused(blobit.DiskFull, lambda: bucket.delete("a"), words)
        await refused(broker.DiskFull, lambda: calls.cancel([1]), words)
        await reads(book)
        room.free_bytes = FULL_BYTES
        deleted = await soon(lambda: sql.execute("DELETE FROM cows WHERE id = 1"))
        assert deleted.count == 1
        await bucket.delete("a")
        await calls.cancel([1])
        await sql.close()


async def test_a_folder_opens_with_the_reserve_alone_and_not_with_less(
    tmp_path: Path, room: Room
) -> None:
    folder = tmp_path / "data"
    async with opened(folder) as book:
        await fill(book)
    room.free_bytes = EXHAUSTED_BYTES
    with pytest.raises(engine.DiskFull, match=r"data cannot be opened: a start needs 18,874,368 "):
        async with opened(folder):
            pass
    room.free_bytes = FULL_BYTES
    async with opened(folder) as book:
        await reads(book)
        sql = await book.herd.session()
        assert (await sql.execute("DELETE FROM cows WHERE id = 1")).count == 1
        with pytest.raises(herd.DiskFull):
            await sql.execute("INSERT INTO cows VALUES (3, 'late')")
        await sql.close()


def test_a_nodes_status_says_which_disk_lacks_room(tmp_path: Path, room: Room) -> None:
    settings = NodeSettings(data=str(tmp_path), reserve_bytes=RESERVE_BYTES)
    folders = [str(folder) for folder in settings.data_folders]
    status = NodeStatus(1, "", {}, 1, folders, settings.reserve_bytes)
    assert lack_of_room(status) == ""
    room.free_bytes = FULL_BYTES
    assert lack_of_room(status).startswith(f"the disk of {tmp_path} has 94,371,840 bytes free")


def test_all_folders_of_a_node_are_looked_at(tmp_path: Path) -> None:
    node = NodeSettings(data=str(tmp_path), url="herdbook://zookeeper:2181/x")
    assert node.data_folders == [tmp_path, tmp_path / "bookie"]

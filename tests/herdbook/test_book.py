"""Opening a folder as a user does, on the real engine."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import herdbook
from blobit import BlobNotFound, BlobsClosed
from blobit.object_id import Kind
from engine.errors import InvalidRequest
from engine.folder.lock import FolderLock
from engine.ports.system_loop import background_loop
from herd.errors import InterfaceError
from herd.store import AsyncHerd
from tests.blobit.test_blobs import body


def test_what_was_put_is_there_after_the_folder_is_opened_again(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        texts = [str(book.blobs.put(body(length))) for length in (0, 1, 70_000, 5_000_000)]
    with herdbook.open(tmp_path) as book:
        assert [book.blobs.get(text) for text in texts] == [
            body(0),
            body(1),
            body(70_000),
            body(5_000_000),
        ]


def test_another_process_reads_with_nothing_but_the_id(tmp_path: Path) -> None:
    program = "import herdbook, sys; print(herdbook.open(sys.argv[1]).blobs.put(b'moo'))"
    text = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=True, text=True
    ).stdout.strip()
    with herdbook.open(tmp_path) as book:
        assert book.blobs.get(text) == b"moo"


async def test_the_async_door_opens_the_same_folder(tmp_path: Path) -> None:
    async with herdbook.open_async(tmp_path) as book:
        object_id = await book.blobs.put(body(100_000))
    async with herdbook.open_async(tmp_path) as book:
        assert await book.blobs.get(object_id) == body(100_000)
        await book.ledgers.delete_ledger(object_id.ledger_id)
    async with herdbook.open_async(tmp_path) as book:
        with pytest.raises(BlobNotFound):
            await book.blobs.get(object_id)


def test_a_closed_book_refuses_and_may_be_closed_twice(tmp_path: Path) -> None:
    book = herdbook.open(tmp_path)
    book.close()
    book.close()
    with pytest.raises(BlobsClosed):
        book.blobs.put(b"moo")


def test_a_book_that_its_loop_could_not_close_is_closed_by_who_can(tmp_path: Path) -> None:
    book = herdbook.open(tmp_path)

    async def close() -> None:
        book.close()

    with pytest.raises(InvalidRequest):
        background_loop().run(close)
    assert book.blobs.get(book.blobs.put(b"moo")) == b"moo"
    book.close()
    lock = FolderLock.of(tmp_path)
    try:
        assert lock.try_take()
    finally:
        lock.close()


def test_a_query_that_runs_ends_when_its_book_is_closed(tmp_path: Path) -> None:
    book = herdbook.open(tmp_path)
    connection = book.sql(autocommit=True)
    connection.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            connection.execute(
                "SELECT sum(a.x * b.y) FROM range(1000000) a(x), range(1000000) b(y)"
            )
        except BaseException as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert isinstance(book._book.herd, AsyncHerd)
    (engine,) = book._book.herd._queries.values()
    while not engine._pool.busy:
        asking.join(0.001)
        assert asking.is_alive()
    book.close()
    asking.join()
    assert [type(failure) for failure in failures] == [InterfaceError]


def test_many_small_objects_share_ledgers(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        ids = [book.blobs.put(b"%d" % number) for number in range(50)]
        assert {object_id.kind for object_id in ids} == {Kind.DATA}
        assert len({object_id.ledger_id for object_id in ids}) == 1
        assert [book.blobs.get(object_id) for object_id in ids] == [b"%d" % n for n in range(50)]

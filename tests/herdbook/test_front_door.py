"""Everything of a store through the one object that is opened, without an event loop and with."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, assert_type

import pytest

import herd
import herdbook
from blobit import BlobsClosed
from broker.errors import BrokerError
from engine import Entry
from engine.errors import (
    EntryPastEnd,
    InvalidRequest,
    LedgerFenced,
    NoSuchLedger,
)
from engine.following import Following
from engine.ports.system_loop import background_loop
from herd.changes import CommittedTransaction


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[herdbook.Book]:
    with herdbook.open(tmp_path_factory.mktemp("store")) as opened:
        with opened.sql(autocommit=True) as connection:
            connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        yield opened


def bodies(entries: Following[Entry]) -> list[bytes]:
    """What is in entries, to their end."""
    return [entry.body for entry in entries]


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Begin work in a thread; the list has what it returned, once it ended."""
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(work()))
    thread.start()
    return thread, ended


# Ledgers


def test_a_ledger_is_written_and_read_without_an_event_loop(book: herdbook.Book) -> None:
    with book.ledgers.create_ledger(metadata={"app": b"milk"}) as writer:
        assert writer.append(b"Alma") == 0
        assert writer.append_many([b"Berta", b"Cilli"]) == [1, 2]
        assert (writer.last_add_confirmed, writer.length) == (2, 14)
    assert writer.close() == 2
    with book.ledgers.open_ledger(writer.ledger_id) as reader:
        assert (reader.closed, reader.length, reader.last_add_confirmed) == (True, 14, 2)
        assert bodies(reader.read(1, 2)) == [b"Berta", b"Cilli"]
        assert bodies(reader.read(0, -1)) == []
        assert bodies(reader.tail(2)) == [b"Cilli"]
        with pytest.raises(EntryPastEnd):
            reader.read(0, 3)
    assert book.ledgers.ledger_metadata(writer.ledger_id).custom == {"app": b"milk"}
    assert writer.ledger_id in book.ledgers.list_ledgers()
    book.ledgers.delete_ledger(writer.ledger_id)
    assert writer.ledger_id not in book.ledgers.list_ledgers()
    with pytest.raises(NoSuchLedger):
        book.ledgers.open_ledger(writer.ledger_id)


def test_whoever_opens_a_ledger_with_recovery_fences_its_writer(book: herdbook.Book) -> None:
    writer = book.ledgers.create_ledger()
    writer.append(b"moo")
    assert book.ledgers.open_ledger(writer.ledger_id).last_add_confirmed == 0
    with pytest.raises(LedgerFenced):
        writer.append(b"too late")


def test_deferred_and_numbered_entries_are_there_after_the_force(book: herdbook.Book) -> None:
    deferred = book.ledgers.create_ledger(deferred_sync=True)
    assert [deferred.append(b"%d" % number) for number in range(3)] == [0, 1, 2]
    deferred.force()
    reader = book.ledgers.open_ledger(deferred.ledger_id, recover=False)
    assert reader.read_last_add_confirmed() == 2
    assert bodies(reader.read_unconfirmed(1)) == [b"1", b"2"]
    numbered = book.ledgers.create_ledger(explicit_ids=True)
    assert numbered.append_at(0, b"first") == 0


def test_a_tail_hears_each_entry_and_ends_with_its_ledger(book: herdbook.Book) -> None:
    writer = book.ledgers.create_ledger()
    writer.append(b"0")
    tail = book.ledgers.open_ledger(writer.ledger_id, recover=False).tail()
    assert next(tail).body == b"0"
    thread, ended = in_thread(lambda: bodies(tail))
    for number in range(1, 20):
        writer.append(b"%d" % number)
    writer.close()
    thread.join()
    assert ended == [[b"%d" % number for number in range(1, 20)]]
    assert list(tail) == []


def test_a_tail_that_waits_is_ended_by_another_thread(book: herdbook.Book) -> None:
    writer = book.ledgers.create_ledger()
    writer.append(b"moo")
    reader = book.ledgers.open_ledger(writer.ledger_id, recover=False)
    with reader.tail() as tail:
        heard = threading.Event()

        def follow() -> list[bytes]:
            found = []
            for entry in tail:
                found.append(entry.body)
                heard.set()
            return found

        thread, ended = in_thread(follow)
        assert heard.wait(30)
        tail.stop()
        thread.join()
        tail.stop()
    assert ended == [[b"moo"]]
    writer.append(b"moo again")
    assert list(tail) == []


def test_an_interrupted_wait_loses_no_entry(book: herdbook.Book) -> None:
    class Interrupted(BaseException):
        pass

    reached = threading.Event()
    loop = background_loop()

    def interrupted_run(call: Callable[[], Any]) -> Any:
        """As `BackgroundLoop.run`, for whom a signal comes while it waits."""
        waiting = asyncio.run_coroutine_threadsafe(call(), loop.loop)
        reached.wait(30)
        waiting.cancel()
        raise Interrupted

    async def numbers() -> Any:
        for number in range(3):
            reached.set()
            if not number:
                await asyncio.sleep(0)
            yield [number]

    following: Following[int] = Following(numbers(), loop, interrupted_run)
    with pytest.raises(Interrupted):
        next(following)
    following._run = loop.run
    assert list(following) == [0, 1, 2]


def test_a_following_that_is_forgotten_closes_what_it_read(book: herdbook.Book) -> None:
    closed = threading.Event()

    async def endless() -> Any:
        try:
            while True:
                yield [1, 2, 3]
        finally:
            closed.set()

    for number in Following[int](endless(), background_loop()):
        if number == 2:
            break
    assert closed.wait(30)


def test_a_tail_of_a_deleted_ledger_says_so(book: herdbook.Book) -> None:
    writer = book.ledgers.create_ledger()
    tail = book.ledgers.open_ledger(writer.ledger_id, recover=False).tail()
    book.ledgers.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedger):
        next(tail)


# Tables and changes


def test_a_table_is_keys_and_values(book: herdbook.Book) -> None:
    cows = book.table("cow")
    cows.put({"id": 1, "name": "Elsa"})
    assert assert_type(cows.get(1), dict[str, Any] | None) == {"id": 1, "name": "Elsa"}
    assert [cow["id"] for cow in cows.scan(first=1, last=1)] == [1]
    assert cows.delete(1)
    assert cows.get(1) is None
    with pytest.raises(herd.errors.NoSuchTable):
        book.table("horse")


def test_changes_go_on_after_a_position_and_end_when_told(book: herdbook.Book) -> None:
    cows = book.table("cow")
    cows.put({"id": 10, "name": "Zenzi"})
    first = list(book.changes(follow=False))[-1]
    cows.put({"id": 11, "name": "Resi"})
    stored = tuple(first.position)
    assert len(stored) == 2
    with book.changes(after=stored, tables=["COW"]) as changes:
        found = assert_type(next(changes), CommittedTransaction)
        assert [change.row for change in found.changes] == [{"id": 11, "name": "Resi"}]
        thread, ended = in_thread(lambda: list(changes))
        changes.stop()
        thread.join()
    assert ended == [[]]


def test_changes_of_no_tablespace_say_so(book: herdbook.Book) -> None:
    with pytest.raises(herd.ProgrammingError, match="there is no tablespace nowhere"):
        next(book.changes("nowhere"))


async def test_the_async_door_has_the_same(tmp_path: Path) -> None:
    async with herdbook.open_async(tmp_path) as book:
        assert [each async for each in book.changes(follow=False)] == []
        async with await book.sql(autocommit=True) as connection:
            await connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        cows = await book.table("cow")
        await cows.put({"id": 1, "name": "Elsa"})
        async with aclosing(book.changes()) as changes:
            kinds = [(await anext(changes)).changes[0].kind.value for _ in range(2)]
        assert kinds == ["define", "put"]
        with pytest.raises(herd.ProgrammingError, match="there is no tablespace nowhere"):
            await anext(book.changes("nowhere"))
        writer = await book.ledgers.create_ledger()
        await writer.append(b"moo")
        left = book
    with pytest.raises(herd.InterfaceError):
        await left.table("cow")


# Where nothing can be asked


def calls_of(book: herdbook.Book) -> list[tuple[type[Exception], Callable[[], object]]]:
    """A call to each part of a store, and what it raises where it cannot be carried out."""
    writer = book.ledgers.create_ledger()
    reader = book.ledgers.open_ledger(writer.ledger_id, recover=False)
    tail, changes, tasks = reader.tail(), book.changes(), book.tasks
    return [
        (InvalidRequest, book.ledgers.list_ledgers),
        (InvalidRequest, lambda: writer.append(b"moo")),
        (InvalidRequest, reader.read_last_add_confirmed),
        (InvalidRequest, lambda: next(tail)),
        (BlobsClosed, book.blobs.buckets),
        (herd.Error, book.sql),
        (herd.Error, lambda: book.table("cow")),
        (herd.Error, lambda: next(changes)),
        (BrokerError, lambda: tasks.list()),
    ]


def refused(calls: list[tuple[type[Exception], Callable[[], object]]]) -> list[str]:
    """What each call says where it cannot be carried out; it fails where one is."""
    said = []
    for kind, call in calls:
        with pytest.raises(kind) as raised:
            call()
        said.append(str(raised.value))
    return said


def test_after_the_end_every_part_says_that_it_was_closed(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        calls = calls_of(book)
    assert [text for text in refused(calls) if "closed" not in text] == []
    book.close()


def test_a_forked_child_is_told_to_open_again_and_hangs_nowhere(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        calls = calls_of(book)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                said = refused(calls)
                book.close()
                os.write(writer, b"%d" % sum("before a fork" in text for text in said))
            finally:
                os._exit(0)
        os.close(writer)
        assert os.read(reader, 100) == b"%d" % len(calls)
        os.close(reader)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # The parent has lost nothing by it.
        assert book.ledgers.list_ledgers()


def test_a_call_on_the_loops_own_thread_is_refused(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        calls = calls_of(book)

        async def on_the_loop() -> list[str]:
            return refused(calls)

        said = background_loop().run(on_the_loop)
    assert [text for text in said if "event loop's thread" not in text] == []

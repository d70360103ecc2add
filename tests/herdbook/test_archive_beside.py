"""What happens in the store between the steps of a backup: the new store is none the worse."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine import cluster
from engine.errors import CannotRead, NoSuchLedger
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.ledger.writer import LedgerWriter
from engine.log import Position
from engine.metadata.ledgers import LedgerMetadata
from engine.ports.system_workers import ThreadWorkers
from engine.repair.outlook import Workshop
from engine.run import Entry
from engine.transport.contract import ReadReply, ReadRequest
from herd.checkpoint.manifest import (
    Checkpoints,
    Locator,
    ManifestRecord,
    decode_checkpoints,
    encode_checkpoints,
)
from herd.nodes.facts import SPACES, SpaceFact, encode_fact
from herdbook.archive import Backed, BackupFolder, back_up, check_backup, restore_folder
from herdbook.archive import backup as backing
from herdbook.archive.cut import Cut, end_of, reader_of, take_cut
from herdbook.book import AsyncBook, open_async
from tests.engine.ledger.scripted import QUICK, Cluster, ScriptedBookie


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[LedgerClient, ThreadWorkers]]:
    """A store of ledgers alone, and threads to read and write its backups with."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with cluster.open(folder) as client:
            yield client, workers
    finally:
        await workers.close()


def workshop_of(client: LedgerClient) -> Workshop:
    return Workshop(
        store=client.store, transport=client.transport, clock=client.clock, rng=client.rng
    )


async def written(client: LedgerClient, body: bytes) -> int:
    """The id of a new ledger of one entry, closed."""
    writer = await client.create_ledger()
    await writer.append(body)
    await writer.close()
    return writer.ledger_id


async def backed_up_beside_a_writer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[int]]:
    """Back a store up in which ledgers come after the cut; the id before the cut, and theirs."""
    late: list[int] = []
    async with opened(folder / "store") as (client, workers):

        async def cut(workshop: Workshop, known: Collection[LedgerMetadata]) -> Cut:
            found = await take_cut(workshop, known)
            late.extend([await written(client, b"late") for _ in range(3)])
            return found

        monkeypatch.setattr(backing, "take_cut", cut)
        first = await written(client, b"moo")
        await back_up(client, workers, folder / "backups", kind="folder")
    return first, late


async def next_of_a_new_store(folder: Path) -> int:
    """Restore, and make a ledger: its id."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        await restore_folder(workers, folder / "backups", folder / "again")
    finally:
        await workers.close()
    async with opened(folder / "again") as (client, _):
        return await written(client, b"new")


def test_ids_of_ledgers_that_came_after_the_cut_are_not_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, late = asyncio.run(backed_up_beside_a_writer(tmp_path, monkeypatch))
    assert BackupFolder(tmp_path / "backups").read().next_id > max(late)
    assert asyncio.run(next_of_a_new_store(tmp_path)) > max(late)


def test_a_manifest_that_drew_its_next_id_at_the_cut_does_not_give_ids_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, late = asyncio.run(backed_up_beside_a_writer(tmp_path, monkeypatch))
    read = BackupFolder.read

    def earlier(folder: BackupFolder, number: int | None = None) -> object:
        return msgspec.structs.replace(read(folder, number), next_id=first + 1)

    monkeypatch.setattr(BackupFolder, "read", earlier)
    assert asyncio.run(next_of_a_new_store(tmp_path)) > max(late)


def test_ledgers_that_are_collected_before_the_cut_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[int] = []

    async def work() -> None:
        async with opened(tmp_path / "store") as (client, workers):
            gone.extend([await written(client, b"soon gone") for _ in range(9)])
            left = await written(client, b"moo")

            async def collected(workshop: Workshop, metadata: LedgerMetadata) -> LedgerReader:
                if metadata.ledger_id in gone:
                    raise NoSuchLedger("its bookies have collected it")
                return await reader_of(workshop, metadata)

            async def cut(workshop: Workshop, known: Collection[LedgerMetadata]) -> Cut:
                await asyncio.gather(*map(client.delete_ledger, gone))
                return await take_cut(workshop, known)

            monkeypatch.setattr(backing, "reader_of", collected)
            monkeypatch.setattr(backing, "take_cut", cut)
            backed = await back_up(client, workers, tmp_path / "backups", kind="folder")
            assert backed.ledgers == backed.ledgers_copied == 1
            assert [kept.ledger_id for kept in read().ledgers] == [left]

    read = BackupFolder(tmp_path / "backups").read
    asyncio.run(work())


async def backed_up_again(folder: Path) -> Backed:
    """Back up the store, of which there may be a backup already."""
    async with opened(folder / "store") as (client, workers):
        if not await client.list_ledgers():
            for number in range(3):
                await written(client, b"%d moo" % number * 1_000)
        return await back_up(client, workers, folder / "backups", kind="folder")


@pytest.mark.parametrize("left", [slice(0), slice(20), slice(-1)])
def test_a_file_of_an_earlier_backup_that_was_cut_short_is_copied_again(
    tmp_path: Path, left: slice
) -> None:
    asyncio.run(backed_up_again(tmp_path))
    file = min((tmp_path / "backups" / "ledgers").iterdir())
    file.write_bytes(file.read_bytes()[left])
    backed = asyncio.run(backed_up_again(tmp_path))
    assert (backed.number, backed.ledgers, backed.ledgers_copied) == (2, 3, 1)
    for number in (1, 2):
        assert check_backup(tmp_path / "backups", number).whole


@pytest.mark.parametrize("at", [0, 7, 9, 200])
def test_what_a_check_found_damaged_the_next_backup_copies_again(tmp_path: Path, at: int) -> None:
    asyncio.run(backed_up_again(tmp_path))
    file = min((tmp_path / "backups" / "ledgers").iterdir())
    spoilt = bytearray(file.read_bytes())
    spoilt[at % len(spoilt)] ^= 8
    file.write_bytes(spoilt)
    found = check_backup(tmp_path / "backups")
    assert not found.whole and len(found.damaged) == 1 and file.name in found.damaged[0]
    assert file.read_bytes() == spoilt
    assert asyncio.run(backed_up_again(tmp_path)).ledgers_copied == 1
    for number in (1, 2):
        assert check_backup(tmp_path / "backups", number).whole
    assert len(list((tmp_path / "backups" / "ledgers").iterdir())) == 3
    assert asyncio.run(backed_up_again(tmp_path)).ledgers_copied == 0


async def checkpointed(client: LedgerClient, number: int) -> ManifestRecord:
    """Name a checkpoint of a tablespace without rows, and drop the one before it."""
    at = Position(number, 0)
    record = ManifestRecord(number, at, 1, 0, Locator(await written(client, b"page"), 0, 4, 0))
    key, value = f"{SPACES}/farm/checkpoints", encode_checkpoints(Checkpoints(kept=(record,)))
    found = await client.store.get(key)
    if found is None:
        await client.store.create(f"{SPACES}/farm", encode_fact(SpaceFact("1", 0)))
        await client.store.create(key, value)
    else:
        await client.store.set(key, value, found.version)
        (dropped,) = decode_checkpoints(found.value).kept
        await client.delete_ledger(dropped.locator.ledger_id)
    return record


def test_a_checkpoint_that_is_dropped_while_the_cut_is_taken_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with opened(tmp_path / "store") as (client, workers):
            records = [await checkpointed(client, 1)]

            async def cut(workshop: Workshop, known: Collection[LedgerMetadata]) -> Cut:
                found = await take_cut(workshop, known)
                if len(records) == 1:
                    records.append(await checkpointed(client, 2))
                return found

            monkeypatch.setattr(backing, "take_cut", cut)
            await back_up(client, workers, tmp_path / "backups", kind="folder")
            manifest = BackupFolder(tmp_path / "backups").read()
            kept = decode_checkpoints(manifest.keys[f"{SPACES}/farm/checkpoints"]).kept
            assert kept == (records[1],)
            assert [each.ledger_id for each in manifest.ledgers] == [records[1].locator.ledger_id]

    asyncio.run(work())


Reading = Callable[[ReadRequest], Coroutine[None, None, ReadReply]]


class Naming:
    """A writer that stores an object, names it in a row and in a task with a large payload."""

    def __init__(self, book: AsyncBook) -> None:
        self._book = book
        self._number = 0

    async def step(self) -> None:
        bucket = await self._book.blobs.create_bucket("photos", exist_ok=True)
        session = await self._book.herd.session("default")
        tasks = await self._book.tasks()
        self._number += 1
        await bucket.put(str(self._number), b"moo")
        await session.execute("CREATE TABLE IF NOT EXISTS named (id INT PRIMARY KEY)")
        await session.execute(f"INSERT INTO named VALUES ({self._number})")
        await tasks.submit("show", {"row": self._number, "photo": "moo" * 500_000})
        await session.close()


async def what_lacks(book: AsyncBook) -> tuple[int, int]:
    """How many rows and tasks there are; each must have what it names."""
    bucket, tasks = await book.blobs.bucket("photos"), await book.tasks()
    session = await book.herd.session("default")
    rows = [row[0] for row in (await session.execute("SELECT id FROM named")).rows]
    await session.close()
    for number in rows:
        assert await bucket.get(str(number)) == b"moo"
    found = (await tasks.list(limit=1_000)).tasks
    for task in found:
        assert json.loads(await tasks.payload(task.id))["row"] in rows
    return len(rows), len(found)


def test_a_backup_has_everything_that_its_rows_and_tasks_name(tmp_path: Path) -> None:
    async def work() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop())
        async with open_async(tmp_path / "store") as book:
            naming = Naming(book)
            await naming.step()
            backing_up = asyncio.create_task(
                back_up(book.ledgers, workers, tmp_path / "backups", kind="folder")
            )
            while not backing_up.done():
                await naming.step()
            await backing_up
        await restore_folder(workers, tmp_path / "backups", tmp_path / "again")
        await workers.close()
        async with open_async(tmp_path / "again") as book:
            rows, tasks = await what_lacks(book)
            assert rows >= tasks >= 1

    asyncio.run(work())


async def test_a_backup_fails_where_too_few_bookies_tell_the_end_of_an_open_ledger(
    tmp_path: Path,
) -> None:
    bookies = await Cluster.of(3)
    client, workers = bookies.client(), ThreadWorkers(asyncio.get_running_loop())
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"heard by all")
    ensemble = (await client.ledger_metadata(writer.ledger_id)).fragments[0].ensemble
    bookies.at(ensemble, 2).mute = True
    bookies.at(ensemble, 2).confirm = lambda *_: None  # type: ignore[method-assign]
    await writer.append_many([b"acknowledged %d" % number for number in range(10)])
    for index in range(3):
        bookies.at(ensemble, index).mute = index != 2
    with pytest.raises(CannotRead, match=f"ledger {writer.ledger_id}: entry 1 was not readable"):
        await back_up(client, workers, tmp_path / "backups", kind="cluster")
    assert BackupFolder(tmp_path / "backups").numbers() == []
    bookies.at(ensemble, 0).mute = False
    await back_up(client, workers, tmp_path / "backups", kind="cluster")
    assert [kept.last for kept in BackupFolder(tmp_path / "backups").read().ledgers] == [10]
    await workers.close()


async def unannounced(bookies: Cluster, client: LedgerClient, count: int) -> LedgerWriter:
    """A writer of so many acknowledged entries, of which no bookie knows that they are."""
    for bookie in bookies.bookies:
        bookie.confirm = lambda *_: None  # type: ignore[method-assign]
    writer = await client.create_ledger(3, 3, 2)
    await writer.append_many([b"acknowledged %d" % number for number in range(count)])
    return writer


async def test_a_ledger_that_is_closed_while_it_is_copied_is_copied_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookies = await Cluster.of(3)
    client, workers = bookies.client(), ThreadWorkers(asyncio.get_running_loop())
    writer = await unannounced(bookies, client, 10)
    for bookie in bookies.bookies:
        bookie.lacs[writer.ledger_id] = 3
    read_batches = LedgerReader.read_batches

    async def closing(reader: LedgerReader, first: int, last: int) -> AsyncIterator[list[Entry]]:
        async for batch in read_batches(reader, first, last):
            yield batch
        if not reader.closed:
            await writer.close()
            await reader.read_last_add_confirmed()

    monkeypatch.setattr(LedgerReader, "read_batches", closing)
    await back_up(client, workers, tmp_path / "backups", kind="cluster")
    assert [kept.last for kept in BackupFolder(tmp_path / "backups").read().ledgers] == [9]
    await workers.close()


async def test_an_open_ledger_s_entries_that_nobody_has_announced_are_in_a_backup(
    tmp_path: Path,
) -> None:
    bookies = await Cluster.of(3)
    client, workers = bookies.client(), ThreadWorkers(asyncio.get_running_loop())
    writer = await unannounced(bookies, client, 10)
    assert await end_of(workshop_of(client), writer.ledger_id) == 9
    await back_up(client, workers, tmp_path / "backups", kind="cluster")
    assert [kept.last for kept in BackupFolder(tmp_path / "backups").read().ledgers] == [9]
    await workers.close()


async def test_an_entry_that_no_bookie_holds_ends_a_backup_by_its_ledger_s_name(
    tmp_path: Path,
) -> None:
    bookies = await Cluster.of(3)
    client, workers = bookies.client(), ThreadWorkers(asyncio.get_running_loop())
    ledger_id = await written(client, b"lost")
    for bookie in bookies.bookies:
        bookie.entries.clear()
    with pytest.raises(CannotRead, match=f"ledger {ledger_id}: no replica holds entry 0"):
        await back_up(client, workers, tmp_path / "backups", kind="cluster")
    await workers.close()


@pytest.mark.parametrize("ended", [False, True])
async def test_a_writer_that_never_pauses_is_not_followed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    bookies = await Cluster.of(3)
    client, workers = bookies.client(), ThreadWorkers(asyncio.get_running_loop())
    writer = await unannounced(bookies, client, 10)
    reads: list[ReadRequest] = []

    def appending(bookie: ScriptedBookie) -> Reading:
        read = bookie.read

        async def called(request: ReadRequest) -> ReadReply:
            assert len(reads) < 200, "it goes after the writer"
            reads.append(request)
            await writer.append_many([b"more"] * 3)
            return await read(request)

        return called

    for bookie in bookies.bookies:
        monkeypatch.setattr(bookie, "read", appending(bookie))
    if ended:
        assert await end_of(workshop_of(client), writer.ledger_id) >= 9
    else:
        await back_up(client, workers, tmp_path / "backups", kind="cluster")
        (kept,) = BackupFolder(tmp_path / "backups").read().ledgers
        assert kept.last >= 9
    await workers.close()


async def test_an_end_is_told_where_bookies_of_later_entries_are_away() -> None:
    bookies = await Cluster.of(4)
    client = bookies.client(replace(QUICK, stripe_entries=2))
    for bookie in bookies.bookies:
        bookie.confirm = lambda *_: None  # type: ignore[method-assign]
    writer = await client.create_ledger(4, 2, 2)
    for number in range(4):
        await writer.append(b"%d" % number)
    ensemble = (await client.ledger_metadata(writer.ledger_id)).fragments[0].ensemble
    for index in (3, 0):
        bookies.at(ensemble, index).mute = True
    assert await end_of(workshop_of(client), writer.ledger_id) == 3

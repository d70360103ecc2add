"""A whole store, backed up while it works, becomes a store again that nobody can tell from it."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner, Result

from engine import cluster
from engine.errors import NoSuchLedger
from engine.ports.system_workers import ThreadWorkers
from herdbook.archive import BackupFolder, back_up
from herdbook.archive.manifest import UNFINISHED
from herdbook.book import AsyncBook, open_async
from herdbook.cli.main import app
from tests.acceptance.machines import ROOT
from tests.herdbook.whole_stores import Held, add_users, fill, given, held_in


class Backed(NamedTuple):
    """A store, a folder with two backups of it, and what the store held at the second one.

    `acknowledged` are rows that were committed before the first one was begun; during it others
    were written.
    """

    store: Path
    backups: Path
    held: Held
    ids: dict[str, Any]
    acknowledged: int


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"HERDBOOK_URL": ""})


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


class Writers:
    """Writers in two tables of one transaction, and of objects that are named by their content."""

    def __init__(self, book: AsyncBook) -> None:
        self._book = book
        self._ending = False
        self._written = asyncio.Event()
        self.rows = 0
        self.objects = 0

    async def transfer(self) -> None:
        session = await self._book.herd.session("farm", autocommit=False)
        while not self._ending:
            number = self.rows
            await session.execute(f"INSERT INTO debit VALUES ({number}, {number * 7})")
            await session.execute(f"INSERT INTO credit VALUES ({number}, {number * 7})")
            await session.execute("COMMIT")
            self.rows += 1
            self._written.set()
        await session.close()

    async def put(self) -> None:
        bucket = await self._book.blobs.create_bucket("written")
        rng = random.Random(3)
        while not self._ending:
            number = rng.randrange(20_000, 200_000)
            await bucket.put(f"{number}-{self.objects}", b"%d" % number * 5)
            self.objects += 1
            self._written.set()
            if self.objects % 3 == 0:
                await bucket.delete(f"{number}-{self.objects - 1}")

    async def until(self, rows: int) -> None:
        while self.rows < rows or self.objects < 5:
            self._written.clear()
            await self._written.wait()

    async def __aenter__(self) -> "Writers":
        session = await self._book.herd.session("farm")
        for name in ("debit", "credit"):
            await session.execute(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, milk BIGINT)")
        await session.close()
        self._tasks = [asyncio.create_task(work()) for work in (self.transfer, self.put)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)


async def made(store: Path, backups: Path) -> tuple[dict[str, Any], int]:
    """Fill a store, and back it up while writers are at work; what was acknowledged before."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with open_async(store) as book:
            await fill(book)
            await add_users(book)
            ids = await given(book)
            async with Writers(book) as writers:
                await writers.until(20)
                acknowledged = writers.rows
                await back_up(book.ledgers, workers, backups, kind="folder")
                await writers.until(acknowledged + 20)
    finally:
        await workers.close()
    return ids, acknowledged


@pytest.fixture(scope="module")
def backed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backed]:
    folder = tmp_path_factory.mktemp("whole")
    store, backups = folder / "store", folder / "backups"
    ids, acknowledged = asyncio.run(made(store, backups))
    held = asyncio.run(held_in(store))
    told(call("store", "backup", backups, "--url", store, "--json"))
    yield Backed(store, backups, held, ids, acknowledged)


@pytest.fixture
def copy(backed: Backed, tmp_path: Path) -> Path:
    """A copy of the backups, to be spoilt."""
    return shutil.copytree(backed.backups, tmp_path / "backups")


def test_a_store_made_of_a_backup_holds_the_same_byte_for_byte_and_row_for_row(
    backed: Backed, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    answer = told(call("store", "restore", backed.backups, "--url", again, "--json"))
    assert answer["number"] == 2 and answer["written"] == answer["ledgers"]
    assert asyncio.run(held_in(again)) == backed.held
    assert [principal.name for principal, _ in backed.held["users"]] == ["ann", "bob"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again"]
    checked = told(call("store", "check", "--url", again, "--json"))
    assert checked["whole"] and checked["ledgers"] > 0

    async def by_id() -> None:
        async with open_async(again) as book:
            assert await book.blobs.get(backed.ids["object"]) == b"no bucket" * 1_000
            assert await book.blobs.get(backed.ids["unnamed"]) == b"no name" * 1_000
            reader = await book.ledgers.open_ledger(backed.ids["open"])
            assert [entry.body async for entry in reader.read(0, 0)] == [b"it stays open"]
            assert reader.closed and reader.last_add_confirmed == 0

    asyncio.run(by_id())


def test_the_new_store_takes_writes_and_gives_no_ledger_an_id_that_was_given_before(
    backed: Backed, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    told(call("store", "restore", backed.backups, "--url", again, "--json"))
    highest = BackupFolder(backed.backups).read().next_id

    async def work() -> None:
        async with open_async(again) as book:
            session = await book.herd.session("farm")
            await session.execute("INSERT INTO cow VALUES (-1, 'Elsa', 7)")
            found = await session.execute("SELECT id FROM cow WHERE name = 'Elsa'")
            assert list(found.rows) == [(-1,)]
            bucket = await book.blobs.bucket("photos")
            await bucket.put("new", b"moo")
            assert await bucket.get("new") == b"moo"
            tasks = await book.tasks()
            before = (await tasks.list(limit=1_000)).tasks[-1].id
            handle = await tasks.submit("milk", {"cow": 99})
            assert int(handle) > before
            writer = await book.ledgers.create_ledger()
            assert writer.ledger_id > highest
            await writer.close()
            await session.close()

    asyncio.run(work())


def test_a_backup_taken_beside_writers_has_whole_transactions_and_every_object_it_names(
    backed: Backed, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    told(call("store", "restore", backed.backups, "--url", again, "--number", 1, "--json"))

    async def look() -> None:
        async with open_async(again) as book:
            session = await book.herd.session("farm")
            debits = (await session.execute("SELECT id, milk FROM debit ORDER BY id")).rows
            credits = (await session.execute("SELECT id, milk FROM credit ORDER BY id")).rows
            await session.close()
            assert debits == credits and len(debits) >= backed.acknowledged >= 20
            assert [number for number, _ in debits] == list(range(len(debits)))
            bucket = await book.blobs.bucket("written")
            names = [info.name async for info in bucket.scan()]
            assert len(names) >= 3
            for name in names:
                assert await bucket.get(name) == name.partition("-")[0].encode() * 5

    asyncio.run(look())


def test_a_second_backup_copies_what_is_new_and_an_old_one_goes_with_its_files(
    backed: Backed, copy: Path
) -> None:
    third = told(call("store", "backup", copy, "--url", backed.store, "--keep", 1, "--json"))
    assert third["number"] == 3 and third["ledgers_copied"] < third["ledgers"] / 2
    assert BackupFolder(copy).numbers() == [3]
    found = told(call("store", "check", copy, "--json"))
    assert found["whole"] and found["ledgers"] == third["ledgers"] and not found["unfinished"]
    assert len(list((copy / "ledgers").iterdir())) == third["ledgers"]
    gone = call("store", "check", copy, "--number", 1)
    assert gone.exit_code == 1 and "has no backup 1, but 3" in gone.stderr


@pytest.mark.parametrize("at", [9, 200, -3])
def test_a_byte_that_changed_is_found_and_nothing_is_made_of_such_a_backup(
    copy: Path, tmp_path: Path, at: int
) -> None:
    file = max((copy / "ledgers").iterdir(), key=lambda each: each.stat().st_size)
    spoilt = bytearray(file.read_bytes())
    spoilt[at] ^= 1
    file.write_bytes(spoilt)
    checked = call("store", "check", copy, "--json")
    facts = json.loads(checked.stdout)
    assert checked.exit_code == 1 and not facts["whole"]
    assert len(facts["damaged"]) == 1 and file.name in facts["damaged"][0]
    refused = call("store", "restore", copy, "--url", tmp_path / "again")
    assert refused.exit_code == 1 and "backup 2 is not whole" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "again").exists()


def test_a_file_that_is_gone_and_one_that_is_cut_short_are_told_apart(copy: Path) -> None:
    largest, *_, smallest = sorted(
        (copy / "ledgers").iterdir(), key=lambda each: each.stat().st_size, reverse=True
    )
    largest.write_bytes(largest.read_bytes()[:-20])
    smallest.unlink()
    facts = json.loads(call("store", "check", copy, "--json").stdout)
    assert [smallest.name in each for each in facts["missing"]] == [True]
    assert [largest.name in each for each in facts["damaged"]] == [True]
    assert "cut short" in facts["damaged"][0]


def test_a_newer_format_is_refused_by_its_number(copy: Path, tmp_path: Path) -> None:
    manifest = copy / "000002.manifest"
    blob = bytearray(manifest.read_bytes())
    blob[7] = 9
    manifest.write_bytes(blob)
    for command in (("check", copy), ("restore", copy, "--url", tmp_path / "again")):
        answer = call("store", *command)
        assert answer.exit_code == 1, answer.output
        assert "FormatTooNew" in answer.stderr and "has format 9" in answer.stderr
    assert not (tmp_path / "again").exists()


KILLED_BACKUP = """
import asyncio, os, signal, sys
from pathlib import Path
from engine import cluster
from engine.ports.system_workers import ThreadWorkers
from herdbook.archive import back_up

def step(done, total, size_bytes):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    workers = ThreadWorkers(asyncio.get_running_loop())
    async with cluster.open(Path(sys.argv[1])) as client:
        await back_up(client, workers, Path(sys.argv[2]), kind="folder", progress=step)

asyncio.run(main())
"""
KILLED_RESTORE = """
import asyncio, os, signal, sys
from pathlib import Path
from engine.ports.system_workers import ThreadWorkers
from herdbook.archive import restore_folder

def step(done, total, size_bytes):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    workers = ThreadWorkers(asyncio.get_running_loop())
    await restore_folder(workers, Path(sys.argv[1]), Path(sys.argv[2]), progress=step)

asyncio.run(main())
"""


def killed(program: str, *arguments: Path) -> None:
    """Run a program that kills itself when three ledgers are done."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def test_a_backup_that_was_killed_is_no_backup_and_the_next_one_goes_on(
    backed: Backed, tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    killed(KILLED_BACKUP, backed.store, backups)
    assert (backups / UNFINISHED).exists() and list((backups / "ledgers").iterdir())
    checked = call("store", "check", backups)
    assert checked.exit_code == 1 and "no backup in it was finished" in checked.stderr
    refused = call("store", "restore", backups, "--url", tmp_path / "again")
    assert refused.exit_code == 1 and not (tmp_path / "again").exists()
    answer = told(call("store", "backup", backups, "--url", backed.store, "--json"))
    assert answer["ledgers_copied"] <= answer["ledgers"] - 3
    assert told(call("store", "check", backups, "--json"))["whole"]
    assert not [each for each in (backups / "ledgers").iterdir() if each.suffix != ".ledger"]


def test_a_restoration_that_was_killed_shows_nothing_and_the_next_one_goes_on(
    backed: Backed, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    killed(KILLED_RESTORE, backed.backups, again)
    assert not again.exists() and (tmp_path / "again.restoring").is_dir()
    other = call("store", "restore", backed.backups, "--url", again, "--number", 1)
    assert other.exit_code == 1 and "another backup was being restored" in other.stderr
    answer = told(call("store", "restore", backed.backups, "--url", again, "--json"))
    assert answer["written"] <= answer["ledgers"] - 3
    assert asyncio.run(held_in(again)) == backed.held
    assert not (tmp_path / "again.restoring").exists()


def test_what_is_not_empty_is_not_restored_into_and_not_backed_up_into(
    backed: Backed, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear Elsa")
    refused = call("store", "restore", backed.backups, "--url", tmp_path / "mine")
    assert refused.exit_code == 1 and "is not empty" in refused.stderr
    refused = call("store", "backup", tmp_path / "mine", "--url", backed.store)
    assert refused.exit_code == 1 and "something else than backups" in refused.stderr
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["letter"]


def test_a_folder_of_backups_is_of_one_store_and_one_writer(backed: Backed, copy: Path) -> None:
    other = copy.parent / "other"

    async def make() -> None:
        async with cluster.open(other) as client:
            await (await client.create_ledger()).close()

    asyncio.run(make())
    refused = call("store", "backup", copy, "--url", other)
    assert refused.exit_code == 1 and "backups of another store" in refused.stderr
    with ExitStack() as stack:
        stack.enter_context(BackupFolder(copy).writing(BackupFolder(copy).read().cluster_id))
        refused = call("store", "backup", copy, "--url", backed.store)
    assert refused.exit_code == 1 and "another backup is being written" in refused.stderr


def test_a_ledger_that_went_while_it_was_copied_begins_another_cut(
    backed: Backed, tmp_path: Path
) -> None:
    store = shutil.copytree(backed.store, tmp_path / "store")

    async def work() -> list[int]:
        workers = ThreadWorkers(asyncio.get_running_loop())
        gone: list[int] = []
        async with cluster.open(store) as client:
            writers = [await client.create_ledger() for _ in range(12)]
            for writer in writers:
                await writer.append(b"soon gone")

            def step(done: int, total: int, size_bytes: int) -> None:
                # Deleted behind the look at all ledgers, before most of them were read.
                if done == 1 and not gone and total > len(writers):
                    gone.extend(writer.ledger_id for writer in writers)
                    deleting.append(asyncio.gather(*map(client.delete_ledger, gone)))

            deleting: list[Any] = []
            await back_up(client, workers, tmp_path / "backups", kind="folder", progress=step)
            await asyncio.gather(*deleting)
            with pytest.raises(NoSuchLedger):
                await client.open_ledger(gone[0])
        await workers.close()
        return gone

    assert len(asyncio.run(work())) == 12
    assert told(call("store", "check", tmp_path / "backups", "--json"))["whole"]

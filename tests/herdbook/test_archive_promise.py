"""What was acknowledged before a backup began is in it, whatever is written meanwhile."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.ports.system_workers import ThreadWorkers
from herdbook.archive import back_up, check_backup, restore_folder
from herdbook.book import AsyncBook, open_async

EACH = 4
"""How many of each kind are acknowledged before the backup begins, and while it is made."""


class Acknowledged:
    """Writers of rows, objects, tasks and entries, and how many of each were answered so far."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("rows", "objects", "ids", "tasks", "entries"), 0)
        self.ids: list[str] = []
        self.tasks: list[int] = []
        self._ending = False
        self._more = asyncio.Event()

    async def begin(self, book: AsyncBook) -> None:
        """Start all writers, each of which waits for one answer before it asks for more."""
        session = await book.herd.session("default")
        await session.execute("CREATE TABLE cow (id BIGINT PRIMARY KEY)")
        bucket, tasks = await book.blobs.create_bucket("photos"), await book.tasks()
        writer = await book.ledgers.create_ledger()
        self._ledger_id = writer.ledger_id

        async def insert(number: int) -> None:
            await session.execute(f"INSERT INTO cow VALUES ({number})")
            self.counts["rows"] += 1

        async def put(number: int) -> None:
            await bucket.put(str(number), b"%d" % number * 9_000)
            self.counts["objects"] += 1
            self.ids.append(str(await book.blobs.put(b"%d" % number)))
            self.counts["ids"] += 1

        async def submit(number: int) -> None:
            # One of the payloads is an object.
            moo = "moo" * (400_000 if number == 2 else 1)
            self.tasks.append(int(await tasks.submit("milk", {"cow": number, "says": moo})))
            self.counts["tasks"] += 1

        async def append(number: int) -> None:
            assert await writer.append(b"%d" % number) == number
            self.counts["entries"] += 1

        self._writers = [
            asyncio.create_task(self._write(step)) for step in (insert, put, submit, append)
        ]

    async def until(self, count: int) -> None:
        """Wait for so many answers of each kind."""
        while min(self.counts.values()) < count:
            self._more.clear()
            await self._more.wait()
            for writer in self._writers:
                assert not writer.done(), writer.exception()

    async def end(self) -> None:
        """Let each writer have the answer that it waits for."""
        self._ending = True
        await asyncio.gather(*self._writers)

    async def compare(self, book: AsyncBook, counts: dict[str, int]) -> None:
        """So many of each, the first ones, are in another store, whole."""
        session = await book.herd.session("default")
        rows = [row[0] for row in (await session.execute("SELECT id FROM cow ORDER BY id")).rows]
        await session.close()
        assert rows == list(range(len(rows))) and len(rows) >= counts["rows"]
        bucket, tasks = await book.blobs.bucket("photos"), await book.tasks()
        for number in range(counts["objects"]):
            assert await bucket.get(str(number)) == b"%d" % number * 9_000
        for number, name in enumerate(self.ids[: counts["ids"]]):
            assert await book.blobs.get(name) == b"%d" % number
        for number, task_id in enumerate(self.tasks[: counts["tasks"]]):
            assert json.loads(await tasks.payload(task_id))["cow"] == number
        reader = await book.ledgers.open_ledger(self._ledger_id)
        bodies = [each.body async for each in reader.read(0, reader.last_add_confirmed)]
        assert bodies == [b"%d" % number for number in range(len(bodies))]
        assert len(bodies) >= counts["entries"]

    async def _write(self, step: Callable[[int], Awaitable[None]]) -> None:
        number = 0
        try:
            while not self._ending:
                await step(number)
                number += 1
                self._more.set()
        finally:
            asyncio.get_running_loop().call_soon(self._more.set)


def test_all_that_was_acknowledged_before_a_backup_began_is_in_it(tmp_path: Path) -> None:
    async def work() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop())
        writing = Acknowledged()
        async with open_async(tmp_path / "store", bookies=3) as book:
            await writing.begin(book)
            await writing.until(EACH)
            before = dict(writing.counts)
            await back_up(book.ledgers, workers, tmp_path / "backups", kind="folder")
            await writing.until(max(before.values()) + EACH)
            await writing.end()
        assert check_backup(tmp_path / "backups").whole
        await restore_folder(workers, tmp_path / "backups", tmp_path / "again")
        await workers.close()
        async with open_async(tmp_path / "again") as book:
            await writing.compare(book, before)

    asyncio.run(work())

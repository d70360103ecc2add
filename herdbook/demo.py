"""The demonstration: store a real folder, lose a bookie on the way, read everything back.

Invariants:
- A file counts as stored only after its put returned, and as read back only when its bytes hash
  to what was read from the folder.
- What cannot be read from the folder is reported and does not end the demonstration.
- Memory is bounded: a big file is streamed, and only so many files are under way at once.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeVar

from blobit import BlobError, ObjectId
from engine.limits import MIB
from engine.ports.clock import SystemClock
from engine.ports.system_workers import ThreadWorkers
from herdbook.book import AsyncBook, open_async
from herdbook.demo_report import Report
from herdbook.walk import Skipped, walk

BOOKIES: Final = 3
VICTIM: Final = 1
IDS_NAME: Final = "demo-ids.tsv"
FILES_AT_ONCE: Final = 64
WHOLE_FILE_BYTES_MAX: Final = 1 * MIB

T = TypeVar("T")
Step = Callable[[str, int, int], None]
"""Told of progress: what is done, bytes done, bytes in all."""


class Stored(NamedTuple):
    """One file in the store."""

    name: str
    object_id: ObjectId
    digest: bytes


class HashedFile:
    """An open file that hashes what is read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        """The next bytes."""
        data = self._file.read(size)
        self.sha256.update(data)
        return data


async def demonstrate(
    folder: Path,
    data: Path,
    step: Step,
    *,
    list_ids: bool = False,
    files_max: int | None = None,
) -> Report:
    """Store every file of `folder`, or as many, in the store at `data` and read them back.

    `list_ids` leaves a list of the files and their ids beside the store's own files.
    """
    report = Report(str(folder), str(data), BOOKIES)
    files, report.skipped = walk(folder)
    files = files[:files_max]
    sizes = {path: path.lstat().st_size for path in files}
    async with _opened(data) as (book, workers):
        storing = _Storing(book, workers, folder, report, step, sizes)
        stored = await storing.run(files)
        if list_ids:
            lines = sorted(f"{one.object_id}\t{one.name}\n" for one in stored)
            await workers.run(lambda: (data / IDS_NAME).write_text("".join(lines)))
            report.ids = str(data / IDS_NAME)
    async with _opened(data) as (book, workers):
        await book.ledgers.stop_bookie(VICTIM)
        await _Reading(book, report, step).run(stored)
        report.ledgers = len(await book.ledgers.list_ledgers())
        report.ledgers_to_repair = len(await book.ledgers.repairs())
    return report


@asynccontextmanager
async def _opened(data: Path) -> AsyncIterator[tuple[AsyncBook, ThreadWorkers]]:
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with open_async(data, bookies=BOOKIES) as book:
            yield book, workers
    finally:
        await workers.close()


class _Storing:
    """The first half: from the folder into the store."""

    def __init__(
        self,
        book: AsyncBook,
        workers: ThreadWorkers,
        folder: Path,
        report: Report,
        step: Step,
        sizes: dict[Path, int],
    ) -> None:
        self._book = book
        self._workers = workers
        self._folder = folder
        self._report = report
        self._step = step
        self._sizes = sizes
        self._total_bytes = sum(sizes.values())
        self._stored: list[Stored] = []
        self._clock = SystemClock()

    async def run(self, files: list[Path]) -> list[Stored]:
        """Store them, many at once; the bookie dies when about half of the bytes are in."""
        start = self._clock.monotonic()
        first = self._first_half(files)
        await _many(iter(files[:first]), self._store)
        self._report.killed = f"number {VICTIM + 1} of {BOOKIES}"
        await self._book.ledgers.stop_bookie(VICTIM)
        await _many(iter(files[first:]), self._store)
        self._report.store_s = self._clock.monotonic() - start
        return self._stored

    def _first_half(self, files: list[Path]) -> int:
        """How many files are stored before the bookie dies: about half of the bytes, not all."""
        count = size_bytes = 0
        while count < len(files) - 1 and 2 * size_bytes < self._total_bytes:
            size_bytes += self._sizes[files[count]]
            count += 1
        return count

    async def _store(self, path: Path) -> None:
        report = self._report
        try:
            object_id, digest = await self._put(path)
        except OSError as error:
            report.skipped.append(Skipped(str(path), error.strerror or "not readable"))
            return
        except BlobError as error:
            report.different.append(f"{path}: {error}")
            return
        self._stored.append(Stored(str(path.relative_to(self._folder)), object_id, digest))
        report.files += 1
        report.size_bytes += object_id.length
        report.entries += object_id.entry_count
        kind = path.suffix or "no suffix"
        report.kinds[kind] += 1
        report.kind_bytes[kind] += object_id.length
        report.files_after_kill += bool(report.killed)
        self._step("storing", report.size_bytes, self._total_bytes)

    async def _put(self, path: Path) -> tuple[ObjectId, bytes]:
        if self._sizes[path] > WHOLE_FILE_BYTES_MAX:
            with await self._workers.run(lambda: path.open("rb")) as file:
                hashed = HashedFile(file)
                object_id = await self._timed(self._book.blobs.put(hashed))
            return object_id, hashed.sha256.digest()
        data = await self._workers.run(path.read_bytes)
        object_id = await self._timed(self._book.blobs.put(data))
        return object_id, hashlib.sha256(data).digest()

    async def _timed(self, putting: Awaitable[ObjectId]) -> ObjectId:
        start = self._clock.monotonic()
        object_id = await putting
        self._report.put_s.append(self._clock.monotonic() - start)
        return object_id


class _Reading:
    """The second half: from the store back, compared with what the folder held."""

    def __init__(self, book: AsyncBook, report: Report, step: Step) -> None:
        self._book = book
        self._report = report
        self._step = step
        self._read_bytes = 0

    async def run(self, stored: list[Stored]) -> None:
        """Read them all, many at once, with nothing but their ids."""
        clock = SystemClock()
        start = clock.monotonic()
        await _many(iter(stored), self._compare)
        self._report.read_s = clock.monotonic() - start

    async def _compare(self, stored: Stored) -> None:
        sha256 = hashlib.sha256()
        try:
            async for piece in self._book.blobs.stream(str(stored.object_id)):
                sha256.update(piece)
        except BlobError as error:
            self._report.different.append(f"{stored.name}: {error}")
            return
        if sha256.digest() != stored.digest:
            self._report.different.append(stored.name)
            return
        self._report.read_back += 1
        self._read_bytes += stored.object_id.length
        self._step("reading back", self._read_bytes, self._report.size_bytes)


async def _many(items: Iterator[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Work on all items, `FILES_AT_ONCE` of them at a time."""

    async def lane() -> None:
        for item in items:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(FILES_AT_ONCE):
            group.create_task(lane())

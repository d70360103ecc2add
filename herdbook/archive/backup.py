"""A backup of a whole store, taken while it works: every ledger, and the keys that name them.

Ledgers never change, so what an earlier backup in the folder has is not read again. First what is
closed is copied, however long that takes; then comes the cut, a moment to which the store is
brought back later; then the logs up to there, and what was written meanwhile.

Invariants:
- Bytes are durable before anything names them. So whatever the tablespaces name at the cut was
  there at the cut, and is copied after it, or was before.
- A ledger that is deleted before it was copied begins another cut: nothing that one names lacks.
- Nothing of the store is changed, nor is anything kept from its own collection of garbage.
- What is held in memory is a few reads of each ledger that is under way, however large the store.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from engine.cluster import Engine
from engine.errors import CannotRead, EngineError, NoSuchEntry, NoSuchLedger, Unavailable
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.limits import ENTRY_ID_MAX
from engine.metadata.bookies import Bookies
from engine.metadata.ledgers import LedgerMetadata
from engine.metadata.lost_logs import LOG_OWNER, OWNER
from engine.metadata.restoring import check_not_under_way
from engine.ports.workers import Workers
from engine.repair.outlook import Workshop
from engine.repair.survey import survey
from engine.run import NO_ENTRY
from herdbook.archive.apart import check_apart
from herdbook.archive.cut import Cut, Moved, beyond, check_checkpoints, reader_of, take_cut
from herdbook.archive.ledger_file import LedgerFileWriter, check_end, read_blocks
from herdbook.archive.manifest import BackupFolder, KeptLedger, StoreManifest

KEEP: Final = 7
CUTS_MAX: Final = 20
_AT_ONCE: Final = 4
_STAGING: Final = b"herd-staging"

Progress = Callable[[int, int, int], None]
"""Called with how many ledgers are done, how many there are, and how many bytes were read."""


class Backed(msgspec.Struct, frozen=True):
    """What a backup did. Sizes in bytes: of entries in the store, and of files written now.

    `unreadable`: what is wrong with earlier backups that are kept; then nothing was removed.
    """

    number: int
    ledgers: int
    ledgers_copied: int
    length: int
    written_bytes: int
    seconds: float
    unreadable: tuple[str, ...] = ()


async def back_up(
    client: LedgerClient,
    workers: Workers,
    path: Path,
    *,
    kind: str,
    keep: int = KEEP,
    progress: Progress | None = None,
) -> Backed:
    """Write a backup of a whole store into a folder with earlier ones; keeps the newest `keep`.

    `kind` says, for people, what the store is: a folder or a cluster. Raises `CannotRead`
    for a ledger that no bookie can return, `InvalidRequest` for a folder inside the store's folder
    or around it, `Unavailable` (also if the logs keep changing, or a backup is being restored into
    the store), `FolderLocked`, `FolderMismatch`, `OSError`. The next backup need not copy again
    what a failed one has copied.
    """
    workshop = Workshop(
        store=client.store, transport=client.transport, clock=client.clock, rng=client.rng
    )
    if isinstance(client, Engine):
        await workers.run(partial(check_apart, path, client.path))
    await check_not_under_way(client.store)
    folder = BackupFolder(path)
    with contextlib.ExitStack() as stack:
        number = stack.enter_context(folder.writing(client.store.cluster_id))
        copying = _Copying(workshop, workers, folder, progress)
        begun_ms, begun_s = client.clock.wall_ms(), client.clock.monotonic()
        found = await _all(workshop)
        await copying.copy(_closed(found))
        cut, kept = await copying.cut_and_copy(found)
        manifest = await _named(workshop, number, kind, begun_ms, cut, kept)
        await workers.run(partial(folder.finish, manifest))
        unreadable = await workers.run(partial(folder.forget, keep))
        return Backed(
            number=number,
            ledgers=len(kept),
            ledgers_copied=copying.copied,
            length=manifest.length,
            written_bytes=copying.written_bytes,
            seconds=round(client.clock.monotonic() - begun_s, 3),
            unreadable=tuple(unreadable),
        )


async def _named(
    workshop: Workshop, number: int, kind: str, begun_ms: int, cut: Cut, kept: list[KeptLedger]
) -> StoreManifest:
    """The manifest of what was copied."""
    return StoreManifest(
        number=number,
        cluster_id=workshop.store.cluster_id,
        kind=kind,
        version=version("herdbook"),
        begun_ms=begun_ms,
        cut_ms=cut.at_ms,
        finished_ms=workshop.clock.wall_ms(),
        bookies=len(await Bookies(workshop.store).known()),
        # Behind all copying: ledgers that came after the cut are in it, too.
        next_id=await workshop.ledgers.new_id(),
        keys=cut.keys,
        ledgers=tuple(kept),
        one_moment=True,
    )


class _Copying:
    """One backup under way."""

    def __init__(
        self, workshop: Workshop, workers: Workers, folder: BackupFolder, progress: Progress | None
    ) -> None:
        self._workshop = workshop
        self._workers = workers
        self._folder = folder
        self._progress = progress
        self._done = self._total = self._read_bytes = 0
        self.copied = 0
        self.written_bytes = 0

    async def cut_and_copy(self, found: Sequence[LedgerMetadata]) -> tuple[Cut, list[KeptLedger]]:
        """Take a cut and copy all that it names; again where some of it went meanwhile."""
        for _ in range(CUTS_MAX):
            cut = await take_cut(self._workshop, found)
            with contextlib.suppress(Moved):
                wanted = _wanted(await _all(self._workshop), cut)
                # Behind the look at all ledgers: what is kept yet was there then.
                await check_checkpoints(self._workshop.store, cut)
                return cut, await self.copy(wanted, cut.ends)
        raise Unavailable("ledgers go faster than they can be copied: try again")

    async def copy(
        self, wanted: Sequence[LedgerMetadata], ends: dict[int, int] | None = None
    ) -> list[KeptLedger]:
        """Copy ledgers that are not there yet, some at a time.

        Raises `Moved` if one of a cut (`ends`) has gone; before it there is nothing to belong to.
        """
        self._done, self._total = 0, len(wanted)
        self._tell()
        kept: list[KeptLedger] = []
        queue = iter(wanted)

        async def work() -> None:
            for metadata in queue:
                try:
                    kept.append(await self._copy(metadata, (ends or {}).get(metadata.ledger_id)))
                except Moved:
                    if ends is not None:
                        raise
                self._done += 1
                self._tell()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return sorted(kept, key=lambda one: one.ledger_id)

    async def _copy(self, metadata: LedgerMetadata, end: int | None) -> KeptLedger:
        """Copy one ledger up to `end` (None: all of it), unless its file is there."""
        last = metadata.last_entry if end is None else end
        if last is not None:
            found = await self._workers.run(partial(self._there, metadata, last))
            if found is not None:
                return found
        try:
            async with await reader_of(self._workshop, metadata) as reader:
                return await self._write(reader, metadata, last)
        except NoSuchLedger as error:
            raise Moved from error
        except NoSuchEntry as error:
            # It is there yet: the reader has looked since.
            raise CannotRead(str(error)) from error

    def _there(self, metadata: LedgerMetadata, last: int) -> KeptLedger | None:
        """A ledger that an earlier backup has, if that can be read. Blocks.

        Of a closed one the end is looked at, and all of it where a check has found it damaged.
        """
        ledger_id, length = metadata.ledger_id, metadata.length
        path = self._folder.ledger(ledger_id, last)
        doubted = self._folder.doubt(ledger_id, last).exists()
        try:
            if length is not None and metadata.last_entry == last and not doubted:
                check_end(path, last, length)
            else:
                blocks = read_blocks(path, ledger_id, last)
                length = sum(sum(map(len, bodies)) for bodies in blocks)
        except (EngineError, OSError):
            # Not there, or to be written again.
            return None
        return _kept(metadata, last, length)

    async def _write(
        self, reader: LedgerReader, metadata: LedgerMetadata, last: int | None
    ) -> KeptLedger:
        # How far an open one goes is known when it was read.
        name = metadata.ledger_id, NO_ENTRY - 1 if last is None else last
        path = self._folder.ledger(*name)
        run = self._workers.run
        with LedgerFileWriter(path, metadata.ledger_id) as file:
            async with aclosing(_batches(reader, last)) as batches:
                async for bodies in batches:
                    await run(partial(file.add, bodies))
                    self._read_bytes += sum(map(len, bodies))
                    self._tell()
            if last is not None and file.last != last:
                raise Moved
        if last is None:
            await run(partial(path.replace, self._folder.ledger(metadata.ledger_id, file.last)))
        self.copied += 1
        self.written_bytes += file.size_bytes
        return _kept(metadata, file.last, file.length)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total, self._read_bytes)


async def _batches(reader: LedgerReader, last: int | None) -> AsyncGenerator[list[bytes], None]:
    """A ledger's entries up to `last`, or as far as they are there."""
    done = NO_ENTRY
    # Who reads may hear of a later end: of that of a ledger that was closed meanwhile.
    while done < (known := min(reader.last_add_confirmed, ENTRY_ID_MAX if last is None else last)):
        async with aclosing(reader.read_batches(done + 1, known)) as batches:
            async for batch in batches:
                yield [entry.body for entry in batch]
        done = known
    if done == last or reader.closed:
        return
    async with aclosing(beyond(reader, done + 1)) as entries:
        async for entry in entries:
            if last is not None and entry.entry_id > last:
                return
            yield [entry.body]


async def _all(workshop: Workshop) -> list[LedgerMetadata]:
    """The metadata of all ledgers. Raises `CannotRead` where some cannot be read."""
    found = [metadata async for metadata in survey(workshop)]
    if workshop.unreadable:
        ledger_id, why = next(iter(workshop.unreadable.items()))
        raise CannotRead(
            f"the metadata of {len(workshop.unreadable)} ledgers cannot be read, of {ledger_id} "
            f"for one: {why}; mend or delete them first (`herdbook ledger ls`)"
        )
    return found


def _closed(found: Iterable[LedgerMetadata]) -> list[LedgerMetadata]:
    """What can be copied before the cut: logs drop theirs all the time, so they come after it."""
    return [one for one in found if one.closed and not _of_a_log(one) and not _staged(one)]


def _wanted(found: Iterable[LedgerMetadata], cut: Cut) -> list[LedgerMetadata]:
    """What belongs to a cut, logs first: they go soonest. Raises `Moved` if some of it is gone."""
    there = [one for one in found if not _staged(one)]
    logs = [one for one in there if one.ledger_id in cut.logs]
    if len(logs) != len(cut.logs):
        raise Moved
    return logs + [one for one in there if not _of_a_log(one)]


def _of_a_log(metadata: LedgerMetadata) -> bool:
    return metadata.custom.get(OWNER, b"").startswith(LOG_OWNER)


def _staged(metadata: LedgerMetadata) -> bool:
    """Whether it holds rows on their way into a table: nobody is to go on with them."""
    return metadata.custom.get(OWNER) == _STAGING


def _kept(metadata: LedgerMetadata, last: int, length: int) -> KeptLedger:
    return KeptLedger(
        ledger_id=metadata.ledger_id,
        last=last,
        length=length,
        ensemble=metadata.ensemble_size,
        write_quorum=metadata.write_quorum,
        ack_quorum=metadata.ack_quorum,
        stripe_entries=metadata.stripe_entries,
        key_hash=metadata.key_hash,
        created_ms=metadata.created_ms,
        custom=metadata.custom,
    )

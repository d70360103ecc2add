"""Taking checkpoints on the leader: a copy, a child that builds pages, a ledger, one name.

Invariants:
- Nothing of it is on the event loop but the handing of ready bytes to a ledger, piece by piece.
- What a checkpoint wrote is in one ledger of its own, whose metadata name its owner and epoch; one
  that ends on the way leaves a ledger that nobody names, for the sweep.
- A ledger goes only when no manifest that is kept names it.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec

from engine.errors import (
    CannotRead,
    Deposed,
    EngineError,
    FormatTooNew,
    NotFound,
    PositionTruncated,
)
from engine.ledger.client import LedgerClient
from engine.log import Position, ReplicatedLog
from engine.ports.clock import Clock
from engine.ports.workers import Workers
from engine.transport.contract import PURPOSE
from herd.checkpoint.blobs import BlobWriter, read_blob, read_page
from herd.checkpoint.child import ReadPage, run_child
from herd.checkpoint.manifest import (
    Checkpoints,
    Locator,
    Manifest,
    ManifestRecord,
    Page,
    TablePages,
    decode_manifest,
    encode_manifest,
)
from herd.checkpoint.order import NEW, PAGE_ROWS, Order
from herd.checkpoint.record import KEEP, CheckpointList
from herd.reading_log import log_of

_logger = logging.getLogger(__name__)
OWNER: Final = "owner"
EPOCH: Final = "epoch"
CHECKPOINT: Final = b"checkpoint"
_PIN: Final = "checkpoints"
_PIN_MS: Final = 10 * 365 * 24 * 3_600_000
"""The pin on the log moves on with each checkpoint; where none is taken any more, nothing grows."""
_LIVE_SHARE_MIN: Final = 0.5
"""Ledgers of which less is in use are written anew."""


Build = Callable[[Order, ReadPage], Awaitable[bytes]]
"""Carries out an order, as `herd.checkpoint.building` does, which may ask for pages."""


class Copied(Protocol):
    """A state that can be copied by links."""

    async def copy_to(self, path: Path) -> Position:
        """See `StoredState.copy_to`."""
        ...


class Checkpointer:
    """Takes the checkpoints of one tablespace. `folder` is for what is under way."""

    def __init__(
        self,
        client: LedgerClient,
        tablespace: str,
        state: Copied,
        workers: Workers,
        folder: Path,
        *,
        page_rows: int = PAGE_ROWS,
        keep: int = KEEP,
        build: Build | None = None,
    ) -> None:
        """`build` makes the pages; unless it is given, a child process does.

        `keep` checkpoints stay, the pinned ones aside, and the log from the oldest of them on.
        """
        self.list = CheckpointList(client.store, tablespace, client.time)
        self._client = client
        self._clock: Clock = client.clock
        self._tablespace = tablespace
        self._state = state
        self._workers = workers
        self._folder = folder
        self._page_rows = page_rows
        self._keep = keep
        self._log = ReplicatedLog(client, log_of(tablespace))
        self.build = build or run_child
        self._one_at_a_time = asyncio.Lock()
        self._manifests: dict[ManifestRecord, Manifest] = {}

    async def take(self, epoch: int) -> ManifestRecord:
        """Take a checkpoint of now, in the term of an epoch, and name it.

        Raises `Deposed`, `StateFailed`, `CannotRead` (the child failed), and what writing raises.
        """
        async with self._one_at_a_time:
            held = await self.list.claim(epoch)
            # A child that outlived a killed leader still has the names of its own folder alone.
            work = self._folder / f"{self._client.rng.getrandbits(64):016x}"
            await self._workers.run(partial(_emptied, self._folder, work))
            try:
                built = await self._build(held, epoch, work)
                record = await self._store(built, epoch, work)
            finally:
                await self._workers.run(partial(_removed, self._folder))
            try:
                kept = await self.list.add(record, self._keep)
            except Deposed:
                # It can no longer be listed, and perhaps no later leader will sweep it.
                await _dropped(self._client, record.locator.ledger_id)
                raise
            await self._keep_log(kept)
            await self._drop(held, kept)
            return record

    async def _keep_log(self, checkpoints: Checkpoints) -> None:
        """Keep what leads from the oldest checkpoint to every later moment, as far as it is there.

        The replica itself needs no more than what came after its last snapshot.
        """
        for record in checkpoints.kept:
            try:
                await self._log.pin(_PIN, record.position, _PIN_MS)
                return
            except PositionTruncated:
                continue
            except EngineError as error:
                name = self._tablespace
                _logger.warning("the log of %s is not kept for its checkpoints: %s", name, error)
                return

    async def manifest(self, record: ManifestRecord) -> Manifest:
        """A checkpoint's manifest. Raises `CannotRead`, `NoSuchLedger`."""
        found = self._manifests.get(record)
        if found is None:
            found = decode_manifest(await read_blob(self._client, record.locator))
            self._manifests[record] = found
        return found

    async def sweep(self, epoch: int) -> list[int]:
        """Delete ledgers that older terms began and nobody names; returns them.

        Raises `Deposed`, and the errors of `manifest`, because the manifests must be read to know
        which ledgers they name. An older leader may still be writing a ledger, but it can no longer
        add it to the list.
        """
        named = await self._named(await self.list.claim(epoch))
        swept = []
        for ledger_id in await self._client.owners.ledgers_of(self._owner):
            if ledger_id in named:
                continue
            try:
                custom = (await self._client.ledger_metadata(ledger_id)).custom
                if custom.get(OWNER) == self._owner and int(custom.get(EPOCH, b"0")) < epoch:
                    await self._client.delete_ledger(ledger_id)
                    swept.append(ledger_id)
            except (NotFound, CannotRead, FormatTooNew):
                continue
        return swept

    @property
    def _owner(self) -> bytes:
        return b"herd:" + self._tablespace.encode()

    async def _build(self, held: Checkpoints, epoch: int, work: Path) -> Manifest:
        """Copy the state and let a child make the pages."""
        before = held.newest
        order = Order(
            copy=str(work / "copy"),
            output=str(work / "pages"),
            tablespace=self._tablespace,
            number=1 if before is None else before.number + 1,
            epoch=epoch,
            taken_ms=self._clock.wall_ms(),
            page_rows=self._page_rows,
        )
        manifest = await self._readable(before)
        if manifest is not None:
            path = work / "before"
            await self._workers.run(partial(path.write_bytes, encode_manifest(manifest)))
            sparse = await self._sparse(manifest)
            order = msgspec.structs.replace(order, before=str(path), rewrite=tuple(sparse))
        await self._state.copy_to(work / "copy")
        return decode_manifest(await self.build(order, partial(read_page, self._client)))

    async def _readable(self, before: ManifestRecord | None) -> Manifest | None:
        """The manifest to build on; None if there is none, or not any more: all is written anew."""
        if before is None:
            return None
        try:
            return await self.manifest(before)
        except (NotFound, CannotRead, FormatTooNew) as error:
            name = self._tablespace
            _logger.warning("checkpoint %s of %s is lost: %s", before.number, name, error)
            return None

    async def _store(self, built: Manifest, epoch: int, work: Path) -> ManifestRecord:
        """Put the new pages and the manifest into a ledger of their own."""
        custom = {OWNER: self._owner, PURPOSE: CHECKPOINT, EPOCH: str(epoch).encode()}
        writer = await self._client.create_ledger(metadata=custom)
        try:
            blobs = BlobWriter(writer)
            tables = []
            for table in built.pages:
                pages = [await self._store_page(page, blobs, work) for page in table.pages]
                tables.append(TablePages(table.table_id, table.rows, tuple(pages)))
            manifest = msgspec.structs.replace(built, pages=tuple(tables))
            in_use = manifest.ledgers
            written = {one: size for one, size in built.written.items() if one in in_use}
            if writer.ledger_id in in_use:
                written[writer.ledger_id] = in_use[writer.ledger_id]
            manifest = msgspec.structs.replace(manifest, written=written)
            locator = await blobs.write(encode_manifest(manifest))
            await blobs.close()
        except BaseException:
            await _dropped(self._client, writer.ledger_id)
            raise
        record = ManifestRecord(
            manifest.number, manifest.position, epoch, manifest.taken_ms, locator
        )
        self._manifests = {record: manifest}
        return record

    async def _store_page(self, page: Page, blobs: BlobWriter, work: Path) -> Page:
        async def stored(at: Locator) -> Locator:
            if at.ledger_id != NEW:
                return at
            read = partial(_piece, work / "pages", at)
            return await blobs.write(await self._workers.run(read))

        if all(at.ledger_id != NEW for at in page.locators):
            return page
        locator = await stored(page.locator)
        deltas = [
            msgspec.structs.replace(delta, locator=await stored(delta.locator))
            for delta in page.deltas
        ]
        return msgspec.structs.replace(page, locator=locator, deltas=tuple(deltas))

    async def _sparse(self, manifest: Manifest) -> list[int]:
        """The ledgers of which less than half is in use."""
        sparse = []
        for ledger_id, live_bytes in manifest.ledgers.items():
            try:
                metadata = await self._client.ledger_metadata(ledger_id)
            except NotFound:
                # Whatever lay in it is written again, of the rows as they are.
                sparse.append(ledger_id)
                continue
            # The manifest that lies in it, too, is no waste: it goes with the ledger.
            size_bytes = manifest.written.get(ledger_id, metadata.length)
            if size_bytes is not None and live_bytes < _LIVE_SHARE_MIN * size_bytes:
                sparse.append(ledger_id)
        return sparse

    async def _drop(self, before: Checkpoints, kept: Checkpoints) -> None:
        """Delete the ledgers that only manifests which are kept no longer named."""
        gone = set(before.kept) - set(kept.kept)
        if not gone:
            return
        try:
            named = await self._named(kept)
        except (NotFound, CannotRead, FormatTooNew):
            # What the unreadable one names is not known: nothing goes before it is gone itself.
            return
        for record in gone:
            try:
                ledgers = {record.locator.ledger_id, *(await self.manifest(record)).ledgers}
            except (NotFound, CannotRead, FormatTooNew):
                ledgers = {record.locator.ledger_id}
            self._manifests.pop(record, None)
            for ledger_id in sorted(ledgers - named):
                await _dropped(self._client, ledger_id)

    async def _named(self, checkpoints: Checkpoints) -> set[int]:
        named: set[int] = set()
        for record in checkpoints.kept:
            named |= {record.locator.ledger_id, *(await self.manifest(record)).ledgers}
        return named


async def _dropped(client: LedgerClient, ledger_id: int) -> None:
    """Delete a ledger; what cannot be deleted now the sweep finds."""
    try:
        await client.delete_ledger(ledger_id)
    except EngineError:
        return


def _piece(path: Path, at: Locator) -> bytes:
    with path.open("rb") as file:
        file.seek(at.first_entry)
        return file.read(at.size_bytes)


def _emptied(folder: Path, work: Path) -> None:
    _removed(folder)
    folder.mkdir(mode=0o700)
    if work != folder:
        work.mkdir(mode=0o700)


def _removed(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)

"""A table as a checkpoint has it, read in place: no rows of the state, no server in the path.

Invariants:
- What is read is pinned as long as reading takes, or was kept by the reader's own pin.
- Of each checkpoint there is one catalog, so whoever compares them compares objects.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.errors import NotFound
from engine.ledger.client import LedgerClient
from engine.ports.workers import Workers
from herd.catalog import Catalog
from herd.checkpoint.blobs import read_page
from herd.checkpoint.manifest import Manifest, ManifestRecord, Page
from herd.checkpoint.pages import decode_page
from herd.checkpoint.taking import Checkpointer
from herd.errors import ProgrammingError, TooLarge
from herd.schema import Table
from herd.translating import translating

if TYPE_CHECKING:
    import pyarrow

    from herd.checkpoint.streaming import KeptCheckpoint

_PIN_MS: Final = 2 * 3_600_000
"""Longer than any query runs, unless it was told to."""
_AT_ONCE: Final = 4
_CATALOGS_MAX: Final = 16


class CheckpointReader:
    """Reads tables of one tablespace's checkpoints."""

    def __init__(self, client: LedgerClient, checkpointer: Checkpointer, workers: Workers) -> None:
        self._client = client
        self._checkpointer = checkpointer
        self._workers = workers
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._catalogs: OrderedDict[ManifestRecord, Catalog] = OrderedDict()

    async def table(
        self, table: Table, number: int, *, bytes_max: int | None = None
    ) -> "Sequence[pyarrow.RecordBatch]":
        """A table's rows in the order of their keys, with the columns that it has now.

        `number` is the checkpoint's, 0 for the newest.
        Raises `ProgrammingError` for a checkpoint that is not kept or does not have the table,
        `StorageFailed` if it cannot be read, `TooLarge` if it has more than `bytes_max`.
        """
        with translating():
            pin, record = await self._pinned(number)
            try:
                pages = _pages_of(await self._checkpointer.manifest(record), table)
                return await self._batches(table, pages, bytes_max)
            finally:
                await self._checkpointer.list.unpin(pin)

    async def open(self, number: int) -> "KeptCheckpoint":
        """A checkpoint, 0 for the newest, whose tables a query reads as it asks for them. Close it.

        Raises `ProgrammingError` for one that is not kept, `StorageFailed`.
        """
        from herd.checkpoint.streaming import KeptCheckpoint

        checkpoints = self._checkpointer.list
        with translating():
            pin, record = await self._pinned(number)
            try:
                manifest = await self._checkpointer.manifest(record)
            except BaseException:
                await checkpoints.unpin(pin)
                raise
        catalog = self._catalog(record, manifest)
        return KeptCheckpoint(self._client, checkpoints, pin, manifest, catalog)

    def _catalog(self, record: ManifestRecord, manifest: Manifest) -> Catalog:
        found = self._catalogs.get(record)
        if found is None:
            found = self._catalogs[record] = catalog_of(manifest)
            if len(self._catalogs) > _CATALOGS_MAX:
                self._catalogs.popitem(last=False)
        return found

    async def _pinned(self, number: int) -> tuple[str, ManifestRecord]:
        """A checkpoint, and the name under which it is kept. Raises `ProgrammingError`."""
        pin = f"query {self._client.rng.getrandbits(64):016x}"
        try:
            return pin, await self._checkpointer.list.pin(pin, number or None, _PIN_MS)
        except NotFound:
            kept = (await self._checkpointer.list.get()).kept
            names = ", ".join(f"{one.number}" for one in kept) or "none"
            what = f"checkpoint {number} is not kept" if number else "no checkpoint is kept"
            raise ProgrammingError(what, hint=f"kept are: {names}") from None

    async def _batches(
        self, table: Table, pages: Sequence[Page], bytes_max: int | None
    ) -> "list[pyarrow.RecordBatch]":
        found: list[pyarrow.RecordBatch] = []
        size_bytes = 0
        for start in range(0, len(pages), _AT_ONCE):
            some = pages[start : start + _AT_ONCE]
            found += await asyncio.gather(*[self._batch(table, page) for page in some])
            size_bytes += sum(batch.nbytes for batch in found[start:])
            if bytes_max is not None and size_bytes > bytes_max:
                raise TooLarge(f"{table.name} has more than {bytes_max} bytes in columns")
        return found

    async def _batch(self, table: Table, page: Page) -> "pyarrow.RecordBatch":
        async with self._turns:
            blobs = await read_page(self._client, page)
            return await self._workers.run(partial(decode_page, table, *blobs))


def catalog_of(manifest: Manifest) -> Catalog:
    """What a checkpoint defines."""
    tables = {table.id: table for table in manifest.tables}
    views = {view.name.lower(): view for view in manifest.views}
    return Catalog(tables, views, manifest.counters)


def _pages_of(manifest: Manifest, table: Table) -> Sequence[Page]:
    """Where a table's rows are. Raises `ProgrammingError`."""
    if all(then.id != table.id for then in manifest.tables):
        raise ProgrammingError(f"there was no table {table.name} at checkpoint {manifest.number}")
    pages = [one.pages for one in manifest.pages if one.table_id == table.id]
    return pages[0] if pages else ()

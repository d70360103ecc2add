"""A table as a checkpoint has it, read in place: no rows of the state, no server in the path.

Invariants:
- What is read is pinned as long as reading takes, or was kept by the reader's own pin.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.errors import NotFound
from engine.ledger.client import LedgerClient
from engine.ports.workers import Workers
from herd.checkpoint.blobs import read_blob
from herd.checkpoint.manifest import Manifest, ManifestRecord, Page
from herd.checkpoint.pages import decode_page
from herd.checkpoint.taking import Checkpointer
from herd.errors import ProgrammingError, TooLarge
from herd.schema import Table
from herd.translating import translating

if TYPE_CHECKING:
    import pyarrow

    from herd.checkpoint.streaming import KeptTable

_PIN_MS: Final = 2 * 3_600_000
"""Longer than any query runs, unless it was told to."""
_AT_ONCE: Final = 4


class CheckpointReader:
    """Reads tables of one tablespace's checkpoints."""

    def __init__(self, client: LedgerClient, checkpointer: Checkpointer, workers: Workers) -> None:
        self._client = client
        self._checkpointer = checkpointer
        self._workers = workers
        self._turns = asyncio.Semaphore(_AT_ONCE)

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
                _, pages = _found(await self._checkpointer.manifest(record), table)
                return await self._batches(table, pages, bytes_max)
            finally:
                await self._checkpointer.list.unpin(pin)

    async def open(self, table: Table, number: int) -> "KeptTable":
        """The same table, to be read as a query asks for it. Close it. Raises as `table`."""
        from herd.checkpoint.streaming import KeptTable

        with translating():
            pin, record = await self._pinned(number)
            kept = KeptTable(self._client, self._checkpointer.list, pin, table)
            try:
                kept.found(*_found(await self._checkpointer.manifest(record), table))
            except BaseException:
                await kept.close()
                raise
        return kept

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
            blob = await read_blob(self._client, page.locator)
            return await self._workers.run(partial(decode_page, table, blob))


def _found(manifest: Manifest, table: Table) -> tuple[Table, Sequence[Page]]:
    """What a table was like, and its pages. Raises `ProgrammingError`."""
    for then in manifest.tables:
        if then.id == table.id:
            pages = [one.pages for one in manifest.pages if one.table_id == table.id]
            return then, pages[0] if pages else ()
    raise ProgrammingError(f"there was no table {table.name} at checkpoint {manifest.number}")

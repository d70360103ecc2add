"""A table of a checkpoint as a query reads it: pages as they are asked for, and no more of them.

Invariants:
- It is pinned from the time it was opened until it is closed.
- At most `_AHEAD` pages are on their way or in hands; only columns that are wanted are unpacked.
- A page that lies outside the wanted keys is not read.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from engine.errors import EngineError
from engine.ledger.client import LedgerClient
from herd.checkpoint.blobs import read_page
from herd.checkpoint.manifest import Manifest, Page
from herd.checkpoint.pages import decode_columns, short_key
from herd.reading import Stream, Want
from herd.schema import Table
from herd.translating import translated, translating

if TYPE_CHECKING:
    from herd.catalog import Catalog
    from herd.checkpoint.record import CheckpointList

_AHEAD: Final = 4


class KeptCheckpoint:
    """A pinned checkpoint, with what it defines. Close it."""

    def __init__(
        self,
        client: LedgerClient,
        checkpoints: "CheckpointList",
        pin: str,
        manifest: Manifest,
        catalog: "Catalog",
    ) -> None:
        self.catalog = catalog
        self._client = client
        self._checkpoints = checkpoints
        self._pin = pin
        self._pages = {one.table_id: one.pages for one in manifest.pages}

    def table(self, table: Table) -> "KeptTable":
        """One of the tables that it defines."""
        return KeptTable(self._client, table, self._pages.get(table.id, ()))

    async def close(self) -> None:
        """Keep the checkpoint no longer for this."""
        with translating():
            await self._checkpoints.unpin(self._pin)


class KeptTable:
    """A table of a pinned checkpoint. Made on the loop, read in a thread."""

    def __init__(self, client: LedgerClient, table: Table, pages: Sequence[Page]) -> None:
        """`table` is as the checkpoint defines it."""
        self._client = client
        self._table = table
        self._pages = pages
        self._loop = asyncio.get_running_loop()
        self.failures: list[BaseException] = []

    def read(self, want: Want) -> Stream:
        """A stream that begins again for each who reads it."""
        return Stream(_schema(want), lambda: self.batches(want))

    def describe(self, want: Want) -> str:
        """How many of its pages are read."""
        return f"{len(self._in_range(want))} of {len(self._pages)} pages of a checkpoint"

    def batches(self, want: Want) -> Iterator[pa.RecordBatch]:
        """The rows of all pages with wanted keys, other rows of them, too. In a thread."""
        schema, pages = _schema(want), iter(self._in_range(want))
        prefix = self._table.prefix if want.hidden else None
        coming: deque[Future[list[bytes]]] = deque()
        try:
            coming.extend(self._begin(page) for page in islice(pages, _AHEAD - 1))
            while coming:
                blobs = coming.popleft().result()
                coming.extend(self._begin(page) for page in islice(pages, 1))
                yield decode_columns(want.columns, schema, blobs, prefix)
        except Exception as error:
            told = translated(error) if isinstance(error, EngineError) else error
            self.failures.append(told)
            raise told from error
        finally:
            for one in coming:
                one.cancel()

    def _begin(self, page: Page) -> "Future[list[bytes]]":
        return asyncio.run_coroutine_threadsafe(read_page(self._client, page), self._loop)

    def _in_range(self, want: Want) -> Sequence[Page]:
        first, prefix = short_key(want.first), self._table.prefix
        end = short_key(want.end) if want.end.startswith(prefix) else None
        return [
            page
            for page in self._pages
            if page.last_key >= first and (end is None or page.first_key < end)
        ]


def _schema(want: Want) -> pa.Schema:
    """A page does not say which of its columns take no NULL."""
    return pa.schema([field.with_nullable(True) for field in want.schema])

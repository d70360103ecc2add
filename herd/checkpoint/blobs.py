"""Blobs in ledgers: written one after the other, read back with every check.

Invariants:
- A blob is handed out only if all of it is there and its checksum is right.
- At most `APPENDS_MAX` entries are on their way at once: the log's own entries wait behind no more.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Final

import google_crc32c

from engine.errors import CannotRead
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.ledger.writer import LedgerWriter
from herd.checkpoint.manifest import BLOB_ENTRY_BYTES, Locator, Page

APPENDS_MAX: Final = 2


class BlobWriter:
    """Writes blobs into one ledger."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self._next_entry = 0
        self._appends: deque[Awaitable[int]] = deque()

    async def write(self, blob: bytes) -> Locator:
        """Begin to write a blob; it is durable after `settle`. Raises what appending raises."""
        assert blob, "a blob has at least one byte"
        first = self._next_entry
        for start in range(0, len(blob), BLOB_ENTRY_BYTES):
            if len(self._appends) >= APPENDS_MAX:
                await self._appends.popleft()
            piece = blob[start : start + BLOB_ENTRY_BYTES]
            append = asyncio.ensure_future(self._writer.append(piece))
            # A waiting caller gets the exception. After the first one, nobody waits.
            append.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._appends.append(append)
            self._next_entry += 1
        checksum = google_crc32c.value(blob)
        return Locator(self._writer.ledger_id, first, len(blob), checksum)

    async def settle(self) -> None:
        """Wait until everything written is durable."""
        while self._appends:
            await self._appends.popleft()

    async def close(self) -> None:
        """End the ledger, with all that was written."""
        await self.settle()
        await self._writer.close()


async def read_blob(client: LedgerClient, locator: Locator) -> bytes:
    """A whole blob. Raises `CannotRead`, `NoSuchLedger`."""
    return await read_from(await client.open_ledger(locator.ledger_id, recover=False), locator)


async def read_page(client: LedgerClient, page: Page) -> list[bytes]:
    """The blobs of a page: its own, then its deltas. Raises `CannotRead`, `NoSuchLedger`."""
    return await asyncio.gather(*[read_blob(client, at) for at in page.locators])


async def read_from(reader: LedgerReader, locator: Locator) -> bytes:
    """A whole blob of a ledger that is open. Raises `CannotRead`, `NoSuchLedger`."""
    pieces = [entry.body async for entry in reader.read(locator.first_entry, locator.last_entry)]
    blob = b"".join(pieces)
    if len(blob) != locator.size_bytes or google_crc32c.value(blob) != locator.checksum:
        raise CannotRead(
            f"ledger {locator.ledger_id}, entries {locator.first_entry} to {locator.last_entry}: "
            "the blob's checksum is wrong"
        )
    return blob

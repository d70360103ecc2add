"""What one task does: rows of batches, ordered and cut into blocks, into a ledger of its own.

    locator = stage(held, label, encoder, batches)

Invariants:
- A task names its rows only once all of them are durable and its ledger is closed.
- What a task holds is bounded: beyond `RUN_BYTES` it is ordered and on its way.
- While a run is written the next one is made: only one is on its way.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from engine.errors import LedgerClosed
from engine.ledger.client import LedgerClient
from engine.ledger.writer import LedgerWriter
from engine.limits import KIB, MIB
from herd.checkpoint.blobs import BlobWriter
from herd.checkpoint.manifest import Locator
from herd.staging.encoding import Encoder
from herd.staging.layout import Block, Pair, Staged, encode_pairs, encode_staged
from herd.staging.registry import Label, create_staging_ledger
from herd.translating import translating

R = TypeVar("R")
RUN_BYTES: Final = 32 * MIB
BLOCK_BYTES: Final = 256 * KIB


class Ledgers(Protocol):
    """What a process keeps open of a place, as `engine.place` and `herd.place` do."""

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the loop and wait for its result."""
        ...


def stage(
    held: Ledgers,
    client: LedgerClient,
    label: Label,
    encoder: Encoder,
    batches: Iterable[pa.RecordBatch],
) -> Locator | None:
    """Stage all rows of some batches; returns where their index is, None if there are none.

    Blocks; for a thread that has no event loop. Raises `DataError`, `IntegrityError` for rows that
    are none of the table's, and what writing raises. What it had written the job's end takes away.
    """
    task = _Task(held, client, label, encoder)
    try:
        for batch in batches:
            task.add(encoder.pairs(batch))
        return task.end()
    finally:
        task.close()


class _Task:
    def __init__(self, held: Ledgers, client: LedgerClient, label: Label, encoder: Encoder) -> None:
        self._held = held
        self._client = client
        self._label = label
        self._encoder = encoder
        self._pairs: list[Pair] = []
        self._pairs_bytes = 0
        self._size_bytes = 0
        self._rows = self._runs = 0
        self._blocks: list[Block] = []
        self._writer: LedgerWriter | None = None
        self._blobs: BlobWriter | None = None
        self._under_way: asyncio.Task[None] | None = None

    def add(self, pairs: list[Pair]) -> None:
        """Take rows in."""
        size_bytes = sum([len(key) + len(row) for key, row in pairs])
        self._pairs += pairs
        self._pairs_bytes += size_bytes
        if self._pairs_bytes >= RUN_BYTES:
            self._flush()

    def end(self) -> Locator | None:
        """Write what is left and the index, and close the ledger."""
        if self._pairs:
            self._flush()
        self._settle()
        if self._blobs is None:
            return None
        blobs, encoder = self._blobs, self._encoder
        keyed_runs = self._runs if encoder.keyed else 1
        index = Staged(
            self._rows, self._size_bytes, keyed_runs, tuple(self._blocks), encoder.highest
        )

        async def finish() -> Locator:
            with translating():
                locator = await blobs.write(encode_staged(index))
                await blobs.close()
            return locator

        locator = self._held.run(finish)
        self._writer = None
        return locator

    def close(self) -> None:
        """End a ledger that was not closed: its bytes are of no use."""
        writer, self._writer = self._writer, None
        if writer is None:
            return

        async def abandon() -> None:
            if self._under_way is not None:
                self._under_way.cancel()
            writer.abandon(LedgerClosed(f"ledger {writer.ledger_id}: its task failed"))

        self._held.run(abandon)

    def _flush(self) -> None:
        """Order what is there, and begin to write it."""
        pairs, self._pairs = self._pairs, []
        self._rows += len(pairs)
        self._size_bytes += self._pairs_bytes
        self._runs += 1
        if self._encoder.keyed:
            pairs.sort(key=itemgetter(0))
        count = max(1, round(self._pairs_bytes / BLOCK_BYTES))
        self._pairs_bytes = 0
        step = max(1, -(-len(pairs) // count))
        blocks = [pairs[start : start + step] for start in range(0, len(pairs), step)]
        encoded = [(some[0][0], len(some), encode_pairs(some)) for some in blocks]
        self._settle()
        self._held.run(partial(self._begin, encoded))

    def _settle(self) -> None:
        """Wait for the run that is on its way. Raises what writing it raised."""
        waiting, self._under_way = self._under_way, None
        if waiting is not None:
            self._held.run(partial(asyncio.wait_for, waiting, None))

    async def _begin(self, encoded: list[tuple[bytes, int, bytes]]) -> None:
        self._under_way = asyncio.ensure_future(self._write(encoded))

    async def _write(self, encoded: list[tuple[bytes, int, bytes]]) -> None:
        with translating():
            if self._blobs is None:
                self._writer = await create_staging_ledger(self._client, self._label)
                self._blobs = BlobWriter(self._writer)
            for first_key, rows, blob in encoded:
                locator = await self._blobs.write(blob)
                self._blocks.append(Block(first_key, rows, locator))

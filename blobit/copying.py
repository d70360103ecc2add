"""Copies of parts: entries as they are, from one ledger to another, however they are packed.

Invariants:
- A copy has the same entries as its original, in the same order, one behind the other; only where
  they lie differs in the id. So a copy is right whatever the entries mean.
- A part is held in memory as far as a stream that is written may have under way.
- The id of a copy is told only when all of it is durable.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from blobit.errors import not_stored
from blobit.object_id import ObjectId
from blobit.writers import LedgerPool, PooledLedger
from engine.errors import EngineError
from engine.ledger.reader import LedgerReader


async def copy_part(reader: LedgerReader, part: ObjectId, pool: LedgerPool) -> ObjectId:
    """The id of a copy of a part; `reader` is its ledger's, which is closed.

    Raises `BlobNotStored`, what the pool's plan raises, and of the engine what reading raises.
    """
    if part.stored_bytes <= pool.settings.shared_object_bytes_max:
        entries = [entry async for batch in _entries(reader, part) for entry in batch]
        ledger_id, first = await pool.append_shared(entries, part.stored_bytes)
        return _moved(part, ledger_id, first)
    cause: EngineError | None = None
    for _ in range(pool.settings.attempts_max):
        async with pool.lend() as ledger, aclosing(_entries(reader, part)) as batches:
            try:
                return await _copy_alone(batches, part, ledger, pool)
            except _AppendFailed as error:
                ledger.failed = True
                cause = error.cause
    raise not_stored(f"{pool.settings.attempts_max} ledgers failed: try again", cause)


class _AppendFailed(Exception):
    """The ledger that was written to failed, not the one that was read."""

    def __init__(self, cause: EngineError) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _copy_alone(
    batches: AsyncGenerator[list[bytes], None],
    part: ObjectId,
    ledger: PooledLedger,
    pool: LedgerPool,
) -> ObjectId:
    pending: deque[tuple[int, asyncio.Future[list[int]]]] = deque()
    pending_bytes = 0
    first: int | None = None
    try:
        async for batch in batches:
            size_bytes = sum(map(len, batch))
            pending.append((size_bytes, _append(ledger, batch, size_bytes)))
            pending_bytes += size_bytes
            while pending_bytes > pool.settings.stream_pending_bytes_max:
                first, pending_bytes = await _settle(pending, first, pending_bytes)
        while pending:
            first, pending_bytes = await _settle(pending, first, pending_bytes)
    finally:
        for _, future in pending:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
    assert first is not None
    return _moved(part, ledger.ledger_id, first)


def _append(
    ledger: PooledLedger, entries: list[bytes], size_bytes: int
) -> "asyncio.Future[list[int]]":
    try:
        return asyncio.ensure_future(ledger.append_many(entries, size_bytes))
    except EngineError as error:
        raise _AppendFailed(error) from error


async def _settle(
    pending: "deque[tuple[int, asyncio.Future[list[int]]]]", first: int | None, pending_bytes: int
) -> tuple[int, int]:
    """Wait for the oldest; the first id of all, and how many bytes are still under way."""
    size_bytes, future = pending.popleft()
    try:
        ids = await future
    except EngineError as error:
        raise _AppendFailed(error) from error
    return ids[0] if first is None else first, pending_bytes - size_bytes


async def _entries(reader: LedgerReader, part: ObjectId) -> AsyncGenerator[list[bytes], None]:
    """The stored entries of a part, some at a time."""
    async with aclosing(reader.read_batches(part.first_entry, part.last_entry)) as batches:
        async for batch in batches:
            yield [entry.body for entry in batch]


def _moved(part: ObjectId, ledger_id: int, first: int) -> ObjectId:
    return msgspec.structs.replace(part, ledger_id=ledger_id, first_entry=first)

"""One object being written, of a length that nobody knows yet.

A small object waits in memory until its end and then goes where small ones share a ledger. A
bigger one borrows a ledger, cuts itself into entries as it comes, and has a few batches under way
at once. Where a ledger is full or fails, what it holds durably becomes a part, and the batches
that were not acknowledged are written again as the beginning of the next part.

Invariants:
- A batch stays in memory until it is acknowledged, so no source is ever read twice.
- Every entry of a part but its last is whole; only the object's last batch may end in a short one.
- An upload that rests for `ledger_idle_ms` ends its part, and somebody hears of parts, so that
  whoever holds them does so from then on; its next bytes begin another one.
- An upload of which a write failed, or was abandoned, makes no object: it might lack bytes.
- Parts lie in the object one behind the other; each carries its own checksum.
- Memory stays under `stream_pending_bytes_max` and two batches, whatever the object's length;
  compressed, what is under way is held twice.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import google_crc32c

from blobit.checksum import combine
from blobit.compressing import compress
from blobit.errors import BlobError, BlobNotStored, BlobsClosed, not_stored
from blobit.object_id import EMPTY, Kind, ObjectId, pack_parts
from blobit.writers import LedgerPool, PooledLedger
from engine.errors import EngineError
from engine.ports.workers import Workers

_extend = google_crc32c.extend
_LIST_BATCH_ENTRIES: Final = 64


def cut(data: bytes, entry_bytes: int) -> list[bytes]:
    """Cut bytes into entries; the last may be short."""
    if len(data) <= entry_bytes:
        return [data]
    return [data[start : start + entry_bytes] for start in range(0, len(data), entry_bytes)]


async def put_shared(pool: LedgerPool, data: bytes, workers: Workers | None = None) -> ObjectId:
    """Store a small object beside others; the id comes when its bytes are durable."""
    if not data:
        return EMPTY
    length, entry_bytes = len(data), pool.settings.entry_bytes
    entries = [data] if length <= entry_bytes else cut(data, entry_bytes)
    kind, stored_bytes = Kind.DATA, length
    if pool.plan.compression:
        entries, kind = await compress(entries, workers), Kind.ZSTD
        stored_bytes = sum(map(len, entries))
    ledger_id, first = await pool.append_shared(entries, stored_bytes)
    checksum = _extend(0, data)
    return ObjectId(kind, ledger_id, first, entry_bytes, length, stored_bytes, checksum)


async def put_list(pool: LedgerPool, parts: Sequence[ObjectId]) -> ObjectId:
    """The id of the object whose bytes are those of its parts, one behind the other.

    Stores their list; what they hold is not read. Empty parts leave no trace; one part alone is
    the object. No part may be a list. Raises `BlobNotStored`.
    """
    parts = [part for part in parts if part.length]
    if len(parts) < 2:
        return parts[0] if parts else EMPTY
    length = checksum = 0
    for part in parts:
        assert part.kind is not Kind.LIST
        checksum = combine(checksum, part.checksum, part.length)
        length += part.length
    settings, packed = pool.settings, pack_parts(parts)
    entries = cut(packed, settings.entry_bytes)
    if len(packed) <= settings.shared_object_bytes_max:
        ledger_id, first = await pool.append_shared(entries, len(packed))
    else:
        ledger_id, first = await _append_alone(pool, entries)
    return ObjectId(
        Kind.LIST, ledger_id, first, settings.entry_bytes, length, len(packed), checksum
    )


class _Batch(NamedTuple):
    """Entries handed to a ledger and not yet known to be durable, and what they mean."""

    contents: list[bytes]
    size_bytes: int
    entries: list[bytes]
    stored_bytes: int
    pending: "asyncio.Future[list[int]]"


class _Part:
    """What one ledger holds durably of the object, so far."""

    def __init__(self, ledger: PooledLedger, stack: AsyncExitStack) -> None:
        self.ledger = ledger
        self.stack = stack
        self.first = 0
        self.length = 0
        self.stored_bytes = 0
        self.checksum = 0


class Upload:
    """Takes an object piece by piece. Made by `AsyncBlobs.upload`; ended by `finish` or `abort`."""

    def __init__(
        self,
        pool: LedgerPool,
        workers: Workers | None = None,
        part_ended: Callable[[ObjectId], Awaitable[None]] | None = None,
    ) -> None:
        """`workers` compress, where the pool's plan says so; without them the event loop does.

        `part_ended` is awaited with each part that is complete while others are still to come; what
        it raises `write` and `finish` raise.
        """
        settings = pool.settings
        self._pool = pool
        self._workers = workers
        self._part_ended = part_ended
        self._settings = settings
        self._buffer = bytearray()
        self._entry_bytes = settings.stream_entry_bytes
        self._batch_bytes = settings.batch_bytes - settings.batch_bytes % self._entry_bytes
        self._part: _Part | None = None
        self._parts: list[ObjectId] = []
        self._untold: deque[ObjectId] = deque()
        self._batches: deque[_Batch] = deque()
        self._pending_bytes = 0
        self._failures = 0
        self._ended = False
        self._broken = False
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._resting: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """Take the next bytes; waits while too much is under way. Raises `BlobNotStored`.

        After a write that failed, or whose wait was abandoned, only `abort` is left.
        """
        self._stir()
        async with self._turn:
            self._check_usable()
            # Until all of it is taken; whatever ends this call before leaves it so.
            self._broken = True
            await self._write(data)
            self._broken = False
        self._rest_later()

    async def _write(self, data: bytes) -> None:
        batch_bytes = self._batch_bytes
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            left_bytes = len(view) - start
            alone = self._part is not None or left_bytes > self._settings.shared_object_bytes_max
            if alone and not self._buffer and left_bytes >= batch_bytes:
                await self._send(view[start : start + batch_bytes])
                start += batch_bytes
                continue
            held_max = batch_bytes if self._part else self._settings.shared_object_bytes_max
            end = min(len(view), start + max(0, held_max + 1 - len(self._buffer)))
            self._buffer += view[start:end]
            start = end
            if len(self._buffer) > held_max:
                await self._send_buffered()

    async def finish(self) -> ObjectId:
        """Wait until all of it is durable, and return its id. Raises `BlobNotStored`."""
        self._stir()
        async with self._turn:
            self._check_usable()
            self._ended = True
            return await self._finish()

    async def _finish(self) -> ObjectId:
        if self._part is None and not self._parts:
            return await put_shared(self._pool, bytes(self._buffer), self._workers)
        try:
            if self._buffer:
                await self._send(memoryview(bytes(self._buffer)))
            while self._batches:
                await self._settle_oldest()
            # One that rested has ended it already.
            if self._has_part():
                await self._close_part(last=True)
        finally:
            await self._drop()
        return await put_list(self._pool, self._parts)

    async def abort(self) -> None:
        """Forget the object. What was written of it has no id."""
        self._ended = True
        self._stir()
        if self._resting is not None:
            self._resting.cancel()
            await asyncio.wait([self._resting])
        await self._drop()

    def _stir(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest_later(self) -> None:
        """If nothing more comes for a while, end the part: a ledger is not kept open for nobody."""
        self._stir()
        if self._part is not None and self._part_ended is not None and not self._ended:
            idle_s = self._settings.ledger_idle_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(idle_s, self._rest)

    def _rest(self) -> None:
        self._resting = asyncio.get_running_loop().create_task(self._end_idle_part())
        # Who writes next hears that it failed.
        self._resting.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _end_idle_part(self) -> None:
        async with self._turn:
            if self._ended or self._broken or not self._has_part():
                return
            self._broken = True
            while self._batches:
                await self._settle_oldest()
            # Where its ledger failed, settling has ended the part already.
            if self._has_part():
                await self._close_part()
            self._broken = False
            try:
                await self._tell_parts()
            except BlobError:
                # It lacks no byte; whoever holds parts is told again with the next one.
                return

    def _has_part(self) -> bool:
        return self._part is not None

    async def _send_buffered(self) -> None:
        """Send the whole batches of the buffer."""
        whole = len(self._buffer) - len(self._buffer) % self._batch_bytes
        data = memoryview(bytes(self._buffer[:whole]))
        del self._buffer[:whole]
        for start in range(0, whole, self._batch_bytes):
            await self._send(data[start : start + self._batch_bytes])

    async def _send(self, data: memoryview) -> None:
        entry_bytes = self._entry_bytes
        contents = [
            bytes(data[start : start + entry_bytes]) for start in range(0, len(data), entry_bytes)
        ]
        entries, stored_bytes = contents, len(data)
        if self._pool.plan.compression:
            entries = await compress(contents, self._workers)
            stored_bytes = sum(map(len, entries))
        await self._append(contents, len(data), entries, stored_bytes)
        while self._pending_bytes > self._settings.stream_pending_bytes_max:
            await self._settle_oldest()

    async def _append(
        self, contents: list[bytes], size_bytes: int, entries: list[bytes], stored_bytes: int
    ) -> None:
        """Hand a batch to the part's ledger, or to the next one."""
        while True:
            part = self._part
            if part is None:
                part = self._part = await self._begin_part()
            elif not part.ledger.usable:
                # What is under way in it must be settled first: it may have to move as well.
                await (self._settle_oldest() if self._batches else self._end_part())
                continue
            try:
                pending = await self._pool.append_lent(part.ledger, entries, stored_bytes)
            except EngineError as error:
                self._note_failure(part, error)
                continue
            self._batches.append(_Batch(contents, size_bytes, entries, stored_bytes, pending))
            self._pending_bytes += size_bytes
            return

    async def _settle_oldest(self) -> None:
        """Wait for the oldest batch; where its ledger failed, write all that is open again."""
        batch, part = self._batches[0], self._part
        assert part is not None
        try:
            # The wait may be abandoned; the entries are on their way all the same.
            ids = await asyncio.shield(batch.pending)
        except EngineError as error:
            self._note_failure(part, error)
            await self._write_again()
            return
        self._batches.popleft()
        self._pending_bytes -= batch.size_bytes
        if not part.length:
            part.first = ids[0]
        assert ids[0] == part.first + part.length // self._entry_bytes, "ids not in a row"
        part.length += batch.size_bytes
        part.stored_bytes += batch.stored_bytes
        for content in batch.contents:
            part.checksum = _extend(part.checksum, content)
        self._failures = 0

    async def _write_again(self) -> None:
        """End the part at what is durable; the batches after it begin the next one."""
        lost = list(self._batches)
        for batch in self._batches:
            _abandon(batch.pending)
        self._batches.clear()
        self._pending_bytes = 0
        await self._end_part()
        for batch in lost:
            await self._append(batch.contents, batch.size_bytes, batch.entries, batch.stored_bytes)

    def _note_failure(self, part: _Part, error: EngineError) -> None:
        part.ledger.failed = True
        self._failures += 1
        if self._failures >= self._settings.attempts_max:
            raise not_stored(
                f"{self._failures} ledgers in a row failed: {error}: put the object again", error
            ) from error

    async def _begin_part(self) -> _Part:
        stack = AsyncExitStack()
        return _Part(await stack.enter_async_context(self._pool.lend()), stack)

    async def _end_part(self) -> None:
        """End the part while others are still to come, and tell of it."""
        await self._close_part()
        await self._tell_parts()

    async def _close_part(self, *, last: bool = False) -> None:
        """Give the ledger back and note what it holds; of the last part nobody is told."""
        part, self._part = self._part, None
        assert part is not None and not self._batches
        await part.stack.aclose()
        if not part.length:
            return
        ended = ObjectId(
            Kind.ZSTD if self._pool.plan.compression else Kind.DATA,
            part.ledger.ledger_id,
            part.first,
            self._entry_bytes,
            part.length,
            part.stored_bytes,
            part.checksum,
        )
        self._parts.append(ended)
        if not last:
            self._untold.append(ended)

    async def _tell_parts(self) -> None:
        while self._untold and self._part_ended is not None:
            await self._part_ended(self._untold[0])
            self._untold.popleft()

    async def _drop(self) -> None:
        """Give back what an unfinished upload holds. Its ledger may go on with another stream."""
        for batch in self._batches:
            _abandon(batch.pending)
        self._batches.clear()
        self._buffer.clear()
        part, self._part = self._part, None
        if part is not None:
            await part.stack.aclose()

    def _check_usable(self) -> None:
        if self._ended:
            raise BlobsClosed("this upload has ended")
        if self._broken:
            raise BlobNotStored("an earlier write of this upload failed: abort it and begin again")


async def _append_alone(pool: LedgerPool, entries: Sequence[bytes]) -> tuple[int, int]:
    """Store a long list of parts at once in a ledger that nobody else uses."""
    cause: EngineError | None = None
    for _ in range(pool.settings.attempts_max):
        async with pool.lend() as ledger:
            try:
                # A few at a time: no list may be longer than what a writer takes at once.
                firsts = [
                    (await ledger.append_many(some, sum(map(len, some))))[0]
                    for some in (
                        entries[start : start + _LIST_BATCH_ENTRIES]
                        for start in range(0, len(entries), _LIST_BATCH_ENTRIES)
                    )
                ]
            except EngineError as error:
                ledger.failed = True
                cause = error
            else:
                return ledger.ledger_id, firsts[0]
    raise not_stored(
        "the list of an object's parts could not be stored: put the object again", cause
    )


def _abandon(pending: Awaitable[list[int]]) -> None:
    """Nobody waits for this append any more; its error is nobody's."""
    future = asyncio.ensure_future(pending)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())

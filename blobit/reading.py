"""Reading the bytes of one part: ledgers opened once, entries checked against the id.

Invariants:
- An entry counts only if it has exactly the length that the id gives it.
- "Not found" is said only when a ledger, or an entry of a closed ledger, is positively not there;
  anything less is "unreadable".
- A reader that was remembered may be out of date: a fresh one has the last word.
- Reading never disturbs a ledger's writer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from blobit.errors import BlobCorrupt, BlobError, BlobNotFound, BlobUnreadable
from blobit.object_id import ObjectId
from engine.errors import EngineError, NoSuchEntry, NoSuchLedger, Unauthorized, Unavailable
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.run import Entry


class Readers:
    """Open readers of ledgers, the least lately used of which is forgotten first."""

    def __init__(self, client: LedgerClient, readers_max: int) -> None:
        self._client = client
        self._readers_max = readers_max
        self._readers: OrderedDict[int, asyncio.Task[LedgerReader]] = OrderedDict()

    async def get(self, ledger_id: int) -> tuple[LedgerReader, bool]:
        """A reader, and whether it was opened just now. Raises what opening raises."""
        task = self._readers.get(ledger_id)
        fresh = task is None
        if task is None:
            opening = self._client.open_ledger(ledger_id, recover=False)
            task = self._readers[ledger_id] = asyncio.get_running_loop().create_task(opening)
            if len(self._readers) > self._readers_max:
                self._readers.popitem(last=False)
        else:
            self._readers.move_to_end(ledger_id)
        try:
            return await asyncio.shield(task), fresh
        except EngineError:
            self.forget(ledger_id, task)
            raise

    def forget(self, ledger_id: int, task: "asyncio.Task[LedgerReader] | None" = None) -> None:
        """Open it anew the next time."""
        if task is None or self._readers.get(ledger_id) is task:
            self._readers.pop(ledger_id, None)

    def close(self) -> None:
        """Forget them all. None follows a writer, so none holds anything that needs an end."""
        for task in self._readers.values():
            task.cancel()
        self._readers.clear()


async def read_entries(
    readers: Readers, part: ObjectId, start: int, end: int
) -> AsyncGenerator[bytes, None]:
    """Bytes `start` to `end` (not included) of what the id's entries hold, in pieces.

    Raises `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
    """
    position = start
    last_try = False
    while position < end:
        try:
            reader, fresh = await readers.get(part.ledger_id)
            last_try = last_try or fresh
            async with aclosing(_pieces(reader, part, position, end)) as pieces:
                async for piece in pieces:
                    yield piece
                    position += len(piece)
        except (EngineError, BlobError) as error:
            if last_try:
                raise _told(part, error) from error
            readers.forget(part.ledger_id)
            last_try = True
            continue
        assert position == end


async def _pieces(
    reader: LedgerReader, part: ObjectId, start: int, end: int
) -> AsyncGenerator[bytes, None]:
    entry_bytes = part.entry_bytes
    first = part.first_entry + start // entry_bytes
    last = part.first_entry + (end - 1) // entry_bytes
    skip_bytes = start % entry_bytes
    left_bytes = end - start
    expected = first
    async with aclosing(await _batches(reader, first, last)) as batches:
        async for batch in batches:
            bodies = [_body(part, entry, expected + i) for i, entry in enumerate(batch)]
            expected += len(batch)
            piece = bodies[0] if len(bodies) == 1 else b"".join(bodies)
            if skip_bytes or len(piece) - skip_bytes > left_bytes:
                piece = piece[skip_bytes : skip_bytes + left_bytes]
                skip_bytes = 0
            left_bytes -= len(piece)
            yield piece
    if expected <= last:
        raise NoSuchEntry(f"ledger {part.ledger_id} has no entry {expected}")


async def _batches(
    reader: LedgerReader, first: int, last: int
) -> AsyncGenerator[list[Entry], None]:
    """The entries, also those past what the reader knows to be confirmed.

    An id is given out only when its entries are confirmed. So where a bookie has not heard so yet,
    they may be read all the same.
    """
    if last > reader.last_add_confirmed and not reader.closed:
        with suppress(Unavailable):
            await reader.read_last_add_confirmed()
    if last <= reader.last_add_confirmed:
        return _confirmed(reader, first, last)
    if reader.closed:
        raise NoSuchEntry(f"ledger {reader.ledger_id} ends before entry {last}")
    return _unconfirmed(reader, first, last)


async def _confirmed(
    reader: LedgerReader, first: int, last: int
) -> AsyncGenerator[list[Entry], None]:
    async for batch in reader.read_batches(first, last):
        yield batch


async def _unconfirmed(
    reader: LedgerReader, first: int, last: int
) -> AsyncGenerator[list[Entry], None]:
    async for entry in reader.read_unconfirmed(first, last):
        yield [entry]


def _body(part: ObjectId, entry: Entry, expected: int) -> bytes:
    """An entry's bytes, if it is the one that the id means."""
    assert entry.entry_id == expected
    length = part.entry_bytes
    if expected == part.last_entry:
        length = part.stored_bytes - (part.entry_count - 1) * part.entry_bytes
    if len(entry.body) != length:
        raise BlobCorrupt(
            f"object {part}: entry {expected} of ledger {part.ledger_id} has "
            f"{len(entry.body)} bytes instead of {length}"
        )
    return entry.body


def _told(part: ObjectId, error: EngineError | BlobError) -> BlobError:
    """What a reader of blobs hears of an error below."""
    if isinstance(error, BlobError):
        return error
    if isinstance(error, NoSuchLedger | NoSuchEntry):
        return BlobNotFound(f"object {part}: {error}")
    if isinstance(error, Unauthorized):
        return BlobUnreadable(f"object {part}: ledger {part.ledger_id} is not a blob store's")
    return BlobUnreadable(f"object {part}: {error}")

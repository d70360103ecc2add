"""Reading ranges of one part: ledgers opened once, entries checked against the id.

Invariants:
- An entry counts only if it holds exactly as many bytes as the id gives it.
- "Not found" is said only when a ledger, or an entry of a closed ledger, is positively not there;
  anything less is "unreadable".
- A reader that was remembered may be out of date: a newer one has the last word.
- Reading never disturbs a ledger's writer.
- Readers of a bucket hand out nothing of a ledger that does not say that it is the bucket's.
- Of big objects at most `CHUNKS_BYTES_MAX` are asked for at once, however many are read.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Final, TypeVar

from blobit.budget import ByteBudget
from blobit.compressing import decompress
from blobit.errors import BlobCorrupt, BlobError, BlobNotFound, BlobUnreadable
from blobit.nearby import Nearby, Shelf
from blobit.object_id import Kind, ObjectId
from blobit.ownership import bucket_of
from engine.errors import EngineError, NoSuchEntry, NoSuchLedger, Unauthorized, Unavailable
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.limits import MIB
from engine.ports.switching import long_turns
from engine.ports.workers import Workers
from engine.run import Entry

T = TypeVar("T")
CHUNKS_BYTES_MAX: Final = 16 * MIB
"""What is asked for at once of big objects, by all who read them."""


class _Opened:
    """A reader of a ledger, by the task that opens it, and what is read ahead in it."""

    __slots__ = ("bucket_id", "nearby", "task")
    task: "asyncio.Task[LedgerReader]"

    def __init__(self, nearby: Nearby) -> None:
        self.nearby = nearby
        self.bucket_id: int | None = None
        """Whose the ledger is, once it is open; None: no bucket's."""


class Readers:
    """Open readers of ledgers, the least lately used of which is forgotten first."""

    def __init__(
        self, client: LedgerClient, readers_max: int, workers: Workers | None = None
    ) -> None:
        """`workers` decompress and make memory ready; without them the event loop does."""
        self.chunk_bytes = client.settings.read_bytes_max
        """About so much is asked of a bookie at once."""
        self._client = client
        self._shelf = Shelf(client.clock)
        self._chunks = ByteBudget(CHUNKS_BYTES_MAX)
        self._readers_max = readers_max
        self.workers = workers
        """Decompress, and make memory ready."""
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        self._bucket_id: int | None = None

    def of_bucket(self, bucket_id: int) -> "Readers":
        """The same, and closed with them, for objects that rows of this bucket name.

        Of a ledger that is none of the bucket's they hand out nothing: `BlobUnreadable`.
        """
        own = copy(self)
        own._bucket_id = bucket_id
        return own

    async def read_one(self, name: ObjectId) -> bytes:
        """An object of one entry, as quickly as it comes. Raises as `read` does."""
        first = name.first_entry
        opened = self._opened.get(name.ledger_id)
        if opened is not None and name.kind is Kind.DATA and self._may_read(opened.bucket_id):
            body = opened.nearby.take(first)
            if body is not None and len(body) == name.length:
                self._opened.move_to_end(name.ledger_id)
                return body
        (body,) = await self.read(name, first, first)
        return body

    async def read_chunk(
        self, part: ObjectId, first: int, last: int, size_bytes: int, max_bytes: int
    ) -> list[bytes]:
        """As `read`, for `size_bytes` at once; all such reads together are bounded.

        What is under way has to come before a bookie is taken for slow, and others are asked too.
        """
        await self._chunks.take(size_bytes)
        try:
            with long_turns():
                return await self.read(part, first, last, max_bytes)
        finally:
            self._chunks.give_back(size_bytes)

    async def read(
        self, part: ObjectId, first: int, last: int, max_bytes: int | None = None
    ) -> list[bytes]:
        """What entries `first` to `last` of an id's ledger hold, both included.

        Each read asks for about `max_bytes`, None: for what the client's settings say. Raises
        `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
        """

        async def read(reader: LedgerReader, nearby: Nearby) -> list[bytes]:
            body = None
            if first == last and reader.last_add_confirmed >= last:
                body = await nearby.get(reader, first)
            frames = await _frames(reader, first, last, max_bytes) if body is None else [body]
            return await self._contents(part, first, frames)

        return await self._trying(part, read)

    async def read_row(
        self, parts: Sequence[ObjectId], max_bytes: int | None = None
    ) -> list[list[bytes]]:
        """What each of several parts of one ledger holds, in entries, with one row of reads.

        They are in the order of their entries, none is empty, and what lies between two of them is
        read in vain. An error names the first. Raises as `read`.
        """
        first, last = parts[0].first_entry, parts[-1].last_entry

        async def read(reader: LedgerReader, _: Nearby) -> list[list[bytes]]:
            frames = await _frames(reader, first, last, max_bytes)
            return [
                await self._contents(
                    part,
                    part.first_entry,
                    frames[part.first_entry - first : part.last_entry - first + 1],
                )
                for part in parts
            ]

        return await self._trying(parts[0], read)

    async def _trying(
        self, part: ObjectId, read: Callable[[LedgerReader, Nearby], Awaitable[T]]
    ) -> T:
        """Read from a part's ledger, once more where what is remembered of it may be old."""
        again = False
        while True:
            opened, fresh = self._get(part.ledger_id)
            try:
                task = opened.task
                reader = task.result() if task.done() else await asyncio.shield(task)
                self.check_owner(part, opened.bucket_id)
                return await read(reader, opened.nearby)
            except (EngineError, BlobError) as error:
                self._forget(part.ledger_id, opened)
                if again or fresh:
                    raise _told(part, error) from error
                again = True

    def check_owner(self, part: ObjectId, owner_id: int | None) -> None:
        """Raise `BlobUnreadable` where a part lies in another's ledger; None: in no bucket's."""
        if not self._may_read(owner_id):
            raise BlobUnreadable(f"object {part}: ledger {part.ledger_id} is none of the bucket's")

    def _may_read(self, owner_id: int | None) -> bool:
        return self._bucket_id is None or self._bucket_id == owner_id

    def close(self) -> None:
        """Forget them all. None follows a writer, so none holds anything that needs an end."""
        for opened in self._opened.values():
            opened.task.cancel()
            opened.nearby.close()
        self._opened.clear()

    def _get(self, ledger_id: int) -> tuple[_Opened, bool]:
        """A reader, and whether it is opened just now."""
        opened = self._opened.get(ledger_id)
        if opened is not None:
            self._opened.move_to_end(ledger_id)
            return opened, False
        opened = self._opened[ledger_id] = _Opened(Nearby(self._shelf))
        opened.task = asyncio.get_running_loop().create_task(self._open(ledger_id, opened))
        # Who waits hears of a failure; perhaps nobody does any more.
        opened.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        if len(self._opened) > self._readers_max:
            _, oldest = self._opened.popitem(last=False)
            oldest.nearby.close()
        return opened, True

    async def _open(self, ledger_id: int, opened: _Opened) -> LedgerReader:
        reader = await self._client.open_ledger(ledger_id, recover=False)
        # It never changes: looked at once, however often the ledger is read.
        opened.bucket_id = bucket_of(reader.metadata.custom)
        return reader

    def _forget(self, ledger_id: int, opened: _Opened) -> None:
        """Open it anew the next time."""
        if self._opened.get(ledger_id) is opened:
            del self._opened[ledger_id]
            opened.nearby.close()

    async def _contents(self, part: ObjectId, first: int, frames: list[bytes]) -> list[bytes]:
        """What stored entries mean, checked against the id as far as it tells."""
        length = part.entry_bytes
        if part.kind is not Kind.ZSTD:
            for entry_id, frame in enumerate(frames, first):
                if len(frame) != length or entry_id == part.last_entry:
                    wanted = _length(part, entry_id)
                    if len(frame) != wanted:
                        raise _corrupt(part, entry_id, f"has {len(frame)} bytes, not {wanted}")
            return frames
        lengths = [_length(part, first + index) for index in range(len(frames))]
        try:
            return await decompress(frames, lengths, self.workers)
        except ValueError as error:
            raise _corrupt(part, first, f"or one behind it is no entry of it: {error}") from error


async def _frames(
    reader: LedgerReader, first: int, last: int, max_bytes: int | None
) -> list[bytes]:
    """Entries as they are stored, also those past what the reader knows to be confirmed.

    An id is given out only when its entries are confirmed. So where a bookie has not heard so yet,
    they may be read all the same.
    """
    if last > reader.last_add_confirmed and not reader.closed:
        # Bookies have these entries. Finding out how far the ledger may be read would need the
        # metadata store twice.
        frames = await _unconfirmed(reader, first, last)
        if len(frames) > last - first:
            return frames
        with suppress(Unavailable):
            await reader.read_last_add_confirmed()
    frames = []
    if last <= reader.last_add_confirmed:
        while len(frames) <= last - first:
            batch = await reader.read_some(first + len(frames), last, max_bytes)
            frames += [entry.body for entry in batch]
        return frames
    if reader.closed:
        raise NoSuchEntry(f"ledger {reader.ledger_id} ends before entry {last}")
    frames = await _unconfirmed(reader, first, last)
    if len(frames) <= last - first:
        raise NoSuchEntry(f"ledger {reader.ledger_id} has no entry {first + len(frames)}")
    return frames


async def _unconfirmed(reader: LedgerReader, first: int, last: int) -> list[bytes]:
    """The bodies of stored entries, up to the first entry that no bookie has."""
    frames: list[bytes] = []
    async for entry in reader.read_unconfirmed(first, last):
        frames.append(_expected(entry, first + len(frames)))
    return frames


def _expected(entry: Entry, entry_id: int) -> bytes:
    assert entry.entry_id == entry_id
    return entry.body


def _length(part: ObjectId, entry_id: int) -> int:
    """How many bytes an entry of an id holds."""
    if entry_id == part.last_entry:
        return part.content_bytes - (part.entry_count - 1) * part.entry_bytes
    return part.entry_bytes


def _corrupt(part: ObjectId, entry_id: int, what: str) -> BlobCorrupt:
    return BlobCorrupt(
        f"object {part}: entry {entry_id} of ledger {part.ledger_id} {what}: the id is another "
        "store's or its copies are damaged; run a check of the ledger"
    )


def _told(part: ObjectId, error: EngineError | BlobError) -> BlobError:
    """What a reader of blobs hears of an error below."""
    if isinstance(error, BlobError):
        return error
    if isinstance(error, NoSuchLedger | NoSuchEntry):
        return BlobNotFound(f"object {part}: {error}")
    if isinstance(error, Unauthorized):
        return BlobUnreadable(f"object {part}: ledger {part.ledger_id} is not a blob store's")
    return BlobUnreadable(f"object {part}: {error}")

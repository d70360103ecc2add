"""The ledgers that are open for writing: one that small objects share, others lent one at a time.

Invariants:
- A ledger is either shared or lent to one stream, never both.
- A ledger takes no more once it holds `ledger_bytes_max`, or an append to it failed; it is then
  closed in the background and another takes its place.
- Bytes of shared objects that are not yet durable stay under `shared_pending_bytes_max`; more
  wait in the order in which they came.
- At most `streams_max` ledgers are lent at once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

from blobit.errors import BlobNotStored, BlobsClosed
from blobit.settings import BlobSettings
from engine.errors import EngineError
from engine.ledger.client import LedgerClient
from engine.ledger.writer import LedgerWriter

LEDGER_OWNER = {"owner": b"blobit"}
"""Custom metadata of every ledger made here, so that an orphan tells whose it is."""


class PooledLedger:
    """One open ledger and what the pool must know of it."""

    def __init__(self, writer: LedgerWriter, bytes_max: int) -> None:
        self.writer = writer
        self.ledger_id = writer.ledger_id
        self._room_bytes = bytes_max
        self.failed = False

    @property
    def usable(self) -> bool:
        """Whether it takes more."""
        return not self.failed and self._room_bytes > 0

    def append_many(self, entries: Sequence[bytes], size_bytes: int) -> Awaitable[list[int]]:
        """Append entries with consecutive ids. Raises what the ledger's writer raises."""
        self._room_bytes -= size_bytes
        return self.writer.append_many(entries)


class ByteBudget:
    """So many bytes at once; who wants more waits, first come, first served.

    A taker of more than the whole budget waits for all of it and then takes more than there is.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size_bytes: int) -> None:
        """Wait until the bytes are free, and take them."""
        if not self._waiting and self._fits(size_bytes):
            self._taken_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size_bytes)
            else:
                # Whoever waits behind may fit now, once this turn is out of the way.
                self.give_back(0)
            raise

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken."""
        self._taken_bytes -= size_bytes
        assert self._taken_bytes >= 0
        while self._waiting:
            wanted_bytes, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(wanted_bytes):
                    return
                self._taken_bytes += wanted_bytes
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, size_bytes: int) -> bool:
        return not self._taken_bytes or self._taken_bytes + size_bytes <= self._bytes_max


class LedgerPool:
    """Makes ledgers, lends them, and closes them."""

    def __init__(self, client: LedgerClient, settings: BlobSettings) -> None:
        self._client = client
        self._settings = settings
        self._budget = ByteBudget(settings.shared_pending_bytes_max)
        self._lending = asyncio.Semaphore(settings.streams_max)
        self._making = asyncio.Lock()
        self._shared: PooledLedger | None = None
        self._idle: list[PooledLedger] = []
        self._lent: list[PooledLedger] = []
        self._closings: set[asyncio.Task[None]] = set()
        self._closed = False

    async def append_shared(self, entries: Sequence[bytes], size_bytes: int) -> tuple[int, int]:
        """Store entries with consecutive ids beside other objects'; returns ledger and first id.

        Where a ledger fails they are stored again in the next. Raises `BlobNotStored`.
        """
        await self._budget.take(size_bytes)
        try:
            cause: EngineError | None = None
            for _ in range(self._settings.attempts_max):
                ledger = self._shared
                if ledger is None or not ledger.usable:
                    ledger = await self._next_shared()
                try:
                    ids = await ledger.append_many(entries, size_bytes)
                except EngineError as error:
                    ledger.failed = True
                    cause = error
                else:
                    return ledger.ledger_id, ids[0]
            raise BlobNotStored(f"{self._settings.attempts_max} ledgers failed") from cause
        finally:
            self._budget.give_back(size_bytes)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[PooledLedger]:
        """A ledger for one stream alone, as long as the block lasts. Raises `BlobNotStored`."""
        async with self._lending:
            self._check_open()
            ledger = self._idle.pop() if self._idle else await self._make()
            self._lent.append(ledger)
            try:
                yield ledger
            finally:
                self._lent.remove(ledger)
                if ledger.usable and not self._closed:
                    self._idle.append(ledger)
                else:
                    self._retire(ledger)

    async def close(self) -> None:
        """Close every ledger. Pending shared puts end first; a lent ledger's stream fails."""
        self._closed = True
        for ledger in [*self._idle, *self._lent, *([self._shared] if self._shared else [])]:
            self._retire(ledger)
        self._shared = None
        self._idle.clear()
        while self._closings:
            await asyncio.wait(self._closings)

    async def _next_shared(self) -> PooledLedger:
        async with self._making:
            self._check_open()
            if self._shared is None or not self._shared.usable:
                fresh = await self._make()
                if self._shared is not None:
                    self._retire(self._shared)
                self._shared = fresh
            return self._shared

    async def _make(self) -> PooledLedger:
        try:
            writer = await self._client.create_ledger(metadata=LEDGER_OWNER)
        except EngineError as error:
            raise BlobNotStored(f"no ledger could be made: {error}") from error
        ledger = PooledLedger(writer, self._settings.ledger_bytes_max)
        if self._closed:
            self._retire(ledger)
            self._check_open()
        return ledger

    def _check_open(self) -> None:
        if self._closed:
            raise BlobsClosed("the blob store is closed")

    def _retire(self, ledger: PooledLedger) -> None:
        """Close a ledger behind the scenes; its pending appends end first."""
        task = asyncio.get_running_loop().create_task(_close(ledger.writer))
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)


async def _close(writer: LedgerWriter) -> None:
    try:
        await writer.close()
    except EngineError:
        # It stays open in the metadata. What was acknowledged in it is readable all the same.
        return

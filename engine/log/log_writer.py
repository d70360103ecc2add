"""The one writer of a log in one epoch: entries in, spans out once they are durable.

Invariants:
- Futures resolve in the order of the calls, each when all of its entries are durable in ledgers
  that are listed and whose predecessors are closed.
- Appends go to one ledger at a time, in order; what waits is bounded by `pending_bytes_max`.
- A roll creates the next ledger, closes this one, lists the next one under the epoch, and only
  then appends to it. A ledger that failed is closed by recovery, what its end proves durable
  counts, and the rest is appended to the next one, in order, each once.
- Nothing resolves with success after the writer has ended; `Deposed` ends it for good.
- While the log is held (`engine.log.holding`), appends wait, within the usual limit, and nothing is
  sent.
- Per batch there is one future and one callback, per entry nothing but its place in a list.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from engine.errors import (
    AppendFailed,
    Deposed,
    DiskFull,
    EngineError,
    EntryTooLarge,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchLedger,
    Overloaded,
    Unavailable,
)
from engine.ledger.client import LedgerClient
from engine.ledger.writer import LedgerWriter
from engine.limits import ENTRY_BYTES_MAX
from engine.log.holding import Hold
from engine.log.log_list import LogLists, check_epoch, listing
from engine.log.position import Position, Span
from engine.log.settings import LogSettings
from engine.run import as_bytes

T = TypeVar("T")
Create = Callable[[], Awaitable[LedgerWriter]]
"""Creates the next ledger of the log, not listed yet."""

LEDGERS_MAX: Final = 20_000
"""More are only listed where the one before cannot be gone on with: the list has to fit."""


class _Batch:
    """The bodies of one append, and where those are that have a place for good."""

    __slots__ = ("bodies", "first", "future", "single", "size_bytes", "spans")

    def __init__(
        self, bodies: list[bytes], size_bytes: int, future: "asyncio.Future[Any]", *, single: bool
    ) -> None:
        self.bodies = bodies
        self.size_bytes = size_bytes
        self.future = future
        self.single = single
        self.first = 0
        self.spans: tuple[Span, ...] = ()


class LogWriter:
    """Appends to a log. Made by `ReplicatedLog.lead`; all methods are called on the event loop."""

    def __init__(
        self,
        *,
        client: LedgerClient,
        lists: LogLists,
        settings: LogSettings,
        epoch: int,
        ledger: LedgerWriter,
        last: Position,
        create: Create,
    ) -> None:
        self.epoch = epoch
        self.last = last
        """The newest durable entry of the log that this writer knows; START if there is none."""
        self._lists = lists
        self._settings = settings
        self._clock = client.clock
        self._create = create
        self._loop = asyncio.get_running_loop()
        self._error: EngineError | None = None
        self._closing = False
        self._ended: asyncio.Future[EngineError] = self._loop.create_future()
        self._drained: asyncio.Future[None] | None = None
        self._sent: deque[_Batch] = deque()
        self._waiting: deque[_Batch] = deque()
        self._pending_bytes = 0
        self._turning: asyncio.Task[EngineError | None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False
        self._failed = False
        self._listed = 0
        self._troubled_s: float | None = None
        self._roll_from_s = 0.0
        self._age: asyncio.TimerHandle | None = None
        self._unwatch = lists.watch(self._list_changed)
        self._hold = Hold(client.store, self._feed)
        self._use(ledger)

    @property
    def ledger(self) -> int:
        """The id of the ledger that is appended to."""
        return self._ledger.ledger_id

    @property
    def pending_bytes(self) -> int:
        """The bytes that wait for their acknowledgement."""
        return self._pending_bytes

    @property
    def fenced(self) -> bool:
        """Whether somebody else recovers the current ledger.

        It may be the next leader. If the epoch is still current, the writer continues in another
        ledger once the metadata store has confirmed that.
        """
        return self._ledger.fenced

    @property
    def failure(self) -> EngineError | None:
        """What ended the writer; None while it is well."""
        return self._error

    def append_many(self, bodies: Sequence[bytes]) -> "asyncio.Future[tuple[Span, ...]]":
        """Append entries in order; resolves with their places when the last of them is durable.

        One span normally, several where a roll fell in between. An empty sequence resolves at
        once. Raises `Overloaded`, `EntryTooLarge`, and when the writer has ended what ended it,
        at once with nothing stored. The future raises an `OutcomeUnknown`: `Deposed`,
        `LedgerClosed`, `AppendFailed` (the writer is over; `lead` again).
        """
        future: asyncio.Future[tuple[Span, ...]] = self._loop.create_future()
        entries = [body if type(body) is bytes else as_bytes(body) for body in bodies]
        self._accept(entries, future, single=False)
        return future

    def append(self, body: bytes) -> "asyncio.Future[Position]":
        """Append one entry; resolves with its position. The same errors as `append_many`."""
        future: asyncio.Future[Position] = self._loop.create_future()
        self._accept([as_bytes(body)], future, single=True)
        return future

    async def roll(self) -> None:
        """Go on in a new ledger now. Raises `Unavailable` where that has to wait, `Deposed`."""
        self._check_well()
        if self._turning is None:
            self._turning = self._loop.create_task(self._turn())
        turning = self._turning
        await asyncio.wait([turning])
        self._check_well()
        if not turning.cancelled() and (error := turning.result()) is not None:
            raise error

    async def close(self) -> None:
        """Wait for pending appends, then close the ledger, without another one.

        May be called twice. If another leader has already deleted the ledger, there is nothing to
        close, and `ended` returns `Deposed`.
        Raises `MetadataUnavailable`, `RecoveryIncomplete` (call again).
        """
        self._closing = True
        self._hold.close()
        self._feed()
        if self._age is not None:
            self._age.cancel()
        while self._error is None and (self._turning or self._sent or self._waiting):
            if self._turning is not None:
                await asyncio.wait([self._turning])
                continue
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        if self._error is None:
            try:
                await self._ledger.close()
            except NoSuchLedger as error:
                # Another leader took the log over, closed this ledger and no longer needs it.
                self._end(Deposed(f"log {self._lists.name}: {error}"))
            else:
                self._end(LedgerClosed(f"log {self._lists.name}: the writer is closed"))

    def abandon(self, error: EngineError) -> None:
        """End at once; the ledger stays open, and what waits has an unknown outcome."""
        self._end(error)

    async def ended(self) -> EngineError:
        """Wait until the writer is over; returns why: `Deposed`, `LedgerClosed`, `AppendFailed`."""
        return await asyncio.shield(self._ended)

    def on_end(self, callback: Callable[[EngineError], None]) -> None:
        """Call `callback`, on the loop, with the reason when the writer is over."""
        self._ended.add_done_callback(lambda ended: callback(ended.result()))

    # Accepting

    def _check_well(self) -> None:
        if self._error is not None:
            raise _again(self._error)
        if self._closing:
            raise LedgerClosed(f"log {self._lists.name}: the writer is closed")

    def _accept(self, entries: list[bytes], future: "asyncio.Future[Any]", *, single: bool) -> None:
        if self._error is not None or self._closing:
            self._check_well()
        if not entries:
            future.set_result(())
            return
        largest = max(map(len, entries))
        if largest > ENTRY_BYTES_MAX:
            raise EntryTooLarge(f"{largest} bytes; at most {ENTRY_BYTES_MAX} fit")
        size_bytes = sum(map(len, entries))
        waiting_bytes = self._pending_bytes
        if waiting_bytes and waiting_bytes + size_bytes > self._settings.pending_bytes_max:
            raise Overloaded(f"log {self._lists.name}: {waiting_bytes} bytes already wait")
        self._pending_bytes += size_bytes
        batch = _Batch(entries, size_bytes, future, single=single)
        ready = self._taking and not self._waiting and not self._hold.on
        if not ready or not self._hand(batch):
            self._waiting.append(batch)

    def _hand(self, batch: _Batch) -> bool:
        """Give a batch to the ledger; False where it takes none now."""
        ledger = self._ledger
        try:
            stored = asyncio.ensure_future(ledger.append_many(batch.bodies))
        except Overloaded:
            return False
        except EngineError:
            self._failed = True
            self._taking = False
            # Not before the batch has its place among those that wait.
            self._loop.call_soon(self._go_on_elsewhere, ledger)
            return False
        batch.first = self._next
        self._next += len(batch.bodies)
        self._bytes += batch.size_bytes
        self._sent.append(batch)
        stored.add_done_callback(partial(self._on_stored, ledger))
        settings = self._settings
        if self._bytes >= settings.roll_bytes or self._next >= settings.roll_entries:
            self._roll_if_due()
        return True

    def _feed(self) -> None:
        """Hand over what waits, in order, as far as the ledger takes it."""
        if self._hold.on:
            return
        while self._waiting and self._taking and self._hand(self._waiting[0]):
            self._waiting.popleft()

    # Acknowledging

    def _on_stored(self, ledger: LedgerWriter, done: "asyncio.Future[list[int]]") -> None:
        failed = done.cancelled() or done.exception() is not None
        if ledger is not self._ledger or self._error is not None:
            return
        if failed:
            self._go_on_elsewhere(ledger)
            return
        if not self._sent:
            return
        batch = self._sent.popleft()
        assert done.result()[0] == batch.first, (done.result()[0], batch.first)
        self._troubled_s = None
        self._resolve(batch, Span(ledger.ledger_id, batch.first, len(batch.bodies)))
        if self._waiting:
            self._feed()

    def _resolve(self, batch: _Batch, span: Span) -> None:
        """All entries of the oldest batch are durable."""
        self.last = span.last
        self._pending_bytes -= batch.size_bytes
        if not batch.future.done():
            batch.future.set_result(span.last if batch.single else (*batch.spans, span))
        if self._drained is not None and not self._sent and not self._waiting:
            if not self._drained.done():
                self._drained.set_result(None)

    def _count(self, last_entry: int) -> None:
        """The ledger's end proves what is durable; all else waits for the next ledger, in order."""
        assert last_entry < self._next, (last_entry, self._next)
        ledger = self._ledger.ledger_id
        while self._sent:
            batch = self._sent[0]
            stored = last_entry - batch.first + 1
            if stored < len(batch.bodies):
                break
            self._sent.popleft()
            self._resolve(batch, Span(ledger, batch.first, len(batch.bodies)))
        if self._sent and (stored := last_entry - self._sent[0].first + 1) > 0:
            batch = self._sent[0]
            span = Span(ledger, batch.first, stored)
            batch.spans = (*batch.spans, span)
            batch.bodies = batch.bodies[stored:]
            self.last = span.last
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()

    # Going on in another ledger

    def _use(self, ledger: LedgerWriter) -> None:
        """Append to a ledger that is listed, and whose predecessor is closed."""
        self._ledger = ledger
        ledger.ended = partial(self._on_ledger_ended, ledger)
        self._next = 0
        self._bytes = 0
        self._taking = True
        self._failed = False
        if self._age is not None:
            self._age.cancel()
            self._age = None
        if self._settings.roll_ms and not self._closing:
            self._age = self._loop.call_later(self._settings.roll_ms / 1000, self._aged)

    def _aged(self) -> None:
        self._age = self._loop.call_later(self._settings.roll_ms / 1000, self._aged)
        if self._next:
            self._roll_if_due()

    def _roll_if_due(self) -> None:
        if self._turning is None and not self._closing:
            if self._clock.monotonic() >= self._roll_from_s:
                self._turning = self._loop.create_task(self._turn())

    def _go_on_elsewhere(self, ledger: LedgerWriter) -> None:
        """The ledger takes no more, and what was sent to it may be durable or not."""
        if ledger is not self._ledger:
            return
        if ledger.abandoned:
            self._end(LedgerClosed(f"log {self._lists.name}: the client was closed"))
            return
        self._failed = True
        self._taking = False
        if self._troubled_s is None:
            self._troubled_s = self._clock.monotonic()
        if self._turning is None and self._error is None:
            self._turning = self._loop.create_task(self._turn())

    def _on_ledger_ended(self, ledger: LedgerWriter) -> None:
        """An idle ledger that failed may hold entries that nobody has announced: leave it."""
        if self._taking and not self._closing:
            self._go_on_elsewhere(ledger)

    async def _turn(self) -> EngineError | None:
        """Go on in another ledger, once, and again as long as the new one fails at once.

        Returns the error that leaves everything as it is for now: the old ledger goes on.
        """
        try:
            while True:
                await self._move()
                self._feed()
                if not self._failed:
                    if not self._sent and not self._waiting:
                        self._troubled_s = None
                    return None
                await self._rest()
        except Unavailable as error:
            assert self._taking
            self._roll_from_s = self._clock.monotonic() + self._settings.retry_pause_ms_max / 1000
            return error
        except EngineError as error:
            self._turning = None
            self._end(error)
            return None
        finally:
            self._turning = None

    async def _move(self) -> None:
        """Create the next ledger, close this one, list the next one, and only then use it."""
        ahead = await self._create_ahead()
        try:
            self._taking = False
            if self._failed:
                await self._insist(self._check_epoch)
            last_entry = await self._insist(
                partial(self._ledger.close, self._settings.roll_straggler_ms)
            )
            self._count(last_entry)
            if ahead is None:
                ahead = await self._insist(self._create)
            await self._insist(partial(self._list, ahead.ledger_id, last_entry))
            self._use(ahead)
            ahead = None
        finally:
            if ahead is not None:
                ahead.abandon(LedgerClosed(f"ledger {ahead.ledger_id} was never listed"))

    async def _create_ahead(self) -> LedgerWriter | None:
        """The next ledger, while this one goes on; None if this one needs to be left first."""
        if self._failed:
            return None
        if self._listed >= LEDGERS_MAX:
            raise Overloaded(f"log {self._lists.name}: {self._listed} ledgers; truncate it")
        try:
            return await self._create()
        except Unavailable:
            # It may have failed meanwhile.
            if self._taking:
                raise
            return None

    async def _list(self, ledger: int, last_entry: int) -> None:
        held = await self._lists.read()
        change = listing(self.epoch, ledger, last_entry, self._clock.wall_ms())
        self._listed = len((await self._lists.update(held, change)).list.listed)

    async def _check_epoch(self) -> None:
        check_epoch((await self._lists.read_fresh()).list, self.epoch)

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step that has to be done now, again and again until `turn_timeout_ms` have passed.

        What fails for good is explained by a newer epoch, if there is one.
        """
        begun_s = self._clock.monotonic() if self._troubled_s is None else self._troubled_s
        pause_s = self._settings.retry_pause_ms / 1000
        while True:
            try:
                return await step()
            except Unavailable as error:
                if self._clock.monotonic() - begun_s > self._settings.turn_timeout_ms / 1000:
                    raise AppendFailed(
                        f"log {self._lists.name}: no way into another ledger: {error}"
                    ) from error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._settings.retry_pause_ms_max / 1000)
            except Deposed:
                raise
            except EngineError as error:
                await self._insist(self._check_epoch)
                raise AppendFailed(f"log {self._lists.name}: {error}") from error

    async def _rest(self) -> None:
        """Before the next try after a ledger that failed before it had confirmed anything."""
        now_s = self._clock.monotonic()
        failure = self._ledger.failure
        if failure is not None and isinstance(failure.__cause__, DiskFull):
            raise AppendFailed(f"log {self._lists.name}: {failure}") from failure.__cause__
        if self._troubled_s is not None:
            if now_s - self._troubled_s > self._settings.turn_timeout_ms / 1000:
                raise AppendFailed(f"log {self._lists.name}: one ledger after the other failed")
        await asyncio.sleep(self._settings.retry_pause_ms / 1000)

    # Ending

    def _list_changed(self) -> None:
        self._look_again = True
        if self._looking is None and self._error is None:
            self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        """See whether the epoch still stands; an idle leader hears of its successor, too."""
        try:
            while self._look_again:
                self._look_again = False
                try:
                    check_epoch((await self._lists.read()).list, self.epoch)
                except MetadataUnavailable:
                    self._look_again = True
                    await asyncio.sleep(self._settings.retry_pause_ms_max / 1000)
        except EngineError as error:
            self._looking = None
            self._end(error)
        finally:
            self._looking = None

    def _end(self, error: EngineError) -> None:
        """Fail everything that waits, in order; nothing resolves with success any more."""
        if self._error is not None:
            return
        self._error = error
        self._taking = False
        self._unwatch()
        self._hold.close()
        if self._age is not None:
            self._age.cancel()
        for task in (self._turning, self._looking):
            if task is not None:
                task.cancel()
        self._ledger.abandon(_again(error))
        for batch in (*self._sent, *self._waiting):
            if not batch.future.done():
                batch.future.set_exception(_again(error))
        self._sent.clear()
        self._waiting.clear()
        self._pending_bytes = 0
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._ended.set_result(error)


def _again(error: EngineError) -> EngineError:
    """The same error for one more caller: each gets a traceback of its own."""
    return type(error)(*error.args)

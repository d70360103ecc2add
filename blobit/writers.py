"""The ledgers that are open for writing: in each pool one that small objects share, others lent.

A pool serves one purpose: one kind of objects of one bucket, or the objects without a bucket. The
pools of a store are bounded together.

Invariants:
- A ledger is either shared or lent to one stream, never both.
- A ledger takes no more once it holds its plan's bytes, or is as old as the plan allows, or an
  append to it failed; it is then closed in the background and another takes its place.
- No ledger exists before its plan's `made` has returned; `sealed` is told only of ledgers that
  this process has closed.
- Bytes of shared objects that are not yet durable stay under `shared_pending_bytes_max` in all
  pools together; more wait in the order in which they came.
- Bytes of streams that are not yet durable stay under `streams_max` streams' worth in all pools
  together. How many ledgers are lent is not bounded: whoever has many uploads open waits for bytes
  to become durable, which they do by themselves, and never for another upload to end.
- While no ledger can be made, all who wait hear so at once; they do not try one after the other.
- Ledgers without work are closed after `ledger_idle_ms`; more than `ledgers_open_max` never stay.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

from blobit.budget import ByteBudget
from blobit.errors import BlobError, BlobsClosed, DiskFull, not_stored
from blobit.ownership import LEDGER_OWNER
from blobit.settings import BlobSettings
from engine.errors import EngineError
from engine.ledger.client import LedgerClient
from engine.ledger.writer import LedgerWriter
from engine.transport.contract import uses_reserve

_OPEN_MS_MIN: Final = 1_000


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """How a pool's ledgers are made, and who hears of them.

    `metadata` is kept with each ledger. `bytes_max` is where a ledger ends, None for the store's
    setting; `open_ms_max` how long one takes objects, None for ever. What is None of the quorums
    is the client's choice. `compression` is "" or "zstd". `made` is awaited with the ledger's id
    before there is a ledger, `sealed` with the id and the bytes in it once it is closed; what
    `made` raises the put raises, what `sealed` raises is left to collection.
    """

    metadata: Mapping[str, bytes] = field(default_factory=lambda: dict(LEDGER_OWNER))
    bytes_max: int | None = None
    ensemble: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None
    open_ms_max: int | None = None
    compression: str = ""
    made: Callable[[int], Awaitable[None]] | None = None
    sealed: Callable[[int, int], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        assert self.compression in ("", "zstd"), self.compression


class PooledLedger:
    """One open ledger and what the pool must know of it."""

    def __init__(self, writer: LedgerWriter, bytes_max: int, owner: "LedgerPool") -> None:
        self.writer = writer
        self.owner = owner
        self.ledger_id = writer.ledger_id
        self.failed = False
        self.retired = False
        self.pending = 0
        self._clock = owner.pools.client.clock
        self.idle_since_s = self._clock.monotonic()
        self._room_bytes = bytes_max
        open_ms_max = owner.plan.open_ms_max
        # A ledger that is too old when it is made would be replaced for ever.
        open_s = None if open_ms_max is None else max(open_ms_max, _OPEN_MS_MIN) / 1000
        self._ends_s = None if open_s is None else self.idle_since_s + open_s

    @property
    def usable(self) -> bool:
        """Whether it takes more."""
        if self.failed or self._room_bytes <= 0:
            return False
        return self._ends_s is None or self._clock.monotonic() < self._ends_s

    def append(self, entry: bytes) -> Awaitable[int]:
        """Append one entry, as most small objects are. Raises what the ledger's writer raises."""
        self._room_bytes -= len(entry)
        return self.writer.append(entry)

    def append_many(self, entries: Sequence[bytes], size_bytes: int) -> Awaitable[list[int]]:
        """Append entries with consecutive ids. Raises what the ledger's writer raises."""
        self._room_bytes -= size_bytes
        return self.writer.append_many(entries)

    def begin(self) -> None:
        """One more works with it."""
        self.pending += 1
        if self.pending == 1:
            self.owner.pools.note_busy(self)

    def end(self) -> None:
        """One less does."""
        self.pending -= 1
        if not self.pending and not self.retired:
            self.idle_since_s = self._clock.monotonic()
            self.owner.pools.note_idle(self)


class LedgerPools:
    """The pools of one store, bounded together. Closed by their owner."""

    def __init__(self, client: LedgerClient, settings: BlobSettings) -> None:
        self.client = client
        self.settings = settings
        self.budget = ByteBudget(settings.shared_pending_bytes_max)
        self.stream_budget = ByteBudget(settings.streams_max * settings.stream_pending_bytes_max)
        self.open_count = 0
        self._pools: dict[LedgerPool, None] = {}
        self._idle: OrderedDict[PooledLedger, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def pool(self, plan: LedgerPlan | None = None) -> "LedgerPool":
        """A new pool; it makes its first ledger when one is wanted."""
        pool = LedgerPool(self, plan if plan is not None else LedgerPlan())
        self._pools[pool] = None
        if self._closed:
            pool.end()
        return pool

    def drop(self, pool: "LedgerPool") -> None:
        """A pool has ended."""
        self._pools.pop(pool, None)

    # What pools tell of their ledgers

    def note_made(self, made: PooledLedger) -> None:
        """One more is open: keep within bounds, and see to it that it is closed one day."""
        self.open_count += 1
        self.note_idle(made)
        surplus = self.open_count - self.settings.ledgers_open_max
        for ledger in list(islice(self._idle, max(0, surplus))):
            if ledger is not made:
                ledger.owner.retire_idle(ledger)
        if self._timer is None:
            self._arm()

    def note_busy(self, ledger: PooledLedger) -> None:
        """A ledger has work."""
        self._idle.pop(ledger, None)

    def note_idle(self, ledger: PooledLedger) -> None:
        """A ledger has no work any more."""
        self._idle[ledger] = None

    def note_retired(self, ledger: PooledLedger) -> None:
        """A ledger takes nothing any more."""
        self.open_count -= 1
        self._idle.pop(ledger, None)

    async def close(self) -> None:
        """Close all pools and their ledgers. Pending shared puts end first."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pools = list(self._pools)
        for pool in pools:
            pool.end()
        for pool in pools:
            await pool.close()

    def _arm(self) -> None:
        delay_s = self.settings.ledger_idle_ms / 1000 / 4
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        before_s = self.client.clock.monotonic() - self.settings.ledger_idle_ms / 1000
        for ledger in list(takewhile(lambda each: each.idle_since_s <= before_s, self._idle)):
            ledger.owner.retire_idle(ledger)
        if self.open_count:
            self._arm()


class LedgerPool:
    """Makes ledgers by one plan, lends them, and closes them. Made by `LedgerPools.pool`."""

    def __init__(self, pools: LedgerPools, plan: LedgerPlan) -> None:
        self.plan = plan
        self.settings = pools.settings
        self.pools = pools
        self._client = pools.client
        self._from_reserve = uses_reserve(plan.metadata)
        self._making: asyncio.Task[None] | None = None
        self._wanted = 0
        self._shared: PooledLedger | None = None
        self._idle: list[PooledLedger] = []
        self._lent: list[PooledLedger] = []
        self._closings: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def open_count(self) -> int:
        """How many of its ledgers take objects."""
        return len(self._idle) + len(self._lent) + (self._shared is not None)

    @property
    def open_ledgers(self) -> set[int]:
        """The ids of its ledgers that are not closed, also of those that are being closed."""
        every = [*self._idle, *self._lent, *([self._shared] if self._shared else [])]
        return {ledger.ledger_id for ledger in every}

    def _check_room(self) -> None:
        """Raise `DiskFull` if there is no space for new bytes, before any is read or sent."""
        if not self._from_reserve and (lack := self._client.capacity.lack):
            raise DiskFull(lack)

    async def append_shared(self, entries: Sequence[bytes], size_bytes: int) -> tuple[int, int]:
        """Store entries with consecutive ids beside other objects'; returns ledger and first id.

        Where a ledger fails they are stored again in the next. Raises `BlobNotStored`, and what
        the plan's `made` raises.
        """
        self._check_room()
        budget = self.pools.budget
        if not budget.take_now(size_bytes):
            await budget.take(size_bytes)
        try:
            cause: EngineError | None = None
            for _ in range(self.settings.attempts_max):
                ledger = self._shared
                if ledger is None or not ledger.usable:
                    ledger = await self._shared_ledger()
                ledger.begin()
                try:
                    if len(entries) == 1:
                        first = await ledger.append(entries[0])
                    else:
                        first = (await ledger.append_many(entries, size_bytes))[0]
                except EngineError as error:
                    ledger.failed = True
                    cause = error
                else:
                    return ledger.ledger_id, first
                finally:
                    ledger.end()
            raise not_stored(
                f"{self.settings.attempts_max} ledgers failed: put the object again", cause
            )
        finally:
            budget.give_back(size_bytes)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[PooledLedger]:
        """A ledger for one stream alone, as long as the block lasts.

        Raises `BlobNotStored`, and what the plan's `made` raises.
        """
        self._check_open()
        self._check_room()
        ledger = self._take_idle()
        if ledger is None:
            ledger = await self._make()
        ledger.begin()
        self._lent.append(ledger)
        try:
            yield ledger
        finally:
            ledger.end()
            self._lent.remove(ledger)
            if ledger.usable and not self._closed:
                self._idle.append(ledger)
            else:
                self._retire(ledger)
            if ledger.failed:
                # What befell it, a takeover for example, befell those that lay idle beside it.
                for other in list(self._idle):
                    self.retire_idle(other)

    async def append_lent(
        self, ledger: PooledLedger, entries: Sequence[bytes], size_bytes: int
    ) -> "asyncio.Future[list[int]]":
        """Append to a lent ledger, once there is room under way; await what it returns for the ids.

        The room is given back when the entries are durable or lost, whoever waits for that. Raises
        what the ledger's writer raises.
        """
        budget = self.pools.stream_budget
        await budget.take(size_bytes)
        try:
            pending = asyncio.ensure_future(ledger.append_many(entries, size_bytes))
        except BaseException:
            budget.give_back(size_bytes)
            raise

        def settled(done: "asyncio.Future[list[int]]") -> None:
            budget.give_back(size_bytes)
            if not done.cancelled():
                # Who waits for the ids hears of a failure; an upload that rests may never ask.
                done.exception()

        pending.add_done_callback(settled)
        return pending

    def forget(self, ledger_id: int) -> None:
        """Give no more objects to a ledger: nothing in it can be kept any more."""
        for ledger in [*self._idle, *self._lent, *([self._shared] if self._shared else [])]:
            if ledger.ledger_id == ledger_id:
                ledger.failed = True

    def retire_idle(self, ledger: PooledLedger) -> None:
        """Close a ledger that has no work, unless somebody is just about to give it some."""
        if ledger is self._shared:
            if self._wanted:
                return
            self._shared = None
        else:
            self._idle.remove(ledger)
        self._retire(ledger)

    def end(self) -> None:
        """Take nothing more, and begin to close every ledger; a lent one's stream fails."""
        self._closed = True
        for ledger in [*self._idle, *self._lent, *([self._shared] if self._shared else [])]:
            self._retire(ledger)
        self._shared = None
        self._idle.clear()

    async def close(self) -> None:
        """Close every ledger. Pending shared puts end first; a lent ledger's stream fails."""
        self.end()
        while self._closings:
            await asyncio.wait(self._closings)
        self.pools.drop(self)

    def _take_idle(self) -> PooledLedger | None:
        while self._idle:
            ledger = self._idle.pop()
            if ledger.usable:
                return ledger
            self._retire(ledger)
        return None

    async def _shared_ledger(self) -> PooledLedger:
        """The ledger that small objects share; made, once for all who wait, if there is none."""
        # Whoever waits for it has work for it: it must not be closed before it has any.
        self._wanted += 1
        try:
            while (ledger := self._shared) is None or not ledger.usable:
                self._check_open()
                if self._making is None:
                    self._making = asyncio.get_running_loop().create_task(self._make_shared())
                    self._making.add_done_callback(self._made_shared)
                await asyncio.shield(self._making)
            return ledger
        finally:
            self._wanted -= 1

    async def _make_shared(self) -> None:
        fresh = await self._make()
        if self._shared is not None:
            self._retire(self._shared)
        self._shared = fresh

    def _made_shared(self, made: "asyncio.Task[None]") -> None:
        self._making = None
        if not made.cancelled():
            # Who waits hears of a failure; perhaps nobody does any more.
            made.exception()

    async def _make(self) -> PooledLedger:
        plan = self.plan
        try:
            writer = await self._client.create_ledger(
                plan.ensemble,
                plan.write_quorum,
                plan.ack_quorum,
                metadata=dict(plan.metadata),
                announce=plan.made,
            )
        except EngineError as error:
            raise not_stored(
                f"no ledger could be created: {error}: put the object again later", error
            ) from error
        bytes_max = plan.bytes_max if plan.bytes_max is not None else self.settings.ledger_bytes_max
        ledger = PooledLedger(writer, bytes_max, self)
        self.pools.note_made(ledger)
        if self._closed:
            self._retire(ledger)
            self._check_open()
        return ledger

    def _check_open(self) -> None:
        if self._closed:
            raise BlobsClosed("the blob store, or this bucket of it, is closed: open it again")

    def _retire(self, ledger: PooledLedger) -> None:
        """Close a ledger behind the scenes; its pending appends end first."""
        if ledger.retired:
            return
        ledger.retired = True
        self.pools.note_retired(ledger)
        task = asyncio.get_running_loop().create_task(self._close_ledger(ledger))
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def _close_ledger(self, ledger: PooledLedger) -> None:
        writer, sealed = ledger.writer, self.plan.sealed
        try:
            await writer.close()
            if sealed is not None:
                await sealed(writer.ledger_id, writer.metadata.length or 0)
        except (EngineError, BlobError):
            # It stays open in the metadata. What was acknowledged in it is readable all the same,
            # and collection seals what nobody did.
            return

"""The writer of one ledger: entries in, ids out once they are durable.

Invariants:
- Ids are given in the order of the calls, from 0, without a gap, and resolve in that order.
- A future resolves with an id only when the LAC covers it (deferred sync: when it has its id; the
  entry may be in this process alone until `force()` returns).
- Bytes accepted and not yet confirmed stay under `writer_bytes_max`; more waits, parked, up to
  `writer_parked_bytes_max`; beyond that an append is refused before it has an id.
- After the first fatal error nothing resolves with success any more.
- `close()` ends the ledger at the LAC, never at what was merely sent.
- Cancelling a wait abandons the wait, never the entry.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from engine import limits
from engine.errors import (
    DiskFull,
    DuplicateEntryId,
    EngineError,
    EntryTooLarge,
    InvalidRequest,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    Overloaded,
)
from engine.ledger.closing import close_at, marked, settle_late
from engine.ledger.context import LedgerContext
from engine.ledger.lookout import Lookout
from engine.ledger.placement import Ensemble
from engine.ledger.quorum import writable
from engine.ledger.replication import Replication
from engine.ledger.respreading import Respreading
from engine.ledger.waiters import ManyFuture, Waiter, resolve
from engine.metadata.bookies import Registration
from engine.metadata.ledgers import Fragment, Held, LedgerMetadata, State
from engine.run import NO_ENTRY, Run, as_bytes
from engine.transport.contract import LedgerFacts, uses_reserve

_LONE_TO_SEND: Final = 8
"""So many flushes in a row must have had one entry before one is sent as soon as it is appended."""


class LedgerWriter:
    """The one writer of a ledger. Made by `LedgerClient.create_ledger`.

    All methods are called on the event loop that made it.
    """

    def __init__(
        self, context: LedgerContext, held: Held, *, deferred_sync: bool, explicit_ids: bool
    ) -> None:
        self.ledger_id = held.metadata.ledger_id
        self.abandoned = False
        """Whether the client ended it, and nobody else."""
        self.ended: Callable[[], None] | None = None
        """Called on the loop, soon after the writer took its last append, for whatever reason."""
        self._context = context
        self._held = held
        # The metadata as created, because an earlier program that writes it drops the new fields,
        # and the fragment by which entries are acknowledged now.
        self._made, self._fragment = held.metadata, held.metadata.fragments[-1]
        self._deferred_sync = deferred_sync
        self._explicit_ids = explicit_ids
        self._loop = asyncio.get_running_loop()
        self._error: EngineError | None = None
        self._closing: asyncio.Task[int] | None = None
        self._bodies: list[bytes] = []
        self._waiters: list[Waiter] = []
        self._scheduled = False
        self._lone_flushes = 0
        self._pending_bytes = 0
        self._parked: deque[tuple[list[bytes], asyncio.Future[Any], int]] = deque()
        self._parked_bytes = 0
        self._accepting = not explicit_ids
        self._roomy_bytes_max = context.settings.writer_bytes_max - limits.ENTRY_BYTES_MAX
        self._roomy_bytes = self._roomy_bytes_max
        self._early: dict[int, tuple[bytes, asyncio.Future[int]]] = {}
        self._sent: deque[tuple[Run, list[Waiter]]] = deque()
        self._length = self._confirmed_length = 0
        self._forces: list[tuple[int, asyncio.Future[None]]] = []
        self._lookout = Lookout(self._check_bookies)
        self._unwatch = context.bookies.watch(self._lookout.news)
        self._next_explicit, self._full = 0, ""
        """`_full` says why appends are refused now: the disks have only their reserves left."""
        self._degraded = False
        self._settling: asyncio.Task[None] | None = None
        self._from_reserve = uses_reserve(self._made.custom)
        self._replication = Replication(
            ledger_id=self.ledger_id,
            quorums=context.quorums(self._made),
            ensemble=self._fragment.ensemble,
            fragment_first=0,
            lac=NO_ENTRY,
            recovery=False,
            owner=self,
            context=context,
        )
        self._respreading = Respreading(self._replication, context)

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is durable on an ack quorum, NO_ENTRY (-1) if none."""
        return self._replication.lac

    @property
    def length(self) -> int:
        """The bytes of all entries up to `last_add_confirmed`."""
        return self._confirmed_length

    @property
    def fenced(self) -> bool:
        """Whether another client recovers or has recovered the ledger, so appends have ended."""
        return isinstance(self._error, LedgerFenced)

    @property
    def failure(self) -> EngineError | None:
        """The error that ended the writer; None while it works."""
        return self._error

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last wrote or read it."""
        return self._held.metadata

    async def start(self, absent: frozenset[int]) -> frozenset[str]:
        """Connect to the ensemble. Called once, by the client.

        Returns the bookies that refused this client, if without them nothing can be appended.
        """
        await self._replication.start(absent)
        return self._replication.refused

    def append(self, body: bytes) -> Awaitable[int]:
        """Append one entry; await the result for its id, given when the entry is durable.

        Raises `EntryTooLarge`, `Overloaded`, `DiskFull` and `LedgerClosed` at once, with nothing
        stored.
        The await raises an `OutcomeUnknown` (fenced, closed, too few bookies).
        """
        if not self._accepting:
            raise self._refusal()
        size_bytes = len(body)
        pending_bytes = self._pending_bytes + size_bytes
        if (
            pending_bytes > self._roomy_bytes
            or size_bytes > limits.ENTRY_BYTES_MAX
            or type(body) is not bytes
        ):
            return self._append_checked(body)
        self._pending_bytes = pending_bytes
        future = self._loop.create_future()
        self._bodies.append(body)
        self._waiters.append(future)
        if not self._scheduled:
            if self._lone_flushes >= _LONE_TO_SEND and not self._sent:
                self._flush()
            else:
                self._scheduled = True
                self._loop.call_soon(self._flush)
        return future

    def _append_checked(self, body: bytes) -> "asyncio.Future[int]":
        """Append where the quick way is not sure that there is room."""
        body = as_bytes(body)
        if len(body) > limits.ENTRY_BYTES_MAX:
            raise EntryTooLarge(f"{len(body)} bytes; at most {limits.ENTRY_BYTES_MAX} fit")
        future = self._loop.create_future()
        self._accept_or_park([body], future, len(body))
        return future

    def append_many(self, bodies: Sequence[bytes]) -> Awaitable[list[int]]:
        """Append entries with consecutive ids; resolves when the last of them is durable.

        The same errors as `append`. An empty list resolves at once.
        """
        if not self._accepting:
            raise self._refusal()
        future = ManyFuture(loop=self._loop)
        if len(bodies) == 0:
            future.set_result([])
            return future
        entries = [body if type(body) is bytes else as_bytes(body) for body in bodies]
        largest = max(map(len, entries))
        if largest > limits.ENTRY_BYTES_MAX:
            raise EntryTooLarge(f"{largest} bytes; at most {limits.ENTRY_BYTES_MAX} fit")
        future.count = len(entries)
        self._accept_or_park(entries, future, sum(map(len, entries)))
        return future

    def append_at(self, entry_id: int, body: bytes) -> Awaitable[int]:
        """Append the entry with this id, on a ledger made with `explicit_ids=True`.

        Ids may come out of order; an id resolves when all below it are durable too, so a gap
        holds back what follows it. Raises `DuplicateEntryId`, and what `append` raises.
        """
        if not self._explicit_ids:
            raise InvalidRequest("the ledger was not created with explicit_ids=True")
        if not 0 <= entry_id < limits.ENTRY_ID_MAX:
            raise InvalidRequest(f"{entry_id} is no entry id")
        body = as_bytes(body)
        if entry_id < self._next_explicit or entry_id in self._early:
            raise DuplicateEntryId(f"entry {entry_id} was given before")
        if self._error is not None or self._closing is not None or self._full:
            raise self._refusal()
        if entry_id == self._next_explicit:
            future = self._append_checked(body)
            self._next_explicit += 1
            self._feed_early()
            return future
        if len(body) > limits.ENTRY_BYTES_MAX:
            raise EntryTooLarge(f"{len(body)} bytes; at most {limits.ENTRY_BYTES_MAX} fit")
        self._reserve_parking(len(body))
        early: asyncio.Future[int] = self._loop.create_future()
        self._early[entry_id] = (body, early)
        return early

    async def force(self) -> None:
        """Wait until every entry appended before this call is durable.

        Raises what the appends would raise. Needed only after deferred-sync appends: of those it
        alone tells whether they are stored anywhere.
        """
        if self._error is not None:
            raise self._refusal()
        self._flush()
        last = self._replication.pushed + sum(len(bodies) for bodies, _, _ in self._parked)
        if last <= self._replication.lac:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._forces.append((last, future))
        await future

    async def close(self, straggler_ms: int | None = None) -> int:
        """Wait for pending appends, then close the ledger; returns its last entry id.

        Finishes a recovery that another client has begun. Replicas behind the ack quorum get
        `straggler_close_ms`; the call waits for them `straggler_ms` at most. May be called twice.
        Raises `MetadataUnavailable`, `RecoveryIncomplete` (call again), `NoSuchLedger`.
        """
        self._accepting = False
        self._replication.even_out()
        if self._closing is None or (self._closing.done() and self._closing_failed()):
            self._closing = self._loop.create_task(self._close(straggler_ms))
            # Who waits for it hears of its failure; perhaps nobody does any more.
            self._closing.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Whoever waits may be cancelled; then nobody needs to hear of a failure.
            self._closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._closing)

    def abandon(self, error: EngineError) -> None:
        """End the writer at once; the ledger stays open, and what waits has an unknown outcome."""
        self.abandoned = True
        self._stop(error)

    def _closing_failed(self) -> bool:
        assert self._closing is not None
        return self._closing.cancelled() or self._closing.exception() is not None

    # Accepting

    def _refusal(self) -> EngineError:
        if self._error is None and self._closing is None and self._full:
            return DiskFull(self._full)
        if self._error is None and self._closing is None:
            return InvalidRequest("this ledger takes explicit entry ids: use append_at")
        if self._error is None:
            return LedgerClosed(f"ledger {self.ledger_id}: the writer is closed")
        refusal = type(self._error)(*self._error.args)
        refusal.__cause__ = self._error.__cause__
        return refusal

    def _reserve_parking(self, size_bytes: int) -> None:
        if self._parked_bytes + size_bytes > self._context.settings.writer_parked_bytes_max:
            raise Overloaded(
                f"ledger {self.ledger_id}: {self._parked_bytes} bytes already wait to be sent"
            )
        self._parked_bytes += size_bytes

    def _accept_or_park(
        self, bodies: list[bytes], future: "asyncio.Future[Any]", size_bytes: int
    ) -> None:
        bytes_max = self._context.settings.writer_bytes_max
        if self._parked or (self._pending_bytes and self._pending_bytes + size_bytes > bytes_max):
            self._park(bodies, future, size_bytes)
        else:
            self._accept(bodies, future, size_bytes)

    def _park(self, bodies: list[bytes], future: "asyncio.Future[Any]", size_bytes: int) -> None:
        self._reserve_parking(size_bytes)
        self._parked.append((bodies, future, size_bytes))
        self._roomy_bytes = -1

    def _unpark(self) -> None:
        """Let parked appends in, in order, while there is room."""
        bytes_max = self._context.settings.writer_bytes_max
        while self._parked:
            bodies, future, size_bytes = self._parked[0]
            if self._pending_bytes and self._pending_bytes + size_bytes > bytes_max:
                return
            self._parked.popleft()
            self._parked_bytes -= size_bytes
            self._accept(bodies, future, size_bytes)
        self._roomy_bytes = self._roomy_bytes_max

    def _accept(self, bodies: list[bytes], future: "asyncio.Future[Any]", size_bytes: int) -> None:
        self._pending_bytes += size_bytes
        self._bodies.extend(bodies)
        self._waiters.extend([None] * (len(bodies) - 1))
        self._waiters.append(future)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _feed_early(self) -> None:
        while (early := self._early.pop(self._next_explicit, None)) is not None:
            body, future = early
            self._parked_bytes -= len(body)
            self._next_explicit += 1
            self._park([body], future, len(body))
        self._unpark()

    # Sending

    def _flush(self) -> None:
        """Pack all that was appended in this turn of the loop into runs, and send them."""
        self._scheduled = False
        if not self._bodies or self._error is not None:
            return
        bodies, self._bodies = self._bodies, []
        waiters, self._waiters = self._waiters, []
        lone = len(bodies) == 1 and not self._sent
        self._lone_flushes = self._lone_flushes + 1 if lone else 0
        runs: list[Run] = []
        lac = self._replication.lac
        first = self._replication.pushed + 1
        start = 0
        while start < len(bodies):
            end = start + 1 if start + 1 == len(bodies) else self._run_end(bodies, start, first)
            run = Run.pack(
                self.ledger_id, first, bodies[start:end], lac=lac, length_before=self._length
            )
            self._length = run.length
            runs.append(run)
            self._sent.append((run, waiters[start:end]))
            first += end - start
            start = end
        self._replication.send(runs)
        if self._deferred_sync:
            start = 0
            for run in runs:
                resolve(run, waiters[start : start + run.count])
                start += run.count

    def _run_end(self, bodies: list[bytes], start: int, first: int) -> int:
        """Where the run that starts at `bodies[start]` ends: stripe, entries and bytes bound it."""
        stripe_entries = self._held.metadata.stripe_entries
        room = min(stripe_entries - first % stripe_entries, limits.RUN_ENTRIES_MAX)
        end = min(start + room, len(bodies))
        size_bytes = 0
        for position in range(start, end):
            size_bytes += len(bodies[position])
            if size_bytes > limits.RUN_BYTES_MAX and position > start:
                return position
        return end

    # Owner of the replication

    def on_confirmed(self, lac: int) -> None:
        """Resolve the futures that the LAC now covers, in order."""
        sent = self._sent
        # What is confirmed ends with a run.
        while sent and sent[0][0].first <= lac:
            run, waiters = sent.popleft()
            self._pending_bytes -= len(run.body)
            self._confirmed_length = run.length
            if not self._deferred_sync:
                resolve(run, waiters)
        if self._parked:
            self._unpark()
        if self._forces:
            self._resolve_forces(lac)
        self._loop.call_soon(self._announce)

    def on_failed(self, error: EngineError) -> None:
        """Fail everything that waits: its outcome is unknown, and nothing follows."""
        if self._error is not None:
            return
        self._error = error
        self._accepting = False
        self._unwatch()
        if self.ended is not None:
            self._loop.call_soon(self.ended)
        waiting = [future for _, group in self._sent for future in group]
        waiting += self._waiters
        waiting += [future for _, future, _ in self._parked]
        waiting += [future for _, future in self._early.values()]
        waiting += [future for _, future in self._forces]
        self._sent.clear()
        self._bodies, self._waiters = [], []
        self._parked.clear()
        self._early.clear()
        self._forces.clear()
        for future in waiting:
            if future is not None and not future.done():
                future.set_exception(self._refusal())

    async def replace(
        self, first: int, ensemble: tuple[str, ...], failed: frozenset[int]
    ) -> Fragment | None:
        """Record a new ensemble from `first` on, by compare-and-set."""
        made, replication = self._made, self._replication
        wanted = await self._context.placement.substitutes(
            ensemble,
            failed,
            replication.quorums,
            survives=made.survives,
            strict=made.strict,
            domains=self._fragment.domains,
            from_reserve=self._from_reserve,
        )
        if wanted is None and not made.strict and replication.enough_but_together:
            # Acknowledgement by one host is better than none.
            wanted = Ensemble(ensemble, failed)

        def change(current: LedgerMetadata) -> LedgerMetadata | None:
            if current.state is State.IN_RECOVERY:
                raise LedgerFenced(f"ledger {self.ledger_id} is being recovered by another client")
            if current.state is State.CLOSED:
                raise LedgerClosed(f"ledger {self.ledger_id} was closed by another client")
            if current.fragments[-1].ensemble != ensemble:
                return None
            if wanted is None:
                return None if current.degraded else marked(current)
            changed = current.with_fragment(first, wanted.bookies, wanted.domains)
            known = msgspec.structs.replace(changed, survives=made.survives, strict=made.strict)
            return marked(known)

        try:
            self._held = await self._context.ledgers.update(self._held, change)
        except NoSuchLedger as error:
            raise LedgerClosed(f"ledger {self.ledger_id} was deleted") from error
        await self._context.ledgers.request_repair(self.ledger_id, "a replica is missing")
        adopted = self._held.metadata.fragments[-1]
        if wanted is None and adopted.ensemble == ensemble:
            return None
        self._fragment = adopted
        self._respreading.news()
        return adopted

    def facts(self, first: int, ensemble: tuple[str, ...]) -> LedgerFacts:
        """What bookies should remember of the ledger."""
        return self._context.facts(self._held.metadata, first, ensemble)

    def _announce(self) -> None:
        if not self._bodies:
            self._replication.announce()

    def _resolve_forces(self, lac: int) -> None:
        waiting = [(last, future) for last, future in self._forces if last > lac]
        for last, future in self._forces:
            if last <= lac and not future.done():
                future.set_result(None)
        self._forces = waiting

    # Registrations

    async def _check_bookies(self) -> None:
        """Replace bookies that are gone, are to be decommissioned, or share a host with others."""
        registered = await self._context.bookies.staying()
        self._note_room(registered)
        available = frozenset(registered)
        ensemble = frozenset(self._replication.ensemble)
        if available - ensemble:
            self._replication.suspect(ensemble - available)
        self._replication.revive()
        self._respreading.news()
        if not self._bodies:
            await self._replication.announce_again()

    def _note_room(self, registered: Mapping[str, Registration]) -> None:
        """Refuse appends while too few bookies of the ensemble accept them and no others could."""
        capacity, replication = self._context.placement.capacity, self._replication
        capacity.note(registered)
        if self._from_reserve or self._error is not None or self._closing is not None:
            return
        roomy = {
            index
            for index, name in enumerate(replication.ensemble)
            if (found := registered.get(name)) is not None and found.writable
        }
        quorums = replication.quorums
        if not self._made.strict:
            quorums = quorums.with_domains(())
        self._full = "" if writable(quorums, roomy) else capacity.lack_on_bookies
        self._accepting = not self._full and not self._explicit_ids

    # Closing

    async def _close(self, straggler_ms: int | None) -> int:
        self._respreading.stop()
        if self._error is None:
            await self._drain()
        late, closed = False, LedgerClosed(f"ledger {self.ledger_id}: the writer is closed")
        if self._error is None:
            patience_ms = self._context.settings.straggler_close_ms
            wait_ms = patience_ms if straggler_ms is None else min(straggler_ms, patience_ms)
            settled = await self._replication.settled(wait_ms)
            late = not settled and self._replication.whole and wait_ms < patience_ms
            self._degraded |= not settled
        last, length = self._replication.lac, self._confirmed_length
        self._stop(closed, sending=late)
        before = self._held.metadata.degraded
        self._held, own = await close_at(
            self._context, self._held, last, length, degraded=self._degraded
        )
        if late and own and not before:
            self._settling = self._loop.create_task(self._settle())
        else:
            self._replication.stop(closed)
            if self._held.metadata.degraded:
                await self._context.ledgers.request_repair(self.ledger_id, "a replica is missing")
        fragment = self._held.metadata.fragments[-1]
        self._replication.record(self.facts(fragment.first, fragment.ensemble))
        assert self._held.metadata.last_entry is not None
        return self._held.metadata.last_entry

    async def _settle(self) -> None:
        await settle_late(self._context, self._held, self._replication)
        self._replication.stop(self._refusal())

    async def _drain(self) -> None:
        """Wait until everything accepted is confirmed, or the writer has failed."""
        for _, future in self._early.values():
            if not future.done():
                gap = LedgerClosed("closed before the gap below this id was filled")
                future.set_exception(gap)
        self._early.clear()
        with suppress(EngineError):
            await self.force()

    def _stop(self, error: EngineError, *, sending: bool = False) -> None:
        """End the writer; with `sending` stragglers still get what was confirmed."""
        if not sending:
            self._replication.stop(error)
        self.on_failed(error)
        self._lookout.stop()
        self._respreading.stop()

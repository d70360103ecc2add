"""Replication: sends runs to an ensemble, counts acknowledgements, replaces bookies that fail.

One `Replication` serves one writer, or one recoverer writing back. What replacing a bookie means
(a compare-and-set of the metadata, or a local note) is its owner's decision, given as `replace`.

Invariants:
- A mark moves only over requests acknowledged by the slot's own bookie, in the order sent.
- The LAC never moves while an ensemble change is under way, and never goes back.
- Nothing is sent to a new bookie before `replace` has returned with it.
- Entries are confirmed by the ack quorums of the newest fragment in the metadata at that moment.
- A change keeps marks of bookies that stay and starts replaced ones at the LAC: acknowledgements
  of the old bookie are gone before any confirmation is computed again.
- A run is held until every live slot of its write set has it; what is held only for a straggler is
  bounded by `straggler_bytes_max`.
- A lone request may pass bookies over (`engine.ledger.sparing`).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from engine.errors import (
    AppendFailed,
    BookieUnavailable,
    DiskFull,
    EngineError,
    LedgerClosed,
    LedgerFenced,
    Unauthorized,
    Unavailable,
)
from engine.ledger.context import LedgerContext
from engine.ledger.owner import Owner
from engine.ledger.patience import Patience
from engine.ledger.quorum import Quorums, confirmed, writable
from engine.ledger.slot import LATEST_SHARE, Sent, Slot
from engine.ledger.sparing import Sparing
from engine.ledger.stragglers import Stragglers
from engine.limits import ENTRY_BYTES_MAX
from engine.metadata.ledgers import Fragment
from engine.run import NO_ENTRY, Run
from engine.transport.contract import AppendReply, LedgerFacts, Status

_REQUEST_BYTES_MAX = ENTRY_BYTES_MAX
_MARK = attrgetter("mark")


class Replication:
    """Runs in, confirmations out. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        ledger_id: int,
        quorums: Quorums,
        ensemble: tuple[str, ...],
        fragment_first: int,
        lac: int,
        recovery: bool,
        owner: Owner,
        context: LedgerContext,
    ) -> None:
        self.ledger_id = ledger_id
        self.quorums = quorums
        self.slots = [Slot(index, bookie, lac) for index, bookie in enumerate(ensemble)]
        self.fragment_first = fragment_first
        self.lac = lac
        self.pushed = lac
        self.error: EngineError | None = None
        self._announced = lac
        self._key = context.key
        self._recovery = recovery
        self._owner = owner
        self._context = context
        self._clock = context.clock
        self._settings = context.settings
        self._measures = context.measures
        self._loop = asyncio.get_running_loop()
        self._unconfirmed: deque[Run] = deque()
        self._stragglers = Stragglers(quorums, self.slots)
        self._sparing = Sparing(self._stragglers, self._even_out, context)
        self.changing: asyncio.Task[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._release: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._patience = Patience(context.clock, context.settings.append_timeout_ms)
        self._idle: asyncio.Event | None = None
        self._retry = asyncio.Event()

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies by index, those lost without a replacement included."""
        return tuple(slot.bookie_id for slot in self.slots)

    @property
    def complete(self) -> bool:
        """Whether every replica of every confirmed entry is known to be stored."""
        return not self._stragglers.runs and not any(slot.failed for slot in self.slots)

    @property
    def whole(self) -> bool:
        """Whether every index of the ensemble has a bookie that serves."""
        return not any(slot.failed for slot in self.slots)

    @property
    def refused(self) -> frozenset[str]:
        """The bookies that let this client not in, if those that did are too few to append."""
        if self._alive_enough():
            return frozenset()
        failed = (slot.bookie_id for slot in self.slots if slot.failed)
        return frozenset(name for name in failed if self._context.troubles.refused(name))

    async def start(self, absent: frozenset[int] = frozenset()) -> None:
        """Connect to the ensemble; indexes in `absent` are known to have no live bookie."""
        for slot in self.slots:
            if slot.index in absent:
                slot.failed = slot.lost = True
            else:
                await self._connect(slot)
        if any(slot.failed and not slot.lost for slot in self.slots):
            self._begin_change()

    def send(self, runs: Sequence[Run]) -> None:
        """Send runs that follow `pushed` without a gap. Confirmations come through the owner."""
        assert self.error is None
        assert runs[0].first == self.pushed + 1
        if self.changing is not None and not self._unconfirmed:
            # However long nobody waited for bookies: this one has just begun to.
            self._patience.begin(waiting=False)
            self._retry.set()
        spared = () if self._unconfirmed or self.changing else self._sparing.choose(runs)
        self._unconfirmed.extend(runs)
        before = self.pushed
        self.pushed = runs[-1].first + runs[-1].count - 1
        if self.changing is not None:
            return
        self._announced = runs[-1].lac
        lone = len(runs) == 1 and self.quorums.ensemble == self.quorums.write
        for slot in self.slots:
            if slot.failed or slot in spared:
                continue
            if slot.sent != before:
                self._catch_up(slot)
            elif lone:
                self._request(slot, runs)
                slot.sent = self.pushed
            else:
                self._send_to(slot, runs, self.pushed)
        if self._ticker is None:
            self._arm()

    def announce(self) -> None:
        """Tell the bookies the LAC now, since no run is about to carry it."""
        if self.lac > self._announced and self.error is None:
            self._announced = self.lac
            self.even_out()
            for slot in self.slots:
                if slot.bookie is not None and slot.sent >= self.lac:
                    slot.bookie.confirm(self.ledger_id, self.lac)

    async def announce_again(self) -> None:
        """Send the announced LAC to the bookies again, because a restarted bookie does not know it.

        A bookie keeps the LAC only in memory. This is best effort.
        """
        lac = self.lac
        if lac == NO_ENTRY or self.error is not None:
            return
        having = [slot.bookie_id for slot in self.slots if not slot.failed and slot.mark >= lac]
        await asyncio.gather(*(self._confirm_at(bookie_id, lac) for bookie_id in having))

    async def _confirm_at(self, bookie_id: str, lac: int) -> None:
        with suppress(BookieUnavailable, TimeoutError):
            async with asyncio.timeout(self._settings.append_timeout_ms / 1000):
                # The slot's connection may lead to the bookie's previous process.
                bookie = await self._context.connect(bookie_id)
            bookie.confirm(self.ledger_id, lac)

    def even_out(self) -> None:
        """Send every bookie what it was passed over with; pass nobody over for a while."""
        self._sparing.end()
        self._even_out()

    def record(self, facts: LedgerFacts) -> None:
        """Let the live bookies remember facts; best effort."""
        for slot in self.slots:
            if slot.bookie is not None:
                slot.bookie.record(facts, self._key)

    async def settled(self, timeout_ms: int) -> bool:
        """Wait until no replica lags any more, at most so long; whether that is so."""
        self.even_out()
        if self._stragglers.runs and self.error is None:
            self._idle = asyncio.Event()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._idle.wait()
            except TimeoutError:
                pass
        return self.complete

    def stop(self, error: EngineError) -> None:
        """End for good; late replies are ignored."""
        if self.error is not None:
            return
        self.error = error
        self._sparing.end()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        if self._release is not None:
            self._release.cancel()
        if self.changing is not None:
            self.changing.cancel()
        if self._idle is not None:
            self._idle.set()

    def suspect(self, bookie_ids: frozenset[str]) -> None:
        """Bookies that are said to be gone: replace them, idle or not."""
        for slot in self.slots:
            if slot.bookie_id in bookie_ids and not slot.failed:
                self._fail_slot(slot)

    def revive(self) -> None:
        """Bookies may have come: try again to replace those that were lost."""
        self._retry.set()
        if any(slot.lost for slot in self.slots) and self.error is None:
            for slot in self.slots:
                slot.lost = False
            self._begin_change()

    def leave(self, slot: Slot) -> None:
        """Replace its bookie, as if that had failed."""
        slot.failed = True
        slot.bookie = None
        slot.outstanding.clear()
        self._begin_change()

    # Sending

    async def _connect(self, slot: Slot) -> None:
        try:
            async with asyncio.timeout(self._settings.append_timeout_ms / 1000):
                slot.bookie = await self._context.connect(slot.bookie_id)
        except (BookieUnavailable, TimeoutError):
            self._note(slot)

    def _send_to(self, slot: Slot, runs: Sequence[Run], up_to: int) -> None:
        quorums = self.quorums
        if quorums.ensemble > quorums.write:
            index = slot.index
            runs = [run for run in runs if index in quorums.write_set(run.first)]
        request: list[Run] = []
        size_bytes = 0
        for run in runs:
            run_bytes = len(run.body)
            if request and (
                run.first != request[-1].first + request[-1].count
                or size_bytes + run_bytes > _REQUEST_BYTES_MAX
            ):
                self._request(slot, request)
                request, size_bytes = [], 0
            request.append(run)
            size_bytes += run_bytes
        if request:
            self._request(slot, request)
        slot.sent = max(slot.sent, up_to)

    def _request(self, slot: Slot, runs: Sequence[Run]) -> None:
        bookie = slot.bookie
        if bookie is None or slot.failed:
            return
        facts = None
        if slot.facts_due or not slot.greeted:
            slot.facts_due = False
            facts = self._owner.facts(self.fragment_first, self.ensemble)
        last = runs[-1].first + runs[-1].count - 1
        slot.outstanding.append(Sent(runs[0].first, last, self._clock.monotonic()))
        bookie.append(
            runs,
            partial(self._on_reply, slot),
            key=self._key,
            facts=facts,
            recovery=self._recovery,
        )

    def _catch_up(self, slot: Slot, *, confirmed_only: bool = False) -> None:
        """Send all that is held, or of that what is confirmed, and that it was not sent yet."""
        held = (*self._stragglers.runs, *(() if confirmed_only else self._unconfirmed))
        runs = [run for run in held if run.first > slot.sent]
        self._send_to(slot, runs, self.lac if confirmed_only else self.pushed)
        if self._ticker is None:
            self._arm()

    def _even_out(self) -> None:
        for slot in self.slots if self.changing is None and self.error is None else ():
            if slot.sent < self.pushed and not slot.failed:
                self._catch_up(slot)

    # Replies

    def _on_reply(self, slot: Slot, reply: AppendReply) -> None:
        if slot.failed or self.error is not None or self.slots[slot.index] is not slot:
            return
        if reply.bookie_id != slot.bookie_id:
            self._fail_slot(slot)
        elif reply.status is Status.OK:
            sent_at = slot.outstanding[0].sent_at if slot.outstanding else 0.0
            lagged = slot.mark < self.lac
            if slot.acknowledge(reply.first, reply.last):
                took_s = self._clock.monotonic() - sent_at
                slot.mean_s += LATEST_SHARE * (took_s - slot.mean_s)
                self._measures.acknowledged(took_s, slot, self.ledger_id)
                self._advance(lagged)
        elif reply.status is Status.FENCED:
            self._fail(LedgerFenced(f"ledger {self.ledger_id} was taken over by another client"))
        elif reply.status is Status.DELETED:
            self._fail(LedgerClosed(f"ledger {self.ledger_id} was deleted"))
        elif reply.status is Status.UNAUTHORIZED:
            self._fail(Unauthorized(f"ledger {self.ledger_id}: a bookie knows another password"))
        elif reply.status is Status.OVERLOADED:
            if slot.retry is None:
                pause_s = self._settings.retry_pause_ms / 1000
                slot.retry = self._loop.call_later(pause_s, self._send_again, slot)
        else:
            slot.full = reply.status is Status.READ_ONLY
            self._fail_slot(slot)

    def _send_again(self, slot: Slot) -> None:
        """After a bookie was overloaded: all that it has not acknowledged, once more.

        The time since the oldest of it was first sent goes on counting.
        """
        slot.retry = None
        if slot.failed or self.error is not None or self.slots[slot.index] is not slot:
            return
        waiting_since = slot.outstanding[0].sent_at if slot.outstanding else None
        slot.outstanding.clear()
        slot.sent = slot.mark
        slot.facts_due = True
        if self.changing is None:
            self._catch_up(slot)
            if slot.outstanding and waiting_since is not None:
                slot.outstanding[0] = replace(slot.outstanding[0], sent_at=waiting_since)

    def _advance(self, lagged: bool) -> None:
        """Confirm what may be; `lagged`: who moved was behind what is confirmed."""
        if self.changing is not None or self.error is not None:
            return
        lac = confirmed(self.quorums, self.lac, self.pushed, [*map(_MARK, self.slots)])
        grown = lac > self.lac
        if grown:
            self._measures.adds.add(lac - self.lac)
            self.lac = lac
            if self._patience.begun:
                self._patience.confirmed()
            self._retire(lac)
        # Only who was behind can have been the one that lacked the oldest of them.
        if lagged or self._stragglers.size_bytes > self._settings.straggler_bytes_max:
            self._drop_stored()
        if grown:
            self._owner.on_confirmed(lac)
        if self._idle is not None and not self._stragglers.runs:
            self._idle.set()

    def _retire(self, lac: int) -> None:
        """Move confirmed runs from the unconfirmed to those that only stragglers lack."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0].first <= lac:
            run = unconfirmed.popleft()
            assert run.first + run.count - 1 <= lac, "a mark stands only at the end of a run"
            self._stragglers.keep(run)

    def _drop_stored(self) -> None:
        self._stragglers.drop_stored()
        if self._stragglers.size_bytes > self._settings.straggler_bytes_max:
            for slot in self._stragglers.behind():
                self._fail_slot(slot)

    # Time

    def _arm(self) -> None:
        interval_s = self._settings.append_timeout_ms / 4000
        self._tick_due = self._clock.monotonic() + interval_s
        self._ticker = self._loop.call_later(interval_s, self._tick)

    def _tick(self) -> None:
        """Find bookies that leave runs unacknowledged for too long.

        A tick that itself comes late proves a busy loop, not a slow bookie: it blames nobody.
        """
        self._ticker = None
        now = self._clock.monotonic()
        timeout_s = self._settings.append_timeout_ms / 1000
        punctual = now - self._tick_due < timeout_s / 4
        waiting = False
        for slot in self.slots:
            if slot.outstanding and not slot.failed:
                waiting = True
                if punctual and now - slot.outstanding[0].sent_at > timeout_s:
                    self._fail_slot(slot)
        if (waiting or self._unconfirmed) and self.error is None:
            self._arm()

    # Ensemble change

    def _note(self, slot: Slot) -> None:
        # Here and not at each try to replace it, which would begin its quarantine anew.
        self._context.placement.note_failure(slot.bookie_id)
        self._patience.failed(slot.bookie_id)
        slot.failed = True

    def _fail_slot(self, slot: Slot) -> None:
        self._note(slot)
        self.leave(slot)

    def _fail(self, error: EngineError) -> None:
        if self.error is None:
            self.stop(error)
            self._owner.on_failed(error)

    def _begin_change(self) -> None:
        # What is confirmed must not wait for the change on fewer bookies than are there.
        for slot in self._sparing.end():
            self._catch_up(slot, confirmed_only=True)
        if self.changing is None and self.error is None:
            self.changing = self._loop.create_task(self._change())

    async def _change(self) -> None:
        """Replace failed bookies, or go on without them; only then confirm again."""
        self._patience.begin(waiting=bool(self._unconfirmed))
        pause_s = self._settings.retry_pause_ms / 1000
        try:
            while failed := frozenset(s.index for s in self.slots if s.failed and not s.lost):
                # A new bookie that could not be connected to has ended the deadline: set it again.
                self._patience.begin(waiting=True)
                try:
                    fragment = await self._owner.replace(self.lac + 1, self.ensemble, failed)
                except Unavailable:
                    fragment = None
                    if not self._patience.over:
                        pause_s = await self._pause(pause_s)
                        continue
                if fragment is not None:
                    names = fragment.ensemble
                    self._check_patience(self._patience.over_with(names[i] for i in failed))
                    await self._adopt(fragment, failed)
                elif self._alive_enough():
                    for index in failed:
                        self._lose(self.slots[index])
                else:
                    await self._check_room(failed)
                    self._check_patience(self._patience.over)
                    pause_s = await self._pause(pause_s)
        except EngineError as error:
            self.changing = None
            self._fail(error)
            return
        self.changing = None
        for slot in self.slots:
            if not slot.failed:
                self._catch_up(slot)
        self._advance(lagged=True)
        self._drop_stored()

    def _check_patience(self, over: bool) -> None:
        if over and self._unconfirmed and not self._alive_enough():
            raise self._context.troubles.too_few(self.ledger_id, self.ensemble)

    async def _check_room(self, failed: frozenset[int]) -> None:
        """Fail entries that full disks refused, if no other bookie can take them: do not wait."""
        slots = [self.slots[index] for index in failed]
        if not self._unconfirmed or self._alive_enough() or not all(slot.full for slot in slots):
            return
        placement, names = self._context.placement, [slot.bookie_id for slot in slots]
        if await placement.are_full(names):
            why = placement.capacity.lack_on_bookies or f"the disks of {', '.join(names)} are full"
            full = AppendFailed(f"ledger {self.ledger_id}: {why}")
            full.__cause__ = DiskFull(why)
            raise full

    def _lose(self, slot: Slot) -> None:
        """Go on without a bookie, and without what it acknowledged past the LAC.

        A change of the metadata whose outcome is not known may have put another in its place, or
        may yet: recovery would look there for what only the lost one and one more hold.
        """
        self._measures.lost_replicas.add()
        slot.lost = True
        slot.mark = self.lac
        self._look_again()

    def _look_again(self) -> None:
        """Bookies that only failed are no news when they may be taken again."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        delay_s = self._context.placement.next_release_s()
        if delay_s is not None:
            self._release = self._loop.call_later(delay_s, self.revive)

    async def _pause(self, pause_s: float) -> float:
        """Wait before the next try, or until bookies may have come; returns the next, longer wait.

        While entries wait the tries stay close enough to meet their deadline.
        """
        longest_s = self._settings.append_timeout_ms / (8_000 if self._unconfirmed else 2_000)
        self._retry.clear()
        try:
            async with asyncio.timeout(min(pause_s, longest_s)):
                await self._retry.wait()
        except TimeoutError:
            return 2 * pause_s
        return self._settings.retry_pause_ms / 1000

    async def _adopt(self, fragment: Fragment, failed: frozenset[int]) -> None:
        self._measures.ensemble_changes.add()
        self.fragment_first = self.lac + 1
        self.quorums = self.quorums.with_domains(fragment.domains)
        self._stragglers.quorums = self.quorums
        fresh = []
        for index, bookie_id in enumerate(fragment.ensemble):
            if index in failed or bookie_id != self.slots[index].bookie_id:
                self.slots[index] = Slot(index, bookie_id, self.lac)
                fresh.append(self.slots[index])
            else:
                self.slots[index].facts_due = True
        for slot in fresh:
            await self._connect(slot)

    @property
    def enough_but_together(self) -> bool:
        """Whether enough bookies serve, but not in two hosts, racks or zones."""
        alive = {slot.index for slot in self.slots if not slot.failed}
        return not self._alive_enough() and writable(self.quorums.with_domains(()), alive)

    def _alive_enough(self) -> bool:
        return writable(self.quorums, {slot.index for slot in self.slots if not slot.failed})

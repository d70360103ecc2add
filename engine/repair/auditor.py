"""The auditor: one node that notices what nobody asked to be repaired.

It gives up bookies that are away for too long, queues every ledger that lies on one of them or on
one that is to go, finds degraded ledgers, unfinished recoveries and replicas that share a machine
for nothing, where they are not queued, and takes back what is no longer needed when a bookie
returns in time.

Invariants:
- There is one auditor, as far as the metadata store can tell; a lost session ends its term. Two of
  them for a moment ask for the same twice, which is asking once.
- Only time in which registrations were looked at counts as absence: after the auditor itself was
  paused or cut off, a bookie's grace time goes on where it stood.
- Nothing is looked at while repair is switched off.
- A survey reads a page at a time and ends with the term. One that was begun, or is owed since a
  bookie was given up, is owed until one was finished.
- A survey that fails takes nothing from the time in which bookies were looked at. While a long
  survey runs, bookies are looked at as often as otherwise.
- The ledgers of a lost bookie that the newest survey has found are queued before all ledgers are
  read again. If a bookie is given up, comes back or is to go during a survey, another one is owed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from engine.errors import EngineError, KeyExists, VersionConflict
from engine.metadata.bookies import LOST
from engine.metadata.ledgers import LedgerMetadata, State
from engine.metadata.repairs import DISABLED, RepairItem
from engine.repair.absences import Absences
from engine.repair.bookie_index import BookieIndex
from engine.repair.claim import Claim
from engine.repair.keeping_on import keep_on
from engine.repair.outlook import Outlook, Workshop
from engine.repair.respreading import TOGETHER
from engine.repair.sharing import Sharing
from engine.repair.survey import ask_for, read_paged, survey

AUDITOR: Final = "/repair/auditor"
_LOG: Final = logging.getLogger("engine.repair")
PARTED_AT_ONCE: Final = 8
UNREADABLE: Final = "/repair/unreadable"
_UNREADABLE_NAMED_MAX: Final = 100
MISSING: Final = "a replica is missing"
UNFINISHED: Final = "its recovery was left unfinished"


class Auditor:
    """One candidate for the office. `node` is a name that no other node has."""

    def __init__(self, workshop: Workshop, node: str) -> None:
        self.elected = False
        self.ledgers_queued = 0
        self.ledgers_taken_back = 0
        self.surveys = 0
        self._workshop = workshop
        self._claim = Claim(workshop.store, AUDITOR, node)
        self._absent_s: dict[str, float] = {}
        self._absences = Absences(workshop.store, 3 * workshop.settings.look_interval_ms)
        self._looked_s: float | None = None
        self._surveyed_s: float | None = None
        self._survey_owed = False
        self._index: BookieIndex | None = None
        self._indexed: frozenset[str] = frozenset()
        """The bookies that are lost, or to go, whose ledgers were queued by it."""
        self._leaving: frozenset[str] = frozenset()
        self._hosts: frozenset[str] = frozenset()
        self._together: list[int] = []
        self._parting: frozenset[int] = frozenset()
        self._woken = asyncio.Event()
        self._ends: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Stand for election, and serve while elected."""
        assert self._task is None
        store = self._workshop.store
        self._ends = [
            store.watch(AUDITOR, self._woken.set),
            store.watch(DISABLED, self._woken.set),
            self._workshop.bookies.watch(self._woken.set),
        ]
        self._task = keep_on(self._workshop, "the auditor", self._run)

    async def close(self) -> None:
        """Step down."""
        for end in self._ends:
            end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._end_term()
        await self._claim.release()

    async def look(self) -> None:
        """One look: who is away, who is back, and a survey if it is time for one.

        Raises `MetadataUnavailable`.
        """
        outlook = await self._look()
        if outlook is None:
            return
        if self._survey_owed or self._survey_is_due() or outlook.leaving != self._leaving:
            await self._survey(outlook)
        await self._ask_to_part()

    async def _look(self) -> Outlook | None:
        outlook = None
        try:
            outlook = await self._look_at_bookies()
        finally:
            if outlook is None:
                # The store is away, or it is no time to look: nothing counts as absence.
                self._looked_s = None
        return outlook

    async def _look_at_bookies(self) -> Outlook | None:
        """Judge absences, if this is the auditor and repair is on; else None."""
        if not await self._claim.hold():
            self._end_term()
            return None
        if not self.elected:
            _LOG.info("this process is the auditor now")
        self.elected = True
        if await self._workshop.queue.disabled() is not None:
            return None
        await self._judge_absences()
        return await self._workshop.outlook()

    # The term

    async def _run(self) -> None:
        interval_s = self._workshop.settings.look_interval_ms / 1000
        while True:
            self._woken.clear()
            # With the store away, whether the term goes on shows when it is back.
            with contextlib.suppress(EngineError):
                await self.look()
            await asyncio.sleep(interval_s / 20)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._woken.wait()

    def _end_term(self) -> None:
        self.elected = False
        self._looked_s = self._surveyed_s = None
        self._survey_owed = False
        self._index, self._indexed = None, frozenset()
        self._together, self._hosts = [], frozenset()
        self._absent_s.clear()
        self._absences.forget()

    # Bookies

    async def _judge_absences(self) -> None:
        """Give up who was away for too long, welcome who is back."""
        workshop = self._workshop
        registered = await workshop.bookies.available()
        given_up = await workshop.store.children(LOST)
        known = await workshop.bookies.known()
        elapsed_s = self._elapsed_s()
        # Where a machine comes that was not there, replicas may part.
        came = frozenset(found.host for found in registered.values()) - self._hosts
        self._survey_owed |= bool(came)
        self._hosts |= came
        returned = frozenset(name for name in given_up if name in registered)
        if returned:
            self._survey_owed = True
            await self._welcome(returned)
        grace_s = workshop.settings.lost_bookie_grace_ms / 1000
        before = self._absent_s
        self._absent_s = {
            name: before[name] + elapsed_s if name in before else 0.0
            for name in known
            if name not in registered
        }
        self._tell(before, registered, given_up)
        gone = [name for name, away_s in self._absent_s.items() if away_s >= grace_s]
        for name in gone:
            if name not in given_up:
                await self._give_up(name)
        now_ms = workshop.clock.wall_ms()
        await self._absences.publish(
            {
                name: now_ms + round(1000 * (grace_s - away_s))
                for name, away_s in self._absent_s.items()
                if name not in gone and name not in given_up
            }
        )

    def _tell(
        self,
        before: Mapping[str, float],
        registered: Mapping[str, object],
        given_up: Collection[str],
    ) -> None:
        """Log who went away since the last look, and who came back."""
        grace_s = self._workshop.settings.lost_bookie_grace_ms / 1000
        for name in self._absent_s:
            if name not in before and name not in given_up:
                _LOG.warning("bookie %s is away: given up in %.0f s", name, grace_s)
        for name in before:
            if name in registered:
                _LOG.info("bookie %s is back", name)

    def _elapsed_s(self) -> float:
        """How much of the time since the last look counts as looked at."""
        now_s = self._workshop.clock.monotonic()
        before_s, self._looked_s = self._looked_s, now_s
        if before_s is None:
            return 0.0
        return min(now_s - before_s, 1.5 * self._workshop.settings.look_interval_ms / 1000)

    async def _give_up(self, bookie_id: str) -> None:
        # The key may be there though its reply is lost, and a survey may be cut short.
        self._survey_owed = True
        try:
            when = str(self._workshop.clock.wall_ms()).encode()
            await self._workshop.store.create(f"{LOST}/{bookie_id}", when)
        except KeyExists:
            return
        _LOG.warning("bookie %s was away for too long: its ledgers are copied again", bookie_id)

    async def _welcome(self, returned: frozenset[str]) -> None:
        """Take back what was asked only because of bookies that are there again."""
        for name in sorted(returned):
            await self._workshop.store.delete(f"{LOST}/{name}")
        for ledger_id in await self._workshop.queue.ids():
            held = await self._workshop.queue.read(ledger_id)
            if held is None or not returned.intersection(held.item.lost):
                continue
            rest = held.item.without_lost(returned)
            if rest is not None:
                with contextlib.suppress(VersionConflict):
                    await self._workshop.queue.write(held, rest)
            elif await self._workshop.queue.remove(held):
                self.ledgers_taken_back += 1

    # Ledgers

    def _survey_is_due(self) -> bool:
        if self._surveyed_s is None:
            return True
        since_s = self._workshop.clock.monotonic() - self._surveyed_s
        return since_s >= self._workshop.settings.audit_interval_ms / 1000

    async def _survey(self, outlook: Outlook) -> None:
        # What happens from now on, another survey is owed for.
        self._survey_owed = False
        finished = False
        try:
            finished = await self._queue_known(outlook) and await self._survey_all(outlook)
        finally:
            self._survey_owed |= not finished

    async def _survey_all(self, begun: Outlook) -> bool:
        """Read all ledgers and queue what is wanted; False if the term or repair has ended."""
        outlook: Outlook | None = begun
        index, count = BookieIndex(), 0
        sharing = Sharing(self._workshop, begun)
        async for metadata in survey(self._workshop):
            count += 1
            if count % self._workshop.settings.ledgers_a_page == 0:
                if (outlook := await self._between_pages(outlook or begun)) is None:
                    return False
                if not await self._queue_known(outlook):
                    return False
            index.add(metadata)
            wanted = wanted_of(metadata, outlook or begun)
            if wanted is not None:
                await self._ask(metadata.ledger_id, wanted)
            else:
                await sharing.look_at(metadata)
        await self._name_unreadable()
        self._leaving = begun.leaving
        self._index, self._indexed = index, begun.lost | begun.leaving
        # One that cannot be parted, whyever, holds the others up until the next survey at most.
        self._together, self._parting = sharing.ledgers, frozenset()
        self._surveyed_s = self._workshop.clock.monotonic()
        self.surveys += 1
        return True

    async def _queue_known(self, outlook: Outlook) -> bool:
        """Queue first what the newest survey found on bookies that are lost, or to go, since then.

        In a small cluster, the survey itself is as quick. False if the term or repair has ended.
        """
        gone = outlook.lost | outlook.leaving
        new = gone - self._indexed
        self._indexed &= gone
        if self._index is None or not new:
            return True
        if self._index.size > self._workshop.settings.ledgers_a_page:
            ids = self._index.naming(new)
            async for page in self._workshop.ledgers.pages(self._index.last):
                ids += page
            async for found in read_paged(self._workshop, ids, {}):
                wanted = [(each.ledger_id, wanted_of(each, outlook)) for each in found]
                await asyncio.gather(
                    *(self._ask(ledger_id, item) for ledger_id, item in wanted if item is not None)
                )
                if await self._between_pages(outlook) is None:
                    return False
        self._indexed |= new
        return True

    async def _between_pages(self, outlook: Outlook) -> Outlook | None:
        """Look at the bookies if it is time to; None if the term or repair has ended.

        Reading a million ledgers takes longer than the grace time of a bookie.
        """
        if not await self._goes_on():
            return None
        since_s = self._workshop.clock.monotonic() - (self._looked_s or 0.0)
        if since_s < self._workshop.settings.look_interval_ms / 1000:
            return outlook
        return await self._look()

    async def _ask(self, ledger_id: int, wanted: RepairItem) -> None:
        self.ledgers_queued += await ask_for(self._workshop, ledger_id, wanted)

    async def _ask_to_part(self) -> None:
        """Ask for a few ledgers whose replicas share a machine: what is lost never waits long."""
        if not self._together:
            return
        queued = frozenset(await self._workshop.queue.ids())
        if not self._parting.isdisjoint(queued):
            return
        waiting = [ledger_id for ledger_id in self._together if ledger_id not in queued]
        few, self._together = waiting[:PARTED_AT_ONCE], waiting[PARTED_AT_ONCE:]
        self._parting = frozenset(few)
        for ledger_id in few:
            await self._ask(ledger_id, RepairItem(reasons=(TOGETHER,)))

    async def _name_unreadable(self) -> None:
        """Let operators see which ledgers the survey passed over, the first of them by name."""
        store = self._workshop.store
        wanted = dict(sorted(self._workshop.unreadable.items())[:_UNREADABLE_NAMED_MAX])
        named = await store.children(UNREADABLE)
        for name in named:
            if name not in map(str, wanted):
                await store.delete(f"{UNREADABLE}/{name}")
        for ledger_id, why in wanted.items():
            if str(ledger_id) not in named:
                with contextlib.suppress(KeyExists):
                    await store.create(f"{UNREADABLE}/{ledger_id}", why.encode())

    async def _goes_on(self) -> bool:
        """Whether the term does, and repair is on."""
        return await self._claim.still() and await self._workshop.queue.disabled() is None


def wanted_of(metadata: LedgerMetadata, outlook: Outlook) -> RepairItem | None:
    """What a ledger should be queued for, by its metadata alone; None for nothing.

    A fragment that lies elsewhere is not: only bookies that fragments name now count.
    """
    names = sorted(metadata.bookies())
    reasons: tuple[str, ...] = ()
    if metadata.closed and metadata.degraded:
        reasons = (MISSING,)
    elif metadata.state is State.IN_RECOVERY:
        reasons = (UNFINISHED,)
    lost, leaving = outlook.lost_of(names), outlook.leaving_of(names)
    if not lost and not leaving and not reasons:
        return None
    return RepairItem(lost=lost, leaving=leaving, reasons=reasons)

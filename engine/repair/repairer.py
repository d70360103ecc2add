"""The worker: takes queued ledgers, one lock each, and tries until each is whole.

Invariants:
- What is asked for while much waits is seen to after the page of ledgers that is under way.
- A ledger that cannot be mended now stays queued, with the reason; its next try waits twice as long
  as the last one, up to a bound, and nothing spins.
- A ledger's lock is taken only for a try and given back after it: waiting ledgers cost no writes,
  and those that wait for nothing but a spare bookie hardly any reads.
- Losing the metadata store for a while ends a round, never the worker.
- While repair is switched off no ledger is begun, and one under way stops at its next step. Only
  the switch itself tells: an event beside it, such as each new session's first, stops nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from engine.errors import EngineError, VersionConflict
from engine.ledger.lookout import Lookout
from engine.metadata.bookies import LOST
from engine.metadata.repairs import DISABLED, REPAIRS, HeldItem
from engine.repair.claim import Claim
from engine.repair.keeping_on import keep_on, tell
from engine.repair.ledger_repair import LedgerRepair, Memory, RepairCounts
from engine.repair.outlook import Outlook, Workshop
from engine.repair.replicas import Stopped

LOCKS: Final = "/repair/locks"
_SKIPS_MAX: Final = 7
_LOG: Final = logging.getLogger("engine.repair")


class Repairer:
    """One node's worker. `node` is a name that no other node has."""

    def __init__(self, workshop: Workshop, node: str) -> None:
        self.counts = RepairCounts()
        self._workshop = workshop
        self._node = node
        self._memory: dict[int, Memory] = {}
        self._woken = asyncio.Event()
        self._disabled = False
        self._switch = Lookout(self._look_at_switch)
        self._ends: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work."""
        assert self._task is None
        store = self._workshop.store
        self._ends = [
            store.watch(REPAIRS, self._woken.set),
            store.watch(DISABLED, self._switched),
            store.watch(LOST, self._hurry),
            self._workshop.bookies.watch(self._hurry),
        ]
        self._task = keep_on(self._workshop, "the worker", self._run)

    async def close(self) -> None:
        """Stop, in the middle of a ledger if need be: whoever takes it next begins it again."""
        for end in self._ends:
            end()
        self._switch.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run_once(self) -> int:
        """Try every ledger whose time has come, once; returns how many are whole now.

        Raises `MetadataUnavailable`.
        """
        before = self.counts.ledgers_whole
        self._disabled = await self._workshop.queue.disabled() is not None
        if self._disabled:
            return 0
        known = set(await self._workshop.queue.ids())
        self._memory = {key: kept for key, kept in self._memory.items() if key in known}
        due, looked_s = self._due(known), self._workshop.clock.monotonic()
        size = self._workshop.settings.ledgers_a_page
        interval_s = self._workshop.settings.look_interval_ms / 1000
        while due:
            page, due = due[:size], due[size:]
            await self._page(page)
            if due and self._workshop.clock.monotonic() - looked_s >= interval_s:
                looked_s = self._workshop.clock.monotonic()
                news = set(await self._workshop.queue.ids()) - known
                # What was lost now must not wait for all that a bookie held which is to go.
                due = self._due(news) + due
                known |= news
        return self.counts.ledgers_whole - before

    def _due(self, queued: set[int]) -> list[int]:
        """Ledgers whose time has come; other workers take them in another order."""
        now_s = self._workshop.clock.monotonic()
        due = [ledger_id for ledger_id in sorted(queued) if self._due_s(ledger_id) <= now_s]
        # In the same order they would only meet at their locks.
        self._workshop.rng.shuffle(due)
        return due

    # The loop

    async def _run(self) -> None:
        settings = self._workshop.settings
        while True:
            self._woken.clear()
            try:
                await self.run_once()
            except EngineError:
                # The store is away, or the like: what is queued stays queued.
                await asyncio.sleep(settings.retry_pause_ms / 1000)
            await self._wait()

    async def _wait(self) -> None:
        """Until a ledger's time comes, or something changes."""
        now_s = self._workshop.clock.monotonic()
        wait_s = self._workshop.settings.look_interval_ms / 1000
        if not self._disabled:
            wait_s = min([wait_s, *(memory.due_s - now_s for memory in self._memory.values())])
        # Even what changes all the time is looked at only so often.
        await asyncio.sleep(self._workshop.settings.retry_pause_ms / 4000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, 0.0)):
                await self._woken.wait()

    def _due_s(self, ledger_id: int) -> float:
        memory = self._memory.get(ledger_id)
        return 0.0 if memory is None else memory.due_s

    def _hurry(self) -> None:
        """Bookies came or went: what was blocked may be possible now."""
        soon_s = self._workshop.clock.monotonic() + self._workshop.settings.retry_pause_ms / 1000
        for memory in self._memory.values():
            memory.due_s = min(memory.due_s, soon_s)
        self._woken.set()

    def _switched(self) -> None:
        """Repair may have been switched on or off: look which, before anything stops."""
        self._switch.news()

    async def _look_at_switch(self) -> None:
        self._disabled = await self._workshop.queue.disabled() is not None
        self._woken.set()

    # One ledger

    async def _page(self, ledger_ids: list[int]) -> None:
        waiting = list(reversed(ledger_ids))

        async def work() -> None:
            while waiting:
                await self._attempt(waiting.pop())

        workers = min(self._workshop.settings.ledgers_at_once, len(waiting))
        tasks = [asyncio.ensure_future(work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        except (Exception, asyncio.CancelledError):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _attempt(self, ledger_id: int) -> None:
        """Lock a ledger and try it. Raises `MetadataUnavailable`."""
        if self._disabled:
            return
        outlook = await self._workshop.recent_outlook()
        memory = self._memory.get(ledger_id)
        if memory is not None and memory.stuck_in == outlook and memory.skips < _SKIPS_MAX:
            # Nothing but a spare bookie was missing, and none has come.
            memory.skips += 1
            self._postpone(memory)
            return
        claim = Claim(self._workshop.store, f"{LOCKS}/{ledger_id}", self._node)
        if not await claim.hold():
            self._postpone(self._remembered(ledger_id))
            return
        try:
            held_item = await self._workshop.queue.read(ledger_id)
            if held_item is not None:
                await self._try(held_item, outlook)
        finally:
            await claim.release()

    async def _try(self, held_item: HeldItem, outlook: Outlook) -> None:
        memory = self._memory.get(held_item.ledger_id)
        if memory is None or memory.version != held_item.version:
            # Somebody has asked anew: what was found whole before is no answer to that.
            fresh = Memory(held_item.version)
            if memory is not None:
                fresh.standing, fresh.failures = memory.standing, memory.failures
                fresh.targets = memory.targets
            memory = self._memory[held_item.ledger_id] = fresh
        memory.skips = 0
        repair = LedgerRepair(
            self._workshop,
            outlook,
            held_item,
            memory,
            self.counts,
            lambda: not self._disabled,
        )
        try:
            blocked = await repair.run()
        except Stopped:
            return
        except EngineError as error:
            self._postpone(memory)
            await self._note(held_item, memory, f"{type(error).__name__}: {error}")
            return
        except Exception as error:
            # One ledger's defect is not the other ledgers' end.
            tell(self._workshop, f"the repair of ledger {held_item.ledger_id}", error)
            self._postpone(memory)
            await self._note(held_item, memory, f"{type(error).__name__}: {error}")
            return
        if not blocked:
            self._memory.pop(held_item.ledger_id, None)
            return
        self.counts.tries_blocked += 1
        self._postpone(memory)
        await self._note(held_item, memory, blocked)

    def _remembered(self, ledger_id: int) -> Memory:
        return self._memory.setdefault(ledger_id, Memory(-1))

    def _postpone(self, memory: Memory) -> None:
        """Wait longer each time, and not all workers equally long."""
        settings = self._workshop.settings
        pause_ms = min(settings.retry_pause_ms * 2**memory.failures, settings.retry_pause_ms_max)
        memory.failures = min(memory.failures + 1, 32)
        factor = 0.75 + self._workshop.rng.random() / 2
        memory.due_s = self._workshop.clock.monotonic() + pause_ms / 1000 * factor

    async def _note(self, held_item: HeldItem, memory: Memory, blocked: str) -> None:
        """Let the item say why it is still there. Written only where that is news."""
        if held_item.item.blocked == blocked:
            return
        _LOG.warning("ledger %d cannot be made whole now: %s", held_item.ledger_id, blocked)
        item = msgspec.structs.replace(held_item.item, blocked=blocked)
        try:
            memory.version = (await self._workshop.queue.write(held_item, item)).version
        except VersionConflict:
            return

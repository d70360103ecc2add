"""A bookie of this node that cannot tell what it lacks: every ledger on it is looked at.

An unreadable header of its journal may have named anything that lay there. The bookie then answers
"unknown" where it would say "no", until all that the metadata place on it was read from it or
written to it again.

Invariants:
- A doubt is cleared only when no ledger that names the bookie waits to be looked at because of it,
  each of them having been asked for after the doubt was known.
- An open ledger whose last fragment lies on the bookie keeps the doubt, and so does a ledger whose
  metadata cannot be read: it may lie there.
- A node that restarts begins again: the doubt is durable, what was found meanwhile is not.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from engine.errors import EngineError
from engine.metadata.repairs import RepairItem
from engine.repair.keeping_on import keep_on
from engine.repair.outlook import Workshop
from engine.repair.survey import survey


class Doubtful(Protocol):
    """The part of a bookie that the node needs to clear its doubts."""

    @property
    def bookie_id(self) -> str:
        """The random id of the bookie's folder."""
        ...

    @property
    def damaged(self) -> bool:
        """Whether negatives of some ledgers are unknown since a header could not be read."""
        ...

    async def clear_damage(self) -> None:
        """Repair has stored again all that may be lost here. Raises `BookieUnavailable`."""
        ...


class Doubts:
    """Sees to the local bookies' doubts."""

    def __init__(self, workshop: Workshop, bookies: Sequence[Doubtful]) -> None:
        self.cleared = 0
        self._workshop = workshop
        self._bookies = bookies
        self._asked: dict[str, set[int]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look at the bookies now and then."""
        assert self._task is None
        self._task = keep_on(self._workshop, "the care for doubtful bookies", self._run)

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Ask for what doubtful bookies may lack, or clear their doubt. Raises `EngineError`."""
        if await self._workshop.queue.disabled() is not None:
            return
        for bookie in self._bookies:
            if bookie.damaged:
                await self._see_to(bookie)
            else:
                self._asked.pop(bookie.bookie_id, None)

    async def _run(self) -> None:
        interval_s = self._workshop.settings.look_interval_ms / 1000
        while True:
            with contextlib.suppress(EngineError):
                await self.look()
            await asyncio.sleep(interval_s)

    async def _see_to(self, bookie: Doubtful) -> None:
        name = bookie.bookie_id
        waiting = self._asked.get(name)
        if waiting is None:
            waiting = set()
            async for metadata in survey(self._workshop):
                if name in metadata.bookies():
                    # Asked anew even if asked before: a try under way may have read it earlier.
                    item = RepairItem(doubtful=(name,))
                    await self._workshop.queue.request(metadata.ledger_id, item)
                    waiting.add(metadata.ledger_id)
            if self._workshop.unreadable:
                return
            self._asked[name] = waiting
        for ledger_id in sorted(waiting.intersection(await self._workshop.queue.ids())):
            held = await self._workshop.queue.read(ledger_id)
            if held is not None and name in held.item.doubtful:
                return
            waiting.discard(ledger_id)
        await bookie.clear_damage()
        self._asked.pop(name, None)
        self.cleared += 1

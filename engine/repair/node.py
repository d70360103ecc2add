"""Repair as one node runs it: a candidate for the auditor, a worker, and care for its own bookies.

Invariants:
- Each node has a name of its own, drawn anew at every start: a claim that its earlier life left is
  another's.
- Closing leaves nothing half said: what was under way is begun again by whoever takes it.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol

from engine.errors import EngineError
from engine.metadata.contract import MetadataStore
from engine.ports.clock import Clock
from engine.repair.auditor import Auditor
from engine.repair.doubt import Doubtful, Doubts
from engine.repair.keeping_on import keep_on
from engine.repair.outlook import Workshop
from engine.repair.repairer import Repairer
from engine.repair.replicas import Stopped
from engine.repair.scrub import Scrub, read_mark
from engine.repair.settings import RepairSettings
from engine.repair.surplus import Holder, Surplus
from engine.transport.contract import Transport


class LocalBookie(Doubtful, Holder, Protocol):
    """The part of a bookie that the repair of its own node needs."""


class RepairNode:
    """All of repair that one process runs. Made once, started once, closed once.

    `auditor`, `repairer`, `doubts` and `surplus` show what each has done, for metrics.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        settings: RepairSettings | None = None,
        local_bookies: Sequence[LocalBookie] = (),
        local_only: bool = False,
    ) -> None:
        """With `local_only`, this process handles only doubts and surplus of `local_bookies`."""
        workshop = Workshop(
            store=store, transport=transport, clock=clock, rng=rng, settings=settings
        )
        names = [bookie.bookie_id for bookie in local_bookies]
        self.name = "-".join([*names[:1], f"{rng.getrandbits(64):016x}"])
        self.workshop = workshop
        self.auditor = Auditor(workshop, self.name)
        self.repairer = Repairer(workshop, self.name)
        self.doubts = Doubts(workshop, local_bookies)
        self.surplus = Surplus(workshop, local_bookies)
        self._local_only = local_only
        self._scrubbing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin. Nothing is waited for: an absent metadata store is tried again."""
        self.doubts.start()
        self.surplus.start()
        if self._local_only:
            return
        self.auditor.start()
        self.repairer.start()
        if self.workshop.settings.scrub_interval_ms:
            self._scrubbing = keep_on(self.workshop, "the scrub", self._scrub)

    async def close(self) -> None:
        """End everything; waits until it has."""
        if self._scrubbing is not None:
            self._scrubbing.cancel()
            await asyncio.gather(self._scrubbing, return_exceptions=True)
        await self.surplus.close()
        await self.doubts.close()
        await self.repairer.close()
        await self.auditor.close()

    async def _scrub(self) -> None:
        """While this node is the auditor: read all replicas now and then.

        When the newest scrub ended stands in the store: nodes that restart often delay none. One
        that another node left unfinished, and the first one, begin at once.
        """
        settings = self.workshop.settings
        scrub = Scrub(self.workshop, lambda: self.auditor.elected)
        step_s = min(settings.look_interval_ms, settings.scrub_interval_ms) / 1000
        while True:
            await asyncio.sleep(step_s)
            if not self.auditor.elected:
                continue
            try:
                mark = await read_mark(self.workshop.store)
                due_ms = 0
                if mark is not None and mark.finished:
                    due_ms = mark.finished_ms + settings.scrub_interval_ms
                on = await self.workshop.queue.disabled() is None
                if on and due_ms <= self.workshop.clock.wall_ms():
                    await scrub.run()
            except (EngineError, Stopped):
                continue

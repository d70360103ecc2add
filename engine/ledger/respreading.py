"""Moves replicas apart again: a host that joins or returns takes one from a host that has two.

A bookie that fails is replaced at once, if necessary by another disk of a machine that already
holds a replica: three copies on two machines are more than two. But if the ledger need not survive
the loss of a host, entries may then be acknowledged by one machine alone, and its loss would stop
the ledger. So this must not last longer than the other machine is away.

Invariants:
- A replica moves only to a bookie that answers, and only if the ensemble is then spread better: a
  writer's moves come to an end.
- One replica moves at a time, while all bookies serve and the others are enough to append. It lacks
  no confirmed entry, so what its bookie holds stays whole.
- Writers look some time after bookies have changed, each at another moment. By then all disks of a
  machine are there, and the metadata store does not get requests for all ledgers at once.
"""

import asyncio
from typing import Final

from engine.errors import BookieUnavailable
from engine.ledger.context import LedgerContext
from engine.ledger.lookout import Lookout
from engine.ledger.quorum import writable
from engine.ledger.replication import Replication
from engine.ledger.slot import Slot
from engine.ledger.spreading import NO_COST

_DOUBLINGS_MAX: Final = 10


class Respreading:
    """Looks after one writer's ensemble. All methods are called on the event loop."""

    def __init__(self, replication: Replication, context: LedgerContext) -> None:
        self._replication = replication
        self._context = context
        self._lookout = Lookout(self._look)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._moves = 0
        self._moved_s = 0.0
        self._moved_to = ""
        self._stopped = False

    def news(self) -> None:
        """Bookies may have come, or the ensemble has changed."""
        longest_s = self._context.settings.respread_ms / 1000
        self._arm(self._context.rng.uniform(longest_s / 2, longest_s))

    def stop(self) -> None:
        """Move nothing more; a change that has begun goes on. Twice is harmless."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._lookout.stop()

    def _arm(self, delay_s: float) -> None:
        due_s = self._loop.time() + delay_s
        if self._stopped or (self._timer is not None and self._due_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        self._timer = self._loop.call_later(delay_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        # Nobody else asks again for a bookie that was only left, and then lost with the store away.
        self._replication.revive()
        self._lookout.news()

    def _rest(self, rest_s: float) -> None:
        """Wait for a bookie, ever longer for those to which replicas move and do not stay."""
        self._arm(rest_s * 2 ** min(self._moves, _DOUBLINGS_MAX))

    async def _look(self) -> None:
        replication, context = self._replication, self._context
        # A change that was cut short by the writer's end is never followed by another one.
        if replication.error is not None:
            return
        if replication.changing is not None:
            replication.changing.add_done_callback(lambda _: self._lookout.news())
            return
        quarantine_s = context.settings.quarantine_ms / 1000
        if not replication.whole:
            if self._moves:
                self._rest(quarantine_s)
            return
        staying = await context.bookies.staying()
        ensemble = replication.ensemble
        if self._moved_to in ensemble and self._loop.time() - self._moved_s >= quarantine_s:
            # The newest move was not in vain.
            self._moves = 0
        found = context.placement.better(ensemble, self._movable(), replication.quorums, staying)
        if found.at is None:
            delay_s = context.placement.next_release_s()
            if found.cost > NO_COST and delay_s is not None:
                self._rest(delay_s)
            elif self._moves:
                self._rest(quarantine_s)
            return
        try:
            async with asyncio.timeout(context.settings.append_timeout_ms / 1000):
                await context.connect(found.bookie_id)
        except (BookieUnavailable, TimeoutError):
            context.placement.note_failure(found.bookie_id)
        else:
            if ensemble == replication.ensemble and found.at in self._movable():
                self._moves += 1
                self._moved_s, self._moved_to = self._loop.time(), found.bookie_id
                replication.leave(replication.slots[found.at])
        self.news()

    def _has_all(self, slot: Slot) -> bool:
        return not slot.outstanding and slot.sent == self._replication.pushed

    def _movable(self) -> list[int]:
        """The indexes whose bookie lacks nothing confirmed, and without which appends go on."""
        replication = self._replication
        if replication.changing is not None or not replication.whole or replication.error:
            return []
        alive = {slot.index for slot in replication.slots}
        return [
            slot.index
            for slot in replication.slots
            if (slot.mark >= replication.lac or self._has_all(slot))
            and slot.retry is None
            and writable(replication.quorums, alive - {slot.index})
        ]

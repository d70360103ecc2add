"""Whom a lone request passes over for the moment.

A caller that waits for each entry has one small request on its way at a time, and goes on as soon
as an ack quorum has stored it. What the other bookies do at that moment only keeps disk and
processors from those. So while such requests follow one another without a pause, some bookies are
passed over and get what they lack together, a few adds later: those without whom adds have lately
been quickest, which now and then is tried anew. Protocols that ask a
bare quorum first are called thrifty (Moraru, Andersen and Kaminsky, "There is more consensus in
egalitarian parliaments", 2013).

That is for bookies that share one machine with the client, as those of a folder do. Of bookies on
machines of their own the second of three is sooner there than both of a chosen two.

Invariants:
- Nothing is confirmed by it: a bookie that was passed over is one that lags.
- An ack quorum of bookies that owe nothing is never passed over; where there is none, nobody is.
  Nor are two: an entry is nowhere alone for longer than without this.
- Who was passed over gets what it lacks after some usual adds, `spare_ms_max` at most, and at once
  when a confirmed entry is not followed by another.
- It begins only when lone requests have followed one another for such a while, and all bookies of
  the ensemble are known to run on the client's machine.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from engine.ledger.context import LedgerContext
from engine.ledger.slot import Slot
from engine.ledger.stragglers import Stragglers
from engine.limits import KIB
from engine.run import Run

_ADDS: Final = 32
_ADDS_TOLD: Final = 8
"""Fewer adds than these say nothing of how long one takes."""
_LATEST_SHARE: Final = 0.25
_TRIED_EVERY: Final = 16
"""In one turn of so many others are passed over than seems best."""
_ASKED_MIN: Final = 2
_SHORTEST_S: Final = 0.001
_REQUEST_BYTES_MAX: Final = 64 * KIB
_LACKING_MAX: Final = 32
_STRAGGLER_SHARE: Final = 4
"""Who was passed over may lack so many entries, and so small a part of a straggler's bytes."""


class Sparing:
    """For the replication of `stragglers`; `even_out()` sends every bookie what it lacks."""

    def __init__(
        self, stragglers: Stragglers, even_out: Callable[[], None], context: LedgerContext
    ) -> None:
        quorums, settings = stragglers.quorums, context.settings
        self._asked = max(quorums.ack, _ASKED_MIN)
        self._slots = stragglers.slots
        self._stragglers = stragglers
        self._even_out = even_out
        self._placement = context.placement
        self._longest_s = settings.spare_ms_max / 1000
        self._bytes_max = settings.straggler_bytes_max // _STRAGGLER_SHARE
        spares = self._asked < quorums.write == quorums.ensemble
        self._allowed = spares and self._longest_s > 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._spared: Sequence[Slot] = ()
        self._turns = 0
        self._adds = 0
        self._begun_s = 0.0
        self._add_s: dict[str, float] = {}

    def choose(self, runs: Sequence[Run]) -> Sequence[Slot]:
        """Whom a request passes over, while nothing else is on its way."""
        if not self._allowed or len(runs) > 1:
            return ()
        size_bytes, stragglers = len(runs[0].body), self._stragglers
        lacking_bytes = stragglers.size_bytes + size_bytes
        if size_bytes > _REQUEST_BYTES_MAX or lacking_bytes > self._bytes_max:
            return ()
        if len(stragglers.runs) >= _LACKING_MAX:
            return ()
        if self._timer is None:
            self._timer = self._loop.call_later(self._while_s(), self._turn)
        self._adds += 1
        for slot in self._slots if self._spared else ():
            if slot.outstanding and slot not in self._spared:
                return ()
        return self._spared

    def end(self) -> Sequence[Slot]:
        """Pass nobody over until lone requests have followed one another for a while again.

        Returns who was passed over until now.
        """
        spared, self._spared = self._spared, ()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return spared

    def _turn(self) -> None:
        self._timer = None
        self._note_add_s()
        self._even_out()
        self._spared = ()
        whole = not any(slot.failed for slot in self._slots)
        if not whole or not self._placement.beside(slot.bookie_id for slot in self._slots):
            return
        slots = list(self._slots)
        self._turns += 1
        tries, known = divmod(self._turns, _TRIED_EVERY)
        if known:
            slots.sort(key=self._add_s_of)
        else:
            first = tries % len(slots)
            slots = slots[first:] + slots[:first]
        asked, spared = slots[: self._asked], slots[self._asked :]
        enough = self._stragglers.quorums.may_ack([slot.index for slot in asked])
        self._spared = spared if enough else ()

    def _note_add_s(self) -> None:
        """How long an add took in the turn that ends, of all who were asked."""
        now_s = self._loop.time()
        if self._spared and self._adds >= _ADDS_TOLD:
            add_s = (now_s - self._begun_s) / self._adds
            for slot in self._slots:
                if slot not in self._spared:
                    before_s = self._add_s.get(slot.bookie_id, add_s)
                    self._add_s[slot.bookie_id] = before_s + _LATEST_SHARE * (add_s - before_s)
        self._adds, self._begun_s = 0, now_s

    def _add_s_of(self, slot: Slot) -> float:
        """How long adds take that ask a slot's bookie; before that is known, how long it takes."""
        return self._add_s.get(slot.bookie_id, slot.mean_s)

    def _while_s(self) -> float:
        mean_s = max((slot.mean_s for slot in self._slots if slot not in self._spared), default=0.0)
        return min(max(_ADDS * mean_s, _SHORTEST_S), self._longest_s)

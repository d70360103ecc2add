"""Whom a lone request passes over for the moment.

A caller that waits for each entry has one small request on its way at a time, and goes on as soon
as an ack quorum has stored it. What the other bookies do at that moment only keeps disk and
processors from those. So while such requests follow one another without a pause, the slowest
bookies are passed over and get what they lack together, a few adds later. Protocols that ask a
bare quorum first are called thrifty (Moraru, Andersen and Kaminsky, "There is more consensus in
egalitarian parliaments", 2013).

That is for bookies that share a disk, as those of one folder do. Of bookies on machines of their
own the second of three is sooner there than both of a chosen two.

Invariants:
- Nothing is confirmed by it: a bookie that was passed over is one that lags.
- An ack quorum of bookies that owe nothing is never passed over; where there is none, nobody is.
  Nor are two: an entry is nowhere alone for longer than without this.
- Who was passed over gets what it lacks after some usual adds, `spare_ms_max` at most, and at once
  when a confirmed entry is not followed by another.
- It begins only when lone requests have followed one another for such a while.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from engine.ledger.settings import ClientSettings
from engine.ledger.slot import Slot
from engine.ledger.stragglers import Stragglers
from engine.limits import KIB
from engine.run import Run

_ADDS: Final = 16
_ASKED_MIN: Final = 2
_SHORTEST_S: Final = 0.001
_REQUEST_BYTES_MAX: Final = 64 * KIB
_LACKING_MAX: Final = 32
_STRAGGLER_SHARE: Final = 4
"""Who was passed over may lack so many entries, and so small a part of a straggler's bytes."""


class Sparing:
    """For the replication of `stragglers`; `even_out()` sends every bookie what it lacks."""

    def __init__(
        self, stragglers: Stragglers, even_out: Callable[[], None], settings: ClientSettings
    ) -> None:
        quorums = stragglers.quorums
        self._asked = max(quorums.ack, _ASKED_MIN)
        self._slots = stragglers.slots
        self._stragglers = stragglers
        self._even_out = even_out
        self._longest_s = settings.spare_ms_max / 1000
        self._bytes_max = settings.straggler_bytes_max // _STRAGGLER_SHARE
        spares = self._asked < quorums.write == quorums.ensemble
        self._allowed = spares and self._longest_s > 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._spared: Sequence[Slot] = ()

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
        self._even_out()
        alive = [slot for slot in self._slots if not slot.failed]
        alive.sort(key=_mean_of)
        self._spared = alive[self._asked :]

    def _while_s(self) -> float:
        mean_s = max((slot.mean_s for slot in self._slots if slot not in self._spared), default=0.0)
        return min(max(_ADDS * mean_s, _SHORTEST_S), self._longest_s)


def _mean_of(slot: Slot) -> float:
    return slot.mean_s

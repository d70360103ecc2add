"""Choosing bookies for an ensemble.

Invariants:
- An ensemble never names a bookie twice.
- A bookie that failed is not chosen again until it restarted or its quarantine is over.
- The choice depends on the generator given, never on the order of a hash table.
"""

import random

from engine.errors import NotEnoughBookies
from engine.ledger.quorum import Quorums, covered, writable
from engine.metadata.bookies import Bookies, Registration
from engine.ports.clock import Clock


class Placement:
    """Picks bookies among those registered and writable."""

    def __init__(
        self, bookies: Bookies, rng: random.Random, clock: Clock, quarantine_ms: int
    ) -> None:
        self._bookies = bookies
        self._rng = rng
        self._clock = clock
        self._quarantine_s = quarantine_ms / 1000
        self._failed: dict[str, tuple[int, float]] = {}
        self._boots: dict[str, int] = {}

    async def new_ensemble(self, quorums: Quorums) -> tuple[tuple[str, ...], frozenset[int]]:
        """Bookies for a new ledger, and the indexes whose bookie is known but away.

        Raises `NotEnoughBookies` when not every write set would reach an ack quorum, or when the
        ledger could not be recovered without those that are away: they may never come back.
        """
        present = await self._present()
        chosen = self._sample(present, quorums.ensemble)
        if len(chosen) < quorums.ensemble:
            away = [name for name in await self._bookies.known() if name not in present]
            chosen += self._sample(away, quorums.ensemble - len(chosen))
        self._rng.shuffle(chosen)
        absent = frozenset(i for i, name in enumerate(chosen) if name not in present)
        alive = set(range(len(chosen))) - absent
        enough = writable(quorums, alive) and covered(quorums, alive)
        if len(chosen) < quorums.ensemble or not enough:
            raise NotEnoughBookies(
                f"an ensemble of {quorums.ensemble} needs more than the "
                f"{len(present)} bookies that are registered and writable"
            )
        return tuple(chosen), absent

    async def substitutes(
        self, ensemble: tuple[str, ...], failed: frozenset[int]
    ) -> tuple[str, ...] | None:
        """The ensemble with a fresh bookie at each failed index that has one; None if none has."""
        kept = {name for index, name in enumerate(ensemble) if index not in failed}
        present = [name for name in await self._present() if name not in kept]
        picked = self._sample(present, len(failed))
        if not picked:
            return None
        changed = list(ensemble)
        for index in sorted(failed):
            if ensemble[index] in picked:
                picked.remove(ensemble[index])
                continue
            spare = next((name for name in picked if name not in changed), None)
            if spare is not None:
                changed[index] = spare
                picked.remove(spare)
        return tuple(changed)

    def note_failure(self, bookie_id: str) -> None:
        """Keep a bookie out of new ensembles for a while."""
        until = self._clock.monotonic() + self._quarantine_s
        self._failed[bookie_id] = (self._boots.get(bookie_id, -1), until)

    async def _present(self) -> list[str]:
        registered = await self._bookies.available()
        self._boots = {name: found.boot for name, found in registered.items()}
        return [name for name, found in registered.items() if self._usable(found)]

    def _usable(self, found: Registration) -> bool:
        if not found.writable:
            return False
        failure = self._failed.get(found.bookie_id)
        if failure is None:
            return True
        boot, until = failure
        if found.boot > boot >= 0 or self._clock.monotonic() >= until:
            del self._failed[found.bookie_id]
            return True
        return False

    def _sample(self, names: list[str], count: int) -> list[str]:
        return self._rng.sample(sorted(names), min(count, len(names)))

"""Garbage: which ledgers' bytes a bookie may forget, and when.

Invariants:
- A ledger goes only after the metadata store said twice, `interval_ms` apart, each time after a
  `sync()` and under the bookie's own cluster id, that it has no such key. A name in a listing is
  one that is there, but a name missing from a listing is never an answer.
- A ledger written here within `quiet_ms` is not even asked about; a write between the two answers
  makes the first one void.
- Nothing is collected while the store is being restored: a ledger's name may still be missing.
- Any error of the store ends the round with nothing forgotten and nothing learned.
- When more than `share_max` of all held ledgers would go at once, none goes until somebody
  confirms; a confirmation holds for one round and for as many ledgers as it names. Up to
  `unasked_ledgers_max` may go from a small store without a question, but only if the store knew
  some other held ledger in the same round: a store that lost everything is never taken at its word.
- Bytes are forgotten by a tombstone in the journal first; the index follows.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from engine.errors import FolderMismatch
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import LEDGERS
from engine.metadata.restoring import check_not_under_way
from engine.ports.clock import Clock

LEDGERS_PER_PAGE: Final = 1_024
LEDGERS_PER_BURIAL: Final = 256
_ASKED_A_LISTING: Final = 32
"""A page of a listing takes about as long as asking for so many ledgers one by one."""
_NUMBERS_A_PAGE_MAX: Final = 20_000
"""A store that lists more at once has no pages: a list of it takes too long to be read often."""


class Holdings(Protocol):
    """What a bookie lends its collector. All methods are called on the event loop."""

    @property
    def cluster_id(self) -> str:
        """The cluster that the bookie's folder belongs to."""
        ...

    async def ledgers(self, above: int, limit: int) -> list[int]:
        """Ids of ledgers of which anything but a tombstone is held, over `above`, in order."""
        ...

    def written_s(self, ledger_id: int) -> float:
        """The monotonic second of the newest write; the bookie's start if none is remembered."""
        ...

    async def bury(self, ledger_ids: Sequence[int]) -> None:
        """Write tombstones, wait until they are durable, then remove the ledgers from the index."""
        ...


@dataclass(frozen=True)
class GarbageSettings:
    """How cautious the collector is. Times in milliseconds."""

    interval_ms: int = 600_000
    quiet_ms: int = 3_600_000
    share_max: float = 0.2
    unasked_ledgers_max: int = 4

    def __post_init__(self) -> None:
        assert self.interval_ms > 0 and self.quiet_ms >= 0
        assert 0 <= self.share_max <= 1 and self.unasked_ledgers_max >= 0


@dataclass(frozen=True)
class GarbageRound:
    """What one round found and did.

    `asks` says that too many ledgers would go at once: `doomed` counts them, none was buried, and
    `Collector.collect(confirmed=doomed)` lets it happen. `recent` ledgers were not asked about, for
    they were written within `quiet_ms`, or may have been.
    """

    held: int
    missing: int
    doomed: int
    buried: tuple[int, ...]
    asks: bool
    recent: int = 0


class _Listing:
    """All ledgers of the store, read once in a round, as far as enough of them are looked for."""

    def __init__(self, store: MetadataStore) -> None:
        self.is_large = False
        """Whether the store lists very many ledgers at once."""
        self._store = store
        self._numbers: list[int] = []
        self._more = True
        self._budget = 0

    async def of(self, ledger_ids: Sequence[int]) -> set[int]:
        """Those of some ledgers that are listed, and perhaps not all of them.

        The ids are ascending, and higher than those of the call before.
        """
        found: set[int] = set()
        self._budget += len(ledger_ids)
        while ledger_ids:
            found.update(set(ledger_ids).intersection(self._numbers))
            last = self._numbers[-1] if self._numbers else -1
            ledger_ids = [each for each in ledger_ids if each > last]
            if not ledger_ids or not self._more or self._budget < _ASKED_A_LISTING:
                break
            self._budget -= _ASKED_A_LISTING
            above = max(last, ledger_ids[0] - 1)
            self._numbers, self._more = await self._store.page(LEDGERS, above)
            self.is_large |= len(self._numbers) > _NUMBERS_A_PAGE_MAX
            # The page may be from memory: others get their turn.
            await asyncio.sleep(0)
        return found


class Collector:
    """Decides, round by round, which ledgers are gone for certain."""

    def __init__(
        self,
        holdings: Holdings,
        store: MetadataStore,
        clock: Clock,
        settings: GarbageSettings | None = None,
    ) -> None:
        self._holdings = holdings
        self._store = store
        self._clock = clock
        self._settings = settings or GarbageSettings()
        self._missing_since_s: dict[int, float] = {}
        self._lists = True
        self.last_round: GarbageRound | None = None

    async def collect(self, *, confirmed: int = 0) -> GarbageRound:
        """Run one round; so many of more than `share_max` of the ledgers may be buried in it.

        Raises `MetadataUnavailable`, `FolderMismatch` (another cluster's store), `Unavailable`
        while the store is being restored; then nothing was forgotten.
        """
        self._check_cluster()
        await self._store.sync()
        await check_not_under_way(self._store)
        held, recent, missing = await self._ask()
        # The reply of a store that changed under the round counts for nothing.
        self._check_cluster()
        now_s = self._clock.monotonic()
        doomed = [ledger_id for ledger_id in missing if self._is_due(ledger_id, now_s)]
        too_many = bool(doomed) and self._is_too_much(len(doomed), len(missing), held)
        asks = too_many and not confirmed
        self._missing_since_s = {
            ledger_id: self._missing_since_s.get(ledger_id, now_s) for ledger_id in missing
        }
        buried = await self._bury(doomed[:confirmed] if too_many else doomed)
        result = GarbageRound(held, len(missing), len(doomed), buried, asks, recent)
        self.last_round = result
        return result

    async def _ask(self) -> tuple[int, int, list[int]]:
        """Count the held ledgers, and the recent; name those that the store positively lacks."""
        held, recent, above = 0, 0, -1
        listing = _Listing(self._store) if self._lists else None
        missing: list[int] = []
        while True:
            page = await self._holdings.ledgers(above, LEDGERS_PER_PAGE)
            quiet = [ledger_id for ledger_id in page if self._is_quiet(ledger_id)]
            recent += len(page) - len(quiet)
            listed = await listing.of(quiet) if listing is not None else ()
            for ledger_id in quiet:
                there = ledger_id in listed
                if not there and await self._store.get(f"{LEDGERS}/{ledger_id}") is None:
                    missing.append(ledger_id)
            if listing is not None and listing.is_large:
                listing, self._lists = None, False
            held += len(page)
            if len(page) < LEDGERS_PER_PAGE:
                return held, recent, missing
            above = page[-1]

    async def _bury(self, doomed: list[int]) -> tuple[int, ...]:
        buried: list[int] = []
        for start in range(0, len(doomed), LEDGERS_PER_BURIAL):
            # Earlier burials took time: a ledger that was written meanwhile stays.
            chunk = [
                ledger_id
                for ledger_id in doomed[start : start + LEDGERS_PER_BURIAL]
                if self._is_quiet(ledger_id)
            ]
            if chunk:
                await self._holdings.bury(chunk)
            for ledger_id in chunk:
                self._missing_since_s.pop(ledger_id, None)
            buried.extend(chunk)
        return tuple(buried)

    def _is_quiet(self, ledger_id: int) -> bool:
        age_s = self._clock.monotonic() - self._holdings.written_s(ledger_id)
        return age_s * 1000 >= self._settings.quiet_ms

    def _is_due(self, ledger_id: int, now_s: float) -> bool:
        since_s = self._missing_since_s.get(ledger_id)
        if since_s is None or self._holdings.written_s(ledger_id) > since_s:
            self._missing_since_s.pop(ledger_id, None)
            return False
        return (now_s - since_s) * 1000 >= self._settings.interval_ms

    def _is_too_much(self, doomed: int, missing: int, held: int) -> bool:
        assert doomed <= missing <= held
        if doomed <= self._settings.share_max * held:
            return False
        return missing == held or doomed > self._settings.unasked_ledgers_max

    def _check_cluster(self) -> None:
        if self._store.cluster_id != self._holdings.cluster_id:
            raise FolderMismatch(
                f"the bookie belongs to cluster {self._holdings.cluster_id}, the metadata store "
                f"is cluster {self._store.cluster_id}: nothing is collected"
            )

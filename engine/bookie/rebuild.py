"""Lost ledger metadata, brought back from what the bookies' folders remember.

Invariants:
- A ledger's value is made only from facts that bookies stored; nothing is guessed. Where facts are
  missing or contradict each other the ledger is reported, and no value is made.
- A ledger whose close no folder remembers comes back OPEN, so that the next open recovers it: the
  ranges held say nothing about what was acknowledged.
- A ledger that any folder remembers as deleted stays away.
- A log whose ledgers come back without its list is noted as lost before they do: whoever began it
  anew would sweep them away.
- A partly rebuilt store is marked: until the same call has finished, no log in it has a leader, and
  nothing is swept or collected.
- A value in the store is never replaced, and the ids' counter ends above every id seen anywhere:
  an id of a deleted ledger is not given out again either.
"""

import asyncio
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from engine.errors import KeyExists
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import Fragment, LedgerMetadata, Ledgers, State
from engine.metadata.lost_logs import note_lost
from engine.metadata.restoring import rebuilding_metadata
from engine.run import NO_ENTRY
from engine.transport.contract import LedgerFacts

_COUNTS_AT_ONCE: Final = 1_024


@dataclass
class Remains:
    """What one bookie's folder remembers of one ledger; facts in the order of their writing."""

    facts: list[LedgerFacts] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    fenced: bool = False
    deleted: bool = False

    @property
    def last_held(self) -> int:
        """The highest entry id held, `NO_ENTRY` if none is."""
        return self.ranges[-1][1] if self.ranges else NO_ENTRY

    @property
    def entries_held(self) -> int:
        """How many different entries are held."""
        return sum(last - first + 1 for first, last in self.ranges)

    def learn(self, facts: LedgerFacts) -> None:
        """Add facts in their order; a repetition moves to the end."""
        if facts in self.facts:
            self.facts.remove(facts)
        self.facts.append(facts)

    def hold(self, first: int, last: int) -> None:
        """Add a range of entries; ranges stay disjoint, apart, and in order."""
        assert first <= last
        ranges = self.ranges
        low = bisect_left(ranges, first - 1, key=_last_of)
        high = bisect_right(ranges, last + 1, key=_first_of)
        if low < high:
            first, last = min(first, ranges[low][0]), max(last, ranges[high - 1][1])
        ranges[low:high] = [(first, last)]


@dataclass(frozen=True)
class Unfit:
    """Why a ledger's metadata cannot be made again."""

    ledger_id: int
    reason: str


@dataclass(frozen=True)
class RebuildReport:
    """Ids by what became of them; `highest_id` is the highest that any folder or store names."""

    restored: tuple[int, ...]
    kept: tuple[int, ...]
    deleted: tuple[int, ...]
    unfit: tuple[Unfit, ...]
    highest_id: int
    lost_logs: tuple[str, ...] = ()


def rebuild_ledger(ledger_id: int, remains: Mapping[str, Remains]) -> LedgerMetadata | Unfit | None:
    """One ledger's metadata from what each bookie (by id) remembers; None if it was deleted."""
    if any(one.deleted for one in remains.values()):
        return None
    histories = [remains[bookie_id].facts for bookie_id in sorted(remains)]
    known = [facts for history in histories for facts in history]
    if not known:
        return Unfit(ledger_id, "no folder remembers its quorums")
    ground = known[0]
    if any(_ground(facts) != _ground(ground) for facts in known):
        return Unfit(ledger_id, "the folders disagree about its quorums, password or metadata")
    ends = {(facts.closed_last, facts.closed_length) for facts in known if _is_closed(facts)}
    if len(ends) > 1:
        return Unfit(ledger_id, f"the folders disagree about its end: {sorted(ends)}")
    fragments = _fragments(histories, remains)
    if fragments[0].first != 0:
        return Unfit(
            ledger_id,
            f"no folder remembers where entries 0 to {fragments[0].first - 1} lie: "
            "give more bookies' folders",
        )
    last, length = next(iter(ends), (None, None))
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ground.ensemble_size,
        write_quorum=ground.write_quorum,
        ack_quorum=ground.ack_quorum,
        fragments=fragments,
        key_hash=ground.key_hash,
        created_ms=ground.created_ms,
        token=0,
        state=State.OPEN if last is None else State.CLOSED,
        stripe_entries=ground.stripe_entries,
        last_entry=last,
        length=length,
        custom=ground.custom,
    )


def _is_closed(facts: LedgerFacts) -> bool:
    return facts.closed_last >= NO_ENTRY


def _ground(facts: LedgerFacts) -> LedgerFacts:
    """The facts that never change in a ledger's life."""
    return msgspec.structs.replace(
        facts, fragment_first=0, ensemble=(), closed_last=NO_ENTRY - 1, closed_length=0
    )


def _fragments(
    histories: Sequence[Sequence[LedgerFacts]], remains: Mapping[str, Remains]
) -> tuple[Fragment, ...]:
    ensembles: dict[int, list[tuple[str, ...]]] = {}
    outdated: set[tuple[int, tuple[str, ...]]] = set()
    for history in histories:
        newest: dict[int, tuple[str, ...]] = {}
        for facts in history:
            first = facts.fragment_first
            found = ensembles.setdefault(first, [])
            if facts.ensemble not in found:
                found.append(facts.ensemble)
            if newest.get(first, facts.ensemble) != facts.ensemble:
                # This bookie saw the fragment's ensemble change before anything was confirmed.
                outdated.add((first, newest[first]))
            newest[first] = facts.ensemble
    return tuple(
        Fragment(first, _likeliest(first, ensembles[first], outdated, remains))
        for first in sorted(ensembles)
    )


def _likeliest(
    first: int,
    ensembles: Sequence[tuple[str, ...]],
    outdated: set[tuple[int, tuple[str, ...]]],
    remains: Mapping[str, Remains],
) -> tuple[str, ...]:
    """Of ensembles that one fragment had: the newest; if none is, that which holds the most."""
    current = [one for one in ensembles if (first, one) not in outdated] or list(ensembles)

    def weight(ensemble: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        holders = [one for one in ensemble if one in remains and remains[one].last_held >= first]
        return -len(holders), ensemble

    return min(current, key=weight)


async def rebuild_metadata(
    folders: Mapping[str, Mapping[int, Remains]], store: MetadataStore, rng: random.Random
) -> RebuildReport:
    """Put into the store what the folders (bookie id -> ledger id -> remains) remember.

    Values that are in the store already stay as they are. Raises `MetadataUnavailable`; run it
    again then: what was restored is kept.
    """
    async with rebuilding_metadata(store):
        return await _rebuild(folders, Ledgers(store, rng))


async def _rebuild(folders: Mapping[str, Mapping[int, Remains]], ledgers: Ledgers) -> RebuildReport:
    existing = await ledgers.ids()
    by_ledger = _by_ledger(folders)
    highest = max([0, *existing, *by_ledger])
    # The counter comes first: with a restored ledger in the store its id must not be given again.
    await _raise_counter(ledgers, highest)
    restored: list[int] = []
    kept: list[int] = []
    deleted: list[int] = []
    unfit: list[Unfit] = []
    there = set(existing)
    wanted: list[LedgerMetadata] = []
    for ledger_id in sorted(by_ledger):
        if ledger_id in there:
            kept.append(ledger_id)
            continue
        metadata = rebuild_ledger(ledger_id, by_ledger[ledger_id])
        if metadata is None:
            deleted.append(ledger_id)
        elif isinstance(metadata, Unfit):
            unfit.append(metadata)
        else:
            wanted.append(metadata)
    lost = await note_lost(ledgers.store, wanted)
    for metadata in wanted:
        try:
            await ledgers.create(metadata)
            restored.append(metadata.ledger_id)
        except KeyExists:
            kept.append(metadata.ledger_id)
    found = tuple(restored), tuple(sorted(kept)), tuple(deleted), tuple(unfit)
    return RebuildReport(*found, highest, tuple(sorted(lost)))


def _first_of(one: tuple[int, int]) -> int:
    return one[0]


def _last_of(one: tuple[int, int]) -> int:
    return one[1]


def _by_ledger(
    folders: Mapping[str, Mapping[int, Remains]],
) -> dict[int, dict[str, Remains]]:
    found: dict[int, dict[str, Remains]] = {}
    for bookie_id in sorted(folders):
        for ledger_id, remains in folders[bookie_id].items():
            found.setdefault(ledger_id, {})[bookie_id] = remains
    return found


async def _raise_counter(ledgers: Ledgers, above: int) -> None:
    """Draw ids until `above` is reached. Many at once, so that one sync counts for all."""
    drawn = await ledgers.new_id()
    while drawn < above:
        count = min(_COUNTS_AT_ONCE, above - drawn)
        drawn = max(await _draw(ledgers, count))


async def _draw(ledgers: Ledgers, count: int) -> Iterable[int]:
    return await asyncio.gather(*(ledgers.new_id() for _ in range(count)))

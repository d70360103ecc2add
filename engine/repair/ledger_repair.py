"""One try to make one ledger whole.

Invariants:
- A fragment's ensemble changes by compare-and-set: only after its new bookies have all its entries,
  only if the fragment and its end are still those that were copied, and only if no bookie has given
  back entries of the ledger since.
- A replica is never given up while an entry of it can be read from nobody: the lost bookie may be
  the only one that has it.
- A closed ledger is called whole, and any one leaves the queue, only when every replica of each
  fragment that has an end was read or written to that end, and nothing was asked for meanwhile.
- What a try found whole it need not read again in the next one, unless somebody asked anew. Nor is
  copied again what was: a walk goes on where it was left, to the same new bookies.
- A ledger that was queued for nothing but replicas that share a machine leaves the queue after one
  try: only fragments of which a replica can move are read, and the next survey sees what is left.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from engine.errors import NoSuchLedger
from engine.metadata.ledgers import Fragment, Held, LedgerMetadata, State
from engine.metadata.repairs import HeldItem
from engine.repair.open_ledger import OpenLedger, Standing
from engine.repair.outlook import Outlook, Workshop
from engine.repair.replicas import Extent, Finding, FragmentWalk
from engine.repair.respreading import TOGETHER, Move, move_apart
from engine.transport.contract import LedgerFacts

_LOG: Final = logging.getLogger("engine.repair")


class Superseded(Exception):
    """The ledger's fragments changed under the repair: look again."""


@dataclass(slots=True)
class Memory:
    """What a node remembers of a ledger between tries. Lost with the node, and missed by nobody.

    `whole` holds (first entry, last entry, index, bookie) of replicas found whole. `stuck_in` is
    the outlook in which nothing but a spare bookie was missing. `targets` are the bookies chosen
    for (first entry, index, bookie) that is to be replaced, `walks` those that are to go on.
    """

    version: int
    whole: set[tuple[int, int, int, str]] = field(default_factory=set)
    failures: int = 0
    due_s: float = 0.0
    standing: Standing | None = None
    stuck_in: Outlook | None = None
    skips: int = 0
    targets: dict[tuple[int, int, str], str] = field(default_factory=dict)
    walks: dict[tuple[Extent, tuple[tuple[int, str], ...], int], FragmentWalk] = field(
        default_factory=dict
    )


@dataclass(slots=True)
class RepairCounts:
    """What a node's repair has done since its start; also what its metrics show."""

    ledgers_whole: int = 0
    tries_blocked: int = 0
    ledgers_fenced: int = 0
    fragments_moved: int = 0
    entries_written: int = 0
    bytes_written: int = 0
    entries_read: int = 0


class LedgerRepair:
    """One try on one ledger."""

    def __init__(
        self,
        workshop: Workshop,
        outlook: Outlook,
        held_item: HeldItem,
        memory: Memory,
        counts: RepairCounts,
        may_go_on: Callable[[], bool],
    ) -> None:
        self._workshop = workshop
        self._outlook = outlook
        self._item = held_item
        self._memory = memory
        self._counts = counts
        self._may_go_on = may_go_on
        self._troubles: list[str] = []
        self._without_spare = 0

    async def run(self) -> str:
        """Do what can be done now; returns what keeps the ledger from being whole, "" for nothing.

        Raises `MetadataUnavailable`, `Stopped`.
        """
        try:
            held = await self._workshop.ledgers.read(self._item.ledger_id)
            if self._item.item.only(TOGETHER):
                return await self._part(held)
            if not held.metadata.closed:
                held = await self._settle(held)
            for extent in extents(held.metadata):
                held = await self._make_whole(held, extent)
            stuck = self._without_spare == len(self._troubles) > 0
            self._memory.stuck_in = self._outlook if stuck else None
            if self._troubles:
                return "; ".join(dict.fromkeys(self._troubles))
            return await self._finish(held)
        except NoSuchLedger:
            await self._workshop.queue.remove(self._item)
            return ""
        except Superseded:
            return "its metadata changed meanwhile"

    async def _part(self, held: Held) -> str:
        """Move replicas that share a machine, one after the other, as far as others take them."""
        for extent in extents(held.metadata):
            while (move := self._move_apart(held.metadata, extent)) is not None:
                finding = await self._walk(held.metadata, extent, {move.at: move.bookie_id})
                if move.at not in finding.whole:
                    break
                held = await self._move(held, extent, {move.at: move.bookie_id})
                moved = next(
                    each for each in held.metadata.fragments if each.first == extent.fragment.first
                )
                extent = extent._replace(fragment=moved)
        await self._workshop.queue.remove(self._item)
        return ""

    def _move_apart(self, metadata: LedgerMetadata, extent: Extent) -> Move | None:
        if extent.last < extent.fragment.first:
            return None
        quorums = self._workshop.context(metadata).quorums(metadata)
        ledger_id, placement = metadata.ledger_id, self._workshop.placement
        return move_apart(ledger_id, extent.fragment, quorums, self._outlook, placement)

    async def _settle(self, held: Held) -> Held:
        opened = OpenLedger(self._workshop, self._outlook, self._item.item)
        held, self._memory.standing, waits = await opened.settle(held, self._memory.standing)
        if waits:
            self._troubles.append(waits)
        self._counts.ledgers_fenced += held.metadata.closed
        return held

    # Fragments

    async def _make_whole(self, held: Held, extent: Extent) -> Held:
        """See to one fragment: copy, move, or only look; returns the metadata as they are then."""
        targets = await self._targets(held.metadata, extent)
        if extent.last < extent.fragment.first:
            return await self._move(held, extent, targets)
        if not self._worth_reading(extent, targets):
            return held
        finding = await self._walk(held.metadata, extent, targets)
        self._troubles += finding.troubles
        moved = {index: name for index, name in targets.items() if index in finding.whole}
        held = await self._move(held, extent, moved)
        for index in finding.whole:
            name = moved.get(index, extent.fragment.ensemble[index])
            self._memory.whole.add((extent.fragment.first, extent.last, index, name))
        return held

    async def _targets(self, metadata: LedgerMetadata, extent: Extent) -> dict[int, str]:
        """Who takes the place of each bookie that is lost or to go, as far as there are others."""
        quorums = self._workshop.context(metadata).quorums(metadata)
        ensemble = list(extent.fragment.ensemble)
        targets: dict[int, str] = {}
        for index, name in enumerate(extent.fragment.ensemble):
            if not self._outlook.to_replace(name):
                if self._outlook.away(name):
                    self._troubles.append(f"bookie {name} is away, and not given up yet")
                continue
            taken = (*extent.fragment.ensemble, *targets.values())
            key = (extent.fragment.first, index, name)
            other = self._memory.targets.get(key)
            if other is None or other in taken or not self._outlook.takes(other):
                other = await self._workshop.placement.replacement(
                    tuple(ensemble), index, quorums, excluded=taken
                )
            if other is None:
                self._troubles.append(f"no bookie can take the place of {name}")
                self._without_spare += not self._outlook.spares(extent.fragment.ensemble)
            else:
                targets[index] = ensemble[index] = self._memory.targets[key] = other
        return targets

    def _worth_reading(self, extent: Extent, targets: dict[int, str]) -> bool:
        """Whether reading the fragment now can tell or mend anything.

        A bookie that is away may come back with everything: nothing is read only to wait for it.
        """
        if targets:
            return True
        fragment, last = extent
        if any(self._outlook.away(name) for name in fragment.ensemble):
            return False
        return any(
            name in self._outlook.registered
            and (fragment.first, last, index, name) not in self._memory.whole
            for index, name in enumerate(fragment.ensemble)
        )

    async def _walk(
        self, metadata: LedgerMetadata, extent: Extent, targets: dict[int, str]
    ) -> Finding:
        # A bookie may have given back entries that were read or written before.
        key = (extent, tuple(targets.items()), metadata.released)
        walks = self._memory.walks
        walk = walks.get(key)
        if walk is None:
            walk = walks[key] = FragmentWalk(
                self._workshop.context(metadata),
                metadata,
                extent,
                reachable=self._outlook.registered,
                targets=targets,
                mend=True,
                settings=self._workshop.settings,
                pace=self._workshop.pace,
                may_go_on=self._may_go_on,
            )
        walk.reachable = self._outlook.registered
        counts, finding = self._counts, walk.finding
        counts.entries_written -= finding.entries_written
        counts.bytes_written -= finding.bytes_written
        counts.entries_read -= finding.entries_read
        try:
            await walk.run()
        finally:
            counts.entries_written += finding.entries_written
            counts.bytes_written += finding.bytes_written
            counts.entries_read += finding.entries_read
        if len(finding.whole) == len(extent.fragment.ensemble):
            del walks[key]
        for index in finding.refused:
            # Another one may take what this one did not.
            at = (extent.fragment.first, index, extent.fragment.ensemble[index])
            self._memory.targets.pop(at, None)
        return finding

    async def _move(self, held: Held, extent: Extent, moved: dict[int, str]) -> Held:
        """Name the new bookies in the metadata, and let the fragment's bookies know."""
        if not moved:
            return held
        old = extent.fragment
        ensemble = tuple(moved.get(index, name) for index, name in enumerate(old.ensemble))
        fragment = Fragment(old.first, ensemble)

        def change(current: LedgerMetadata) -> LedgerMetadata:
            given_back = current.released != held.metadata.released
            if given_back or extent not in extents(current):
                raise Superseded
            fragments = tuple(fragment if each == old else each for each in current.fragments)
            return msgspec.structs.replace(current, fragments=fragments)

        held = await self._workshop.ledgers.update(held, change)
        self._counts.fragments_moved += 1
        for index in range(len(ensemble)):
            key = (old.first, extent.last, index, ensemble[index])
            if extent.last < old.first:
                self._memory.whole.add(key)
        await self._tell_bookies(held.metadata, fragment)
        return held

    async def _tell_bookies(self, metadata: LedgerMetadata, fragment: Fragment) -> None:
        """Let bookies remember where the fragment lies now, should the metadata be lost."""
        context = self._workshop.context(metadata)
        facts: LedgerFacts = context.facts(metadata, fragment.first, fragment.ensemble)
        for name in fragment.ensemble:
            if name in self._outlook.registered:
                await self._tell_bookie(name, facts, context.key)

    async def _tell_bookie(self, bookie_id: str, facts: LedgerFacts, key: bytes) -> None:
        bookie = await self._workshop.connect(bookie_id)
        if bookie is not None:
            bookie.record(facts, key)

    # The end

    async def _finish(self, held: Held) -> str:
        """Every replica that has an end is whole: say so, unless something was asked meanwhile.

        An open ledger stays degraded, if it was: what its last fragment lacks is known at its end.
        """
        seen = held.metadata

        def change(current: LedgerMetadata) -> LedgerMetadata | None:
            if current != seen:
                raise Superseded
            if not current.degraded or not current.closed:
                return None
            return msgspec.structs.replace(current, degraded=False)

        # Read again even where nothing is to be written: what was looked at must be the newest.
        held = await self._workshop.ledgers.read(seen.ledger_id)
        await self._workshop.ledgers.update(held, change)
        if not await self._workshop.queue.remove(self._item):
            return "something was asked for meanwhile"
        self._counts.ledgers_whole += 1
        _LOG.info("ledger %d is whole again", seen.ledger_id)
        return ""


def extents(metadata: LedgerMetadata) -> list[Extent]:
    """The fragments that have an end: all of a closed ledger, all but the last of an open one.

    An extent whose last entry is below its first holds nothing.
    """
    found = [
        Extent(fragment, following.first - 1)
        for fragment, following in zip(metadata.fragments, metadata.fragments[1:], strict=False)
    ]
    if metadata.state is State.CLOSED:
        assert metadata.last_entry is not None
        found = [extent._replace(last=min(extent.last, metadata.last_entry)) for extent in found]
        found.append(Extent(metadata.fragments[-1], metadata.last_entry))
    return found

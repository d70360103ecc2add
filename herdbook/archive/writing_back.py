"""Writing a ledger again under its own id, as repair writes: its password is not needed.

    RESTORING, one fragment  ->  all entries are on an ack quorum  ->  CLOSED

Invariants:
- A ledger is closed when all of its entries are durable, and at its old end. A ledger whose restore
  was interrupted stays RESTORING, and is written again from the start: bookies report entries that
  they already have as written.
- Nothing else closes a ledger that is RESTORING, not even repair. If no restore continues with it,
  it stays RESTORING until an operator deletes it.
- The end is in the metadata, and in the facts that bookies keep, before the first entry is written.
  So metadata that are rebuilt from bookies' folders show what is missing.
- It has as many copies as before, or as the new store's own ledgers, whichever is more; fewer only
  if there are not enough bookies.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from engine.errors import CannotRead, EngineError, KeyExists, NoSuchLedger, Unavailable
from engine.ledger.context import LedgerContext
from engine.ledger.quorum import Quorums
from engine.ledger.replication import Replication
from engine.ledger.settings import ClientSettings
from engine.limits import RUN_BYTES_MAX
from engine.metadata.ledgers import (
    Fragment,
    Held,
    LedgerMetadata,
    State,
    restored,
    restoring_at,
)
from engine.repair.outlook import Workshop
from engine.run import NO_ENTRY, Run
from engine.transport.contract import LedgerFacts
from herdbook.archive.manifest import KeptLedger

Batches = AsyncIterator[list[bytes]]


async def write_back(
    workshop: Workshop, settings: ClientSettings, bookies: int, kept: KeptLedger, batches: Batches
) -> bool:
    """Write a ledger; False if all of it already exists.

    `settings` are those of the new store, which has `bookies` bookies. Raises `KeyExists` if
    another ledger has the id or this one was closed at another end, `NoSuchLedger` if it was
    deleted meanwhile, `Unavailable`, and what `batches` raise.
    """
    held = await _taken(workshop, settings, bookies, kept)
    if held.metadata.closed:
        check_restored(held.metadata, kept)
        return False
    context = workshop.context(held.metadata)
    writing = _Writing(context, held.metadata)
    try:
        if kept.last != NO_ENTRY:
            await writing.run(batches)
    finally:
        writing.stop()
    held = await context.ledgers.update(held, writing.closing(kept))
    check_restored(held.metadata, kept)
    if held.metadata.degraded:
        await context.ledgers.request_repair(kept.ledger_id, "a replica is missing")
    return True


def check_restored(found: LedgerMetadata, kept: KeptLedger) -> None:
    """Raise `KeyExists` unless a ledger is closed at the end that it has in the backup."""
    _check_same(found, kept)
    if not found.closed or (found.last_entry, found.length) != (kept.last, kept.length):
        raise KeyExists(
            f"ledger {kept.ledger_id} is {found.state.name} at entry {found.last_entry} "
            f"({found.length} bytes), but ends at entry {kept.last} ({kept.length} bytes) in the "
            "backup: something else wrote to it during the restore; restore into a new store"
        )


async def _taken(
    workshop: Workshop, settings: ClientSettings, bookies: int, kept: KeptLedger
) -> Held:
    """The metadata of the ledger to be: made now, or by a try before this one."""
    try:
        held = await workshop.ledgers.read(kept.ledger_id)
    except NoSuchLedger:
        quorums = _quorums(settings, bookies, kept)
        chosen = await workshop.placement.new_ensemble(quorums)
        wanted = restoring_at(
            LedgerMetadata(
                ledger_id=kept.ledger_id,
                ensemble_size=quorums.ensemble,
                write_quorum=quorums.write,
                ack_quorum=quorums.ack,
                stripe_entries=quorums.stripe_entries,
                fragments=(Fragment(0, chosen.bookies),),
                key_hash=kept.key_hash,
                created_ms=kept.created_ms,
                token=0,
                degraded=bool(chosen.absent),
                custom=kept.custom,
            ),
            kept.last,
            kept.length,
        )
        try:
            return await workshop.ledgers.create(wanted)
        except KeyExists:
            # Another restore of the same backup runs at the same time.
            held = await workshop.ledgers.read(kept.ledger_id)

    def change(current: LedgerMetadata) -> LedgerMetadata | None:
        _check_same(current, kept)
        if current.closed or current.restoring:
            return None
        # Left by an attempt of an earlier program. Repair would close it.
        return restoring_at(current, kept.last, kept.length)

    return await workshop.ledgers.update(held, change)


def _check_same(found: LedgerMetadata, kept: KeptLedger) -> None:
    """Raise `KeyExists` unless this or an earlier attempt wrote the ledger from the backup."""
    same = (found.key_hash, found.custom, found.created_ms)
    ours = same == (kept.key_hash, kept.custom, kept.created_ms)
    other_end = found.restoring and (found.last_entry, found.length) != (kept.last, kept.length)
    if not ours or found.state is State.OPEN or other_end:
        raise KeyExists(f"there is another ledger {kept.ledger_id} in the store")


def _quorums(settings: ClientSettings, bookies: int, kept: KeptLedger) -> Quorums:
    ensemble = min(max(kept.ensemble, settings.ensemble), bookies)
    write = min(max(kept.write_quorum, settings.write_quorum), ensemble)
    ack = min(max(kept.ack_quorum, settings.ack_quorum), write)
    return Quorums(ensemble, write, ack, kept.stripe_entries)


class _Writing:
    """The owner of one ledger's replication."""

    def __init__(self, context: LedgerContext, metadata: LedgerMetadata) -> None:
        self._context = context
        self._metadata = metadata
        self._quorums = context.quorums(metadata)
        self._fragments = list(metadata.fragments)
        self._degraded = False
        self._error: EngineError | None = None
        self._confirmed = asyncio.Event()
        self._replication = Replication(
            ledger_id=metadata.ledger_id,
            quorums=self._quorums,
            ensemble=metadata.fragments[-1].ensemble,
            fragment_first=0,
            lac=NO_ENTRY,
            recovery=True,
            owner=self,
            context=context,
        )
        self._length = 0

    async def run(self, batches: Batches) -> None:
        """Write all entries; each batch waits for the one before it."""
        await self._replication.start()
        async for bodies in batches:
            await self._until_confirmed()
            self._replication.send(self._runs(bodies))
        await self._until_confirmed()
        settled = await self._replication.settled(self._context.settings.straggler_close_ms)
        self._degraded |= not settled

    def stop(self) -> None:
        """Let late replies go."""
        self._replication.stop(Unavailable("the ledger is written"))

    def closing(self, kept: KeptLedger) -> Callable[[LedgerMetadata], LedgerMetadata | None]:
        """The change that closes the ledger at its old end. Raises `CannotRead`."""
        if (self._replication.lac, self._length) != (kept.last, kept.length):
            raise CannotRead(
                f"the backup's file of ledger {kept.ledger_id} ends at entry "
                f"{self._replication.lac} ({self._length} bytes), but the manifest says entry "
                f"{kept.last} ({kept.length} bytes)"
            )

        def change(current: LedgerMetadata) -> LedgerMetadata | None:
            if current.closed:
                return None
            return msgspec.structs.replace(
                restored(current),
                fragments=tuple(self._fragments),
                degraded=current.degraded or self._degraded,
            )

        return change

    def _runs(self, bodies: Sequence[bytes]) -> list[Run]:
        """Entries as runs: none crosses a stripe, nor is over what a run may take."""
        runs: list[Run] = []
        first = self._replication.pushed + 1
        start = size_bytes = 0
        for place, body in enumerate(bodies):
            stripe_ends = (first + place) % self._quorums.stripe_entries == 0
            if place > start and (stripe_ends or size_bytes + len(body) > RUN_BYTES_MAX):
                runs.append(self._run(first + start, bodies[start:place]))
                start, size_bytes = place, 0
            size_bytes += len(body)
        runs.append(self._run(first + start, bodies[start:]))
        return runs

    def _run(self, first: int, bodies: Sequence[bytes]) -> Run:
        run = Run.pack(
            self._metadata.ledger_id, first, bodies, lac=NO_ENTRY, length_before=self._length
        )
        self._length = run.length
        return run

    async def _until_confirmed(self) -> None:
        while self._replication.lac < self._replication.pushed:
            if self._error is not None:
                raise Unavailable(
                    f"ledger {self._metadata.ledger_id} could not be written: {self._error}"
                ) from self._error
            self._confirmed.clear()
            await self._confirmed.wait()

    # Owner of the replication

    def on_confirmed(self, lac: int) -> None:
        """See `Owner`."""
        self._confirmed.set()

    def on_failed(self, error: EngineError) -> None:
        """See `Owner`."""
        self._error = error
        self._confirmed.set()

    async def replace(
        self, first: int, ensemble: tuple[str, ...], failed: frozenset[int]
    ) -> Fragment | None:
        """Change the ensemble in memory: the closing write records it."""
        try:
            wanted = await self._context.placement.substitutes(ensemble, failed, self._quorums)
        except Unavailable:
            wanted = None
        if wanted is None:
            self._degraded = True
            return None
        if self._fragments[-1].first == first:
            self._fragments.pop()
        fragment = Fragment(first, wanted.bookies)
        self._fragments.append(fragment)
        return fragment

    def facts(self, first: int, ensemble: tuple[str, ...]) -> LedgerFacts:
        """What bookies should remember of the ledger."""
        return self._context.facts(self._metadata, first, ensemble)

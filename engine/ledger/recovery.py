"""Recovery: fence a ledger's writer, find its end, write back what may be lost, close it.

The steps are those of BookKeeper's recovery, with fixes for its known defects: every read fences,
the LAC of write-backs is frozen, ensembles change only in memory until the close.

Invariants:
- Reads go to the last fragment as it stood when recovery began, never to bookies added since.
- Every acknowledged entry is found. The ledger ends before an entry only if replicas reported that
  they lack it, after their fence was durable, and the other replicas of its write set are not an
  ack quorum.
- If something cannot be decided, the ledger stays IN_RECOVERY; nothing is guessed.
- A close that somebody else wrote first is adopted, whatever this recovery found.
- A ledger that is being restored from a backup is not recovered: missing entries are not lost.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec

from engine.errors import (
    BookieUnavailable,
    EngineError,
    RecoveryIncomplete,
    Unauthorized,
    Unavailable,
)
from engine.ledger.context import LedgerContext
from engine.ledger.placement import Ensemble
from engine.ledger.quorum import absent, covered
from engine.ledger.reading import ask, intact_runs, lacks
from engine.ledger.replication import Replication
from engine.metadata.ledgers import (
    Fragment,
    Held,
    LedgerMetadata,
    State,
    check_not_restoring,
)
from engine.run import NO_ENTRY, Run
from engine.transport.contract import LacReply, LedgerFacts, ReadRequest, Status, uses_reserve


async def recover(context: LedgerContext, held: Held) -> Held:
    """Close a ledger for its writer and return the metadata as closed.

    Raises `RecoveryIncomplete` (retry), `Unauthorized`, `NoSuchLedger`, `MetadataUnavailable`,
    `Unavailable` for a ledger that is being restored.
    """
    held = await context.ledgers.update(held, _to_recovery)
    if held.metadata.closed:
        return held
    recovery = _Recovery(context, held.metadata)
    try:
        async with _in_time(context, held.metadata):
            await recovery.run()
    finally:
        recovery.stop()
    held = await context.ledgers.update(held, recovery.to_closed)
    if held.metadata.degraded:
        await context.ledgers.request_repair(held.metadata.ledger_id, "a replica is missing")
    recovery.record_close(held.metadata)
    return held


async def fence(context: LedgerContext, held: Held) -> None:
    """Fence a ledger so that nothing more is acknowledged; its end stays undecided.

    This also works if bookies are full or damaged. Raises the same errors as `recover`.
    """
    held = await context.ledgers.update(held, _to_recovery)
    if not held.metadata.closed:
        async with _in_time(context, held.metadata):
            await _Recovery(context, held.metadata).fence()


@contextlib.asynccontextmanager
async def _in_time(context: LedgerContext, metadata: LedgerMetadata) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(context.settings.recovery_timeout_ms / 1000):
            yield
    except TimeoutError as error:
        raise RecoveryIncomplete(
            f"ledger {metadata.ledger_id}: not decided in time; it stays in recovery"
        ) from error


def _to_recovery(current: LedgerMetadata) -> LedgerMetadata | None:
    check_not_restoring(current)
    if current.state is not State.OPEN:
        return None
    return msgspec.structs.replace(current, state=State.IN_RECOVERY)


class _Recovery:
    """One attempt on one ledger."""

    def __init__(self, context: LedgerContext, metadata: LedgerMetadata) -> None:
        self._context = context
        self._metadata = metadata
        self._quorums = context.quorums(metadata)
        self._frozen = metadata.fragments[-1]
        self._fragments = [self._frozen]
        self._last = NO_ENTRY
        self._length = 0
        self._degraded = False
        self._confirmed = asyncio.Event()
        self._error: EngineError | None = None
        self._replication: Replication | None = None

    async def run(self) -> None:
        """Fence, read onward, write back; afterwards `to_closed` knows the end."""
        lac = max(await self.fence(), self._frozen.first - 1)
        self._last = lac
        self._replication = Replication(
            ledger_id=self._metadata.ledger_id,
            quorums=self._quorums,
            ensemble=self._frozen.ensemble,
            fragment_first=self._frozen.first,
            lac=lac,
            recovery=True,
            owner=self,
            context=self._context,
        )
        await self._write_back(lac)
        if self._last == lac:
            self._length = await self._length_at(lac)
        self._degraded |= not await self._replication.settled(
            self._context.settings.straggler_close_ms
        )

    def stop(self) -> None:
        """Let late replies go."""
        if self._replication is not None:
            self._replication.stop(RecoveryIncomplete("the recovery is over"))

    def to_closed(self, current: LedgerMetadata) -> LedgerMetadata | None:
        """The closed metadata, or None where somebody else closed it first."""
        check_not_restoring(current)
        if current.closed:
            return None
        older = [found for found in current.fragments if found.first < self._frozen.first]
        return msgspec.structs.replace(
            current,
            state=State.CLOSED,
            fragments=(*older, *self._fragments),
            last_entry=self._last,
            length=self._length,
            degraded=current.degraded or self._degraded or len(self._fragments) > 1,
        )

    def record_close(self, metadata: LedgerMetadata) -> None:
        """Let the bookies of each recovered fragment remember it and the end; best effort."""
        for fragment in metadata.fragments:
            if fragment.first < self._frozen.first:
                continue
            facts = self._context.facts(metadata, fragment.first, fragment.ensemble)
            for bookie_id in fragment.ensemble:
                task = asyncio.ensure_future(self._record(bookie_id, facts))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _record(self, bookie_id: str, facts: LedgerFacts) -> None:
        bookie = await self._context.transport.connect(bookie_id)
        bookie.record(facts, self._context.key)

    # Fencing

    async def fence(self) -> int:
        """Fence until every ack quorum has a fenced bookie. Returns the highest LAC received."""
        asked = [self._fence_one(bookie_id) for bookie_id in self._frozen.ensemble]
        fenced: set[int] = set()
        lac = NO_ENTRY
        async for index, reply in _as_they_come(asked):
            if reply.status is Status.OK:
                fenced.add(index)
                lac = max(lac, reply.lac)
            elif reply.status is Status.UNAUTHORIZED:
                raise Unauthorized(f"ledger {self._metadata.ledger_id}: wrong password")
            if covered(self._quorums, fenced):
                return lac
        troubles, names = self._context.troubles, self._frozen.ensemble
        raise RecoveryIncomplete(
            f"ledger {self._metadata.ledger_id}: only {len(fenced)} of "
            f"{self._quorums.ensemble} bookies could be fenced{troubles.tell(names)}"
        ) from troubles.of(names)

    async def _fence_one(self, bookie_id: str) -> LacReply:
        try:
            bookie = await self._context.connect(bookie_id)
            reply = await bookie.fence(self._metadata.ledger_id, self._context.key)
        except BookieUnavailable:
            return LacReply(Status.UNAVAILABLE, NO_ENTRY, bookie_id, 0)
        if reply.bookie_id != bookie_id:
            return LacReply(Status.UNAVAILABLE, NO_ENTRY, bookie_id, 0)
        return reply

    # Reading onward and writing back

    async def _write_back(self, frozen_lac: int) -> None:
        """Copy what lies past the LAC to the full quorum, until an id is proven absent."""
        assert self._replication is not None
        await self._replication.start()
        while runs := await self._read_after(self._last):
            self._check_writable()
            copies = [msgspec.structs.replace(run, lac=frozen_lac) for run in runs]
            self._replication.send(copies)
            self._last = copies[-1].last
            self._length = copies[-1].length
            await self._until_confirmed()

    async def _until_confirmed(self) -> None:
        assert self._replication is not None
        while self._replication.lac < self._last:
            self._check_writable()
            self._confirmed.clear()
            await self._confirmed.wait()

    def _check_writable(self) -> None:
        if self._error is not None:
            raise RecoveryIncomplete(
                f"ledger {self._metadata.ledger_id}: could not write back"
            ) from self._error

    async def _read_after(self, last: int) -> list[Run]:
        """The runs that follow `last`, none if the next id is proven absent."""
        first = last + 1
        write_set = self._quorums.write_set(first)
        request = ReadRequest(
            self._metadata.ledger_id,
            first,
            self._quorums.stripe_end(first),
            self._context.settings.read_bytes_max,
            fence_key=self._context.key,
        )
        asked = [ask(self._context, self._frozen.ensemble[i], request) for i in write_set]
        lacking: set[int] = set()
        async for place, reply in _as_they_come(asked):
            runs = intact_runs(reply, first)
            if runs:
                return runs
            if lacks(reply, first):
                lacking.add(write_set[place])
            if absent(self._quorums, first, lacking):
                return []
        raise RecoveryIncomplete(
            f"ledger {self._metadata.ledger_id}: {len(lacking)} replicas lack entry {first}, up to "
            f"{self._quorums.negatives} must say so. The others did not answer, or cannot tell "
            "because of damage: try again when they are back, or repair their bookies"
        )

    async def _length_at(self, entry_id: int) -> int:
        """The ledger's bytes up to an entry that is known to be confirmed."""
        if entry_id == NO_ENTRY:
            return 0
        fragment = self._metadata.fragment_of(entry_id)
        request = ReadRequest(self._metadata.ledger_id, entry_id, entry_id, 1)
        write_set = self._quorums.write_set(entry_id)
        asked = [ask(self._context, fragment.ensemble[i], request) for i in write_set]
        async for _, reply in _as_they_come(asked):
            runs = intact_runs(reply, entry_id)
            if runs:
                return runs[0].length
        raise RecoveryIncomplete(
            f"ledger {self._metadata.ledger_id}: confirmed entry {entry_id} is not readable"
        )

    # Owner of the replication

    def on_confirmed(self, lac: int) -> None:
        self._confirmed.set()

    def on_failed(self, error: EngineError) -> None:
        self._error = error
        self._confirmed.set()

    async def replace(
        self, first: int, ensemble: tuple[str, ...], failed: frozenset[int]
    ) -> Fragment | None:
        """Change the ensemble in memory only: a recovery that starts over must not read it."""
        placement, survives = self._context.placement, self._metadata.survives
        try:
            wanted = await placement.substitutes(
                ensemble,
                failed,
                self._quorums,
                survives=survives,
                domains=self._fragments[-1].domains,
                from_reserve=uses_reserve(self._metadata.custom),
            )
        except Unavailable:
            wanted = None
        if wanted is None and self._replication and self._replication.enough_but_together:
            # All acknowledged entries are found, and a host is lost anyway: continue with one.
            wanted = Ensemble(ensemble, failed)
        if wanted is None:
            self._degraded = True
            return None
        if self._fragments[-1].first == first:
            self._fragments.pop()
        fragment = Fragment(first, wanted.bookies, wanted.domains)
        self._fragments.append(fragment)
        return fragment

    def facts(self, first: int, ensemble: tuple[str, ...]) -> LedgerFacts:
        """What bookies should remember: the fragment that the metadata names.

        A fragment that exists only in this recovery's memory must not come back if the metadata is
        lost now: its bookies lack what the next recovery would look for there.
        """
        return self._context.facts(self._metadata, self._frozen.first, self._frozen.ensemble)


async def _as_they_come(asked: list[Coroutine[Any, Any, Any]]) -> Any:
    """Yield (index, reply) in the order in which replies arrive; cancel the rest at the end."""
    tasks = [asyncio.ensure_future(question) for question in asked]
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for index, task in enumerate(tasks):
                if task in done:
                    yield index, task.result()
    finally:
        for task in tasks:
            task.cancel()

"""Reads every replica of every entry of ledgers, and says what is corrupt, missing or unreadable.

It looks as the engine's own scrub does, and mends and queues nothing.

Invariants:
- An entry of a replica is sound only if its bookie gave it with its digest.
- "Missing" is what a bookie says by name that it lacks, and a ledger that is named and not there;
  what nobody answers for is unreadable.
- Of a ledger that is being written, what the writer may still be sending is not asked of each
  replica: one intact copy of each confirmed entry is looked for.
- Held at once is one read of each replica of one ledger.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple

from engine.errors import (
    CannotRead,
    EngineError,
    FormatTooNew,
    NoSuchEntry,
    NoSuchLedger,
    Unavailable,
)
from engine.ledger.client import LedgerClient
from engine.ledger.context import LedgerContext
from engine.ledger.reader import LedgerReader
from engine.ledger.reading import ask, intact_runs, lacks
from engine.metadata.ledgers import Held, LedgerMetadata
from engine.place import Place, held_client
from engine.repair.ledger_repair import extents
from engine.repair.outlook import Workshop
from engine.repair.replicas import Extent
from engine.repair.settings import RepairSettings
from engine.transport.contract import ReadReply, ReadRequest, Status
from pipeline.findings import Finding, Tally, added

_TRIES: Final = 3
_SETTINGS: Final = RepairSettings(copy_bytes_a_second=0)


class Replica(NamedTuple):
    """One bookie's share of a fragment: entries `first` to `last`, of those it has to hold."""

    context: LedgerContext
    metadata: LedgerMetadata
    extent: Extent
    place: int
    """Its index in the ensemble."""

    @property
    def bookie_id(self) -> str:
        """Who holds it."""
        return self.extent.fragment.ensemble[self.place]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The entries that it has to hold: all, or those of its stripes."""
        first, last = self.extent.fragment.first, self.extent.last
        quorums = self.context.quorums(self.metadata)
        if quorums.ensemble == quorums.write:
            yield first, last
            return
        while first <= last:
            end = min(last, quorums.stripe_end(first))
            if self.place in quorums.write_set(first):
                yield first, end
            first = end + 1

    def note(
        self, found: Tally, kind: str, first: int, last: int, count: int | None = None
    ) -> None:
        """Some of its entries are not as they should be."""
        entries = f"entry {first}" if first == last else f"entries {first} to {last}"
        finding = Finding(kind, _named(self.metadata.ledger_id), f"{entries} on {self.bookie_id}")
        found.note(finding, last - first + 1 if count is None else count)


def check_ledgers(place: Place, ledger_ids: Iterable[int], *, named: bool = False) -> Tally:
    """Check ledgers one after the other.

    One that is not there is missing if somebody `named` it; of a list it was deleted since, and is
    passed over. Blocks. Raises `MetadataUnavailable`.
    """
    held = held_client(place)
    return added([held.run(partial(_check, held.client, one, named=named)) for one in ledger_ids])


async def _check(client: LedgerClient, ledger_id: int, *, named: bool) -> Tally:
    workshop = Workshop(
        store=client.store,
        transport=client.transport,
        clock=client.clock,
        rng=client.rng,
        settings=_SETTINGS,
    )
    found = Tally()
    try:
        for _ in range(_TRIES):
            held = await workshop.ledgers.read(ledger_id)
            found = await _look(workshop, held)
            # Repair may have moved a replica, or the ledger been deleted, while it was read.
            if found.sound or await workshop.ledgers.read(ledger_id) == held:
                break
    except NoSuchLedger:
        found = Tally()
        if named:
            found.note(Finding("missing", _named(ledger_id), "there is no such ledger"))
    except (CannotRead, FormatTooNew) as error:
        found = Tally(subjects=1)
        found.note(Finding("corrupt", _named(ledger_id), f"its metadata: {error}"))
    return found


async def _look(workshop: Workshop, held: Held) -> Tally:
    metadata = held.metadata
    context = workshop.context(metadata)
    registered = (await workshop.recent_outlook()).registered
    found = Tally(subjects=1, open=not metadata.closed)
    for extent in extents(metadata):
        found.entries += max(0, extent.last - extent.fragment.first + 1)
        replicas = [Replica(context, metadata, extent, at) for at in range(metadata.ensemble_size)]
        await asyncio.gather(
            *(_look_at(each, found, there=each.bookie_id in registered) for each in replicas)
        )
    if not metadata.closed:
        await _look_at_open(LedgerReader(context, held), found)
    return found


async def _look_at(replica: Replica, found: Tally, *, there: bool) -> None:
    """Read one replica of a fragment to its end, or until its bookie gives no answer."""
    for first, last in replica.ranges():
        following = first
        while following <= last:
            reply = await _asked(replica, following, last) if there else None
            if reply is None:
                count = sum(
                    end - max(begin, following) + 1
                    for begin, end in replica.ranges()
                    if end >= following
                )
                replica.note(found, "unreadable", following, replica.extent.last, count)
                return
            runs = intact_runs(reply, following)
            found.bytes += sum(run.size_bytes for run in runs)
            following = runs[-1].last + 1 if runs else following
            if following <= last:
                following = _pass_fault(replica, reply, following, last, found)


def _pass_fault(replica: Replica, reply: ReadReply, entry_id: int, last: int, found: Tally) -> int:
    """Note why a reply stops before an entry, if not by its limit; where to go on."""
    if lacks(reply, entry_id):
        end = last if reply.missing is None else min(reply.missing[1], last)
        replica.note(found, "missing", entry_id, end)
        return end + 1
    unknown = reply.unknown is not None and reply.unknown[0] <= entry_id <= reply.unknown[1]
    if unknown or reply.status is Status.UNKNOWN:
        end = last if reply.unknown is None else min(reply.unknown[1], last)
        replica.note(found, "corrupt", entry_id, end)
        return end + 1
    if any(run.first <= entry_id <= run.last for run in reply.runs):
        replica.note(found, "corrupt", entry_id, entry_id)
        return entry_id + 1
    return entry_id


async def _asked(replica: Replica, first: int, last: int) -> ReadReply | None:
    """A reply that says something, None after several tries without one."""
    request = ReadRequest(replica.metadata.ledger_id, first, last, _SETTINGS.step_bytes)
    for _ in range(_TRIES):
        try:
            async with asyncio.timeout(_SETTINGS.read_timeout_ms / 1000):
                reply = await ask(replica.context, replica.bookie_id, request)
        except (Unavailable, TimeoutError):
            continue
        said = reply.runs or lacks(reply, first) or reply.unknown is not None
        if said or reply.status is Status.UNKNOWN:
            return reply
    return None


async def _look_at_open(reader: LedgerReader, found: Tally) -> None:
    """Read what is confirmed and still being written from whichever bookie has it."""
    first = reader.metadata.fragments[-1].first
    subject = _named(reader.ledger_id)
    try:
        last = await reader.read_last_add_confirmed()
        async with aclosing(reader.read_batches(first, max(last, first - 1))) as batches:
            async for batch in batches:
                found.entries += len(batch)
                found.bytes += sum(len(entry.body) for entry in batch)
    except NoSuchLedger:
        raise
    except NoSuchEntry as error:
        found.note(Finding("missing", subject, str(error)))
    except CannotRead as error:
        found.note(Finding("corrupt", subject, str(error)))
    except EngineError as error:
        found.note(Finding("unreadable", subject, str(error)))
    finally:
        await reader.close()


def _named(ledger_id: int) -> str:
    return f"ledger {ledger_id}"

"""What a store is at one moment: the keys of its logs and tablespaces, and where each log ends.

Invariants:
- A log's list, its snapshot and its end are of one moment: the log is kept from the snapshot on.
- Every acknowledged transaction that began after the one before was answered is in a log's end, or
  none after it is: an end is what a recovery would find now.
- Logs end in the order in which they name each other: tasks, tables, buckets. What a task or a row
  names was acknowledged before it was, so it is before the later end of the log that has it.
- Which tablespaces there are did not change while their ends were found, so that one does not name
  another that is not there.
- What is being filled, or was dropped, is not there.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from typing import Final

from blobit.naming import OWN_TABLESPACES
from blobit.tables import REGISTRY
from engine.errors import CannotRead, NoSuchLedger, Unavailable
from engine.ledger.reader import LedgerReader
from engine.limits import ENTRY_ID_MAX
from engine.log.log_list import LOGS, LogList, decode_list
from engine.log.position import START, Position
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import Held, LedgerMetadata
from engine.metadata.lost_logs import lost_logs
from engine.repair.outlook import Workshop
from engine.replica.snapshots import SnapshotRecord, decode_snapshot
from engine.run import Entry
from herd.checkpoint.manifest import decode_checkpoints
from herd.nodes.facts import SPACES, decode_space
from herd.reading_log import LOGS as HERD_LOGS
from herd.reading_log import log_of

_TRIES: Final = 50
_PAUSE_S: Final = 0.1
_LIST, _SNAPSHOT, _CHECKPOINTS = "list", "snapshot", "checkpoints"


class Moved(Exception):
    """What was looked at changed meanwhile: look again."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment. `ends` are of the logs' last ledgers; `logs` are all ledgers that logs name."""

    at_ms: int
    keys: dict[str, bytes]
    ends: dict[int, int]
    logs: frozenset[int]


async def take_cut(workshop: Workshop, logs: Collection[str] = ()) -> Cut:
    """What there is now, of tablespaces and of the `logs` named besides.

    Raises `Unavailable`, and `CannotRead` for keys that are damaged, for logs whose list was lost,
    and for those whose end too few bookies tell.
    """
    for name in sorted(await lost_logs(workshop.store)):
        raise CannotRead(
            f"the list of log {name} was lost with the metadata: bring the metadata store back "
            "from a backup, or let the log begin anew (`herdbook repair forget-log`)"
        )
    for _ in range(_TRIES):
        try:
            return await _look(workshop, logs)
        except (Moved, NoSuchLedger):
            await asyncio.sleep(_PAUSE_S)
    raise Unavailable("the store's logs change faster than they can be looked at: try again")


async def check_checkpoints(store: MetadataStore, cut: Cut) -> None:
    """Raise `Moved` where a checkpoint of a cut is not kept any more: its ledgers may be gone."""
    for key in [each for each in cut.keys if each.endswith(f"/{_CHECKPOINTS}")]:
        found = await store.get(key)
        kept = () if found is None else decode_checkpoints(found.value).kept
        if not set(decode_checkpoints(cut.keys[key]).kept) <= set(kept):
            raise Moved


async def _look(workshop: Workshop, named: Collection[str]) -> Cut:
    store = workshop.store
    await store.sync()
    at_ms = workshop.clock.wall_ms()
    before = await _spaces(store)
    keys = dict(before)
    ends: dict[int, int] = {}
    logs: set[int] = set()
    for name in before:
        found = await store.get(f"{name}/{_CHECKPOINTS}")
        if found is not None:
            keys[f"{name}/{_CHECKPOINTS}"] = found.value
    for name in _in_order(named, before):
        listed = await _take_log(workshop, f"{LOGS}/{name}", keys)
        if listed.listed:
            last = listed.ledgers[-1]
            logs.update(listed.ledgers)
            ends[last] = await end_of(workshop, last)
            snapshot = _snapshot_of(keys, f"{LOGS}/{name}")
            if snapshot is not None and snapshot.ledger_id:
                logs.add(snapshot.ledger_id)
                _check_kept(name, listed, snapshot, Position(last, ends[last]))
    if await _spaces(store) != before:
        raise Moved
    return Cut(at_ms, keys, ends, frozenset(logs))


def _in_order(named: Collection[str], spaces: Collection[str]) -> list[str]:
    """The logs, those last that are named by what is in others, and name nothing there."""
    others = sorted(name for name in named if not name.startswith(HERD_LOGS))
    tablespaces = sorted(key.removeprefix(f"{SPACES}/") for key in spaces)
    tablespaces.sort(key=lambda name: name == REGISTRY or name.startswith(OWN_TABLESPACES))
    return [*others, *map(log_of, tablespaces)]


async def end_of(workshop: Workshop, ledger_id: int) -> int:
    """The last entry that a ledger may be read up to, found as a recovery finds it.

    What a writer has just acknowledged may be announced a moment later, so it does not end with
    what is confirmed. Raises `NoSuchLedger`, `CannotRead`, `Unavailable`.
    """
    async with await opened(workshop, ledger_id) as reader:
        if reader.closed:
            assert reader.metadata.last_entry is not None
            return reader.metadata.last_entry
        last = reader.last_add_confirmed
        async for entry in beyond(reader, last + 1):
            last = entry.entry_id
    return last


async def opened(workshop: Workshop, ledger_id: int) -> LedgerReader:
    """A reader that leaves the writer alone and needs no password. Raises `NoSuchLedger`."""
    held = await workshop.ledgers.read(ledger_id)
    return await reader_of(workshop, held.metadata)


async def reader_of(workshop: Workshop, metadata: LedgerMetadata) -> LedgerReader:
    """The same of metadata that were read before: the ledger may have been deleted since."""
    reader = LedgerReader(workshop.context(metadata), Held(metadata, -1))
    if not reader.closed:
        try:
            await reader.read_last_add_confirmed()
        except Unavailable:
            return reader
    return reader


async def beyond(reader: LedgerReader, first: int) -> AsyncGenerator[Entry, None]:
    """Entries that nobody has confirmed though an ack quorum may have them: as a recovery finds.

    Where the writer goes on these end soon, at what was acknowledged before the call or later.
    Raises `CannotRead`, `Unavailable` where too few bookies answer to tell where they end.
    """
    bound = await _not_acknowledged(reader, first)
    async for entry in reader.read_unconfirmed(first, bound - 1, acknowledged=True):
        yield entry


async def _not_acknowledged(reader: LedgerReader, first: int) -> int:
    """An id above all that had been acknowledged when this was asked.

    Each look is further ahead than the one before: no writer keeps up with that.
    """
    wanted, step = first, 1
    try:
        while [entry async for entry in reader.read_unconfirmed(wanted, wanted, acknowledged=True)]:
            wanted, step = wanted + step, 2 * step
    except (CannotRead, Unavailable):
        # Those who would have that one are away; those who have the last one may be there.
        return ENTRY_ID_MAX
    return wanted


async def _spaces(store: MetadataStore) -> dict[str, bytes]:
    """The facts of the tablespaces that are there and whole, by key."""
    found: dict[str, bytes] = {}
    for name in await store.children(SPACES):
        key = f"{SPACES}/{name}"
        value = await store.get(key)
        if value is not None and not decode_space(value.value).dropped:
            found[key] = value.value
    return found


async def _take_log(workshop: Workshop, name: str, keys: dict[str, bytes]) -> LogList:
    """Put a log's keys where they belong, both of one moment. Raises `Moved`."""
    store = workshop.store
    snapshot = await store.get(f"{name}/{_SNAPSHOT}")
    found = await store.get(f"{name}/{_LIST}")
    if await store.get(f"{name}/{_SNAPSHOT}") != snapshot:
        raise Moved
    listed = LogList() if found is None else decode_list(found.value)
    if found is not None and listed.listed:
        keys[f"{name}/{_LIST}"] = found.value
        if snapshot is not None:
            keys[f"{name}/{_SNAPSHOT}"] = snapshot.value
    return listed


def _snapshot_of(keys: dict[str, bytes], name: str) -> SnapshotRecord | None:
    value = keys.get(f"{name}/{_SNAPSHOT}")
    return None if value is None else decode_snapshot(value)


def _check_kept(name: str, listed: LogList, snapshot: SnapshotRecord, end: Position) -> None:
    if snapshot.at > end:
        # A bookie that is away has what the snapshot already holds.
        raise Moved
    if not listed.keeps_after(max(snapshot.at, START)):
        raise CannotRead(f"log {name} is not kept from its snapshot on")

"""The state of a store at one moment: the keys of its logs and tablespaces, and each log's end.

Invariants:
- All of it is from one instant. Everything is read twice in sequence, and both reads find the same;
  so the store had this state at every instant between the two. The cut has everything that was
  acknowledged in any log before such an instant, and nothing that was proposed after it.
- Nothing else is needed for that: no leader's reply, no clock, no epoch. Leaders hold their logs
  meanwhile (`engine.log.holding`) only so that two reads can be equal in a busy store.
- The ends of logs only grow: an end is what a recovery would find now.
- A log is in the cut if a ledger names it. There may be many ledgers, so they are listed before and
  after the logs are held, never meanwhile. If the second listing shows a log that is not in the two
  reads, everything is read again.
- A log's list, its snapshot and its end belong together: the log is kept from the snapshot on.
- Tablespaces that are being filled or were dropped are left out.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Final

from engine.errors import CannotRead, InvalidRequest, KeyExists, NoSuchLedger, Unavailable
from engine.ledger.reader import LedgerReader
from engine.limits import ENTRY_ID_MAX
from engine.log.holding import HOLD_MS, logs_held
from engine.log.log_list import LOGS, LogList, check_name, decode_list
from engine.log.position import START, Position
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import Held, LedgerMetadata
from engine.metadata.lost_logs import LOG_OWNER, OWNER, lost_logs
from engine.repair.outlook import Workshop
from engine.repair.survey import read_many
from engine.replica.snapshots import SnapshotRecord, decode_snapshot
from engine.run import Entry
from herd.checkpoint.manifest import decode_checkpoints
from herd.nodes.facts import SETTINGS, SPACES, decode_space
from herd.reading_log import LOGS as HERD_LOGS
from herd.reading_log import log_of

_TRIES: Final = 12
_FIRST_HOLD_S: Final = 0.2
_PAUSE_S: Final = 0.01
_LOOKS_MAX: Final = 100
_AT_ONCE: Final = 32
_LIST, _SNAPSHOT, _CHECKPOINTS = "list", "snapshot", "checkpoints"


class Moved(Exception):
    """The keys or logs changed while they were read: read again."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment. `ends` are of the logs' last ledgers; `logs` are all ledgers that logs name.

    `at_ms` is the wall clock shortly before the moment.
    """

    at_ms: int
    keys: dict[str, bytes]
    ends: dict[int, int]
    logs: frozenset[int]


async def take_cut(workshop: Workshop, found: Iterable[LedgerMetadata] = ()) -> Cut:
    """The tablespaces and all other logs at one moment.

    `found` are ledgers that were read before, and are not read again. Meanwhile writers of logs may
    have to wait, for at most a second at a time, and then run freely for as long.

    Raises `Unavailable` if the logs keep changing, and `CannotRead` for damaged keys, for logs
    whose list was lost, and for logs whose end too few bookies report.
    """
    for name in sorted(await lost_logs(workshop.store)):
        raise CannotRead(
            f"the list of log {name} was lost with the metadata: bring the metadata store back "
            "from a backup, or let the log begin anew (`herdbook repair forget-log`)"
        )
    cutting = _Cutting(workshop, found)
    hold_s = _FIRST_HOLD_S
    for number in range(_TRIES):
        # Before the logs are held: there may be many ledgers that have not been read yet.
        await cutting.learn_logs()
        cut = await cutting.within(hold_s, number)
        if cut is not None and not await cutting.learn_logs():
            return cut
        await asyncio.sleep(hold_s)
        hold_s = min(2 * hold_s, HOLD_MS / 1000)
    raise Unavailable(
        f"the store's logs kept changing ({cutting.moved}): their leaders may run an earlier "
        "version, or the bookies may be slow; try again"
    )


async def check_checkpoints(store: MetadataStore, cut: Cut) -> None:
    """Raise `Moved` if a checkpoint of a cut is no longer kept: its ledgers may be deleted."""
    for key in [each for each in cut.keys if each.endswith(f"/{_CHECKPOINTS}")]:
        found = await store.get(key)
        kept = () if found is None else decode_checkpoints(found.value).kept
        if not set(decode_checkpoints(cut.keys[key]).kept) <= set(kept):
            raise Moved


class _Cutting:
    """Reads all logs and tablespaces until two consecutive reads are equal."""

    def __init__(self, workshop: Workshop, found: Iterable[LedgerMetadata]) -> None:
        self.moved = "nothing has been read yet"
        self._workshop = workshop
        self._known: set[int] = set()
        self._logs: set[str] = set()
        self._owner = f"{workshop.rng.getrandbits(64):016x}"
        for metadata in found:
            self._learn(metadata)

    async def within(self, hold_s: float, number: int) -> Cut | None:
        """Hold the logs and read for that time, at least twice; None if no two reads are equal.

        With very many logs, two reads may take longer than leaders wait. They are equal anyway if
        nothing is written.
        """
        try:
            async with logs_held(self._workshop.store, self._owner, number):
                return await self._two_alike(hold_s)
        except KeyExists:
            # Another backup holds the logs, or one that was killed did. Nothing rests on a hold.
            return await self._two_alike(hold_s)

    async def _two_alike(self, hold_s: float) -> Cut | None:
        before: Cut | None = None
        clock = self._workshop.clock
        begun_s = clock.monotonic()
        for looks in range(_LOOKS_MAX):
            if looks > 1 and clock.monotonic() - begun_s > hold_s:
                break
            cut = await self._look_or_moved()
            if cut is not None and before is not None:
                self.moved = _differences(before, cut)
                if not self.moved:
                    return cut
            before = cut
            if looks:
                await asyncio.sleep(_PAUSE_S)
        return None

    async def _look_or_moved(self) -> Cut | None:
        try:
            return await self._look()
        except (Moved, NoSuchLedger) as error:
            self.moved = str(error) or "a snapshot or a log's list changed"
            return None

    async def learn_logs(self) -> bool:
        """Find all logs. Returns whether there are new ones.

        A log's ledgers name it, and they exist before their entries.
        """
        before = len(self._logs)
        await self._workshop.store.sync()
        new = [each for each in await self._workshop.ledgers.ids() if each not in self._known]
        size = self._workshop.settings.ledgers_a_page
        for start in range(0, len(new), size):
            for metadata in await read_many(self._workshop, new[start : start + size]):
                self._learn(metadata)
        if len(self._logs) > before:
            self.moved = "a log began"
        return len(self._logs) > before

    def _learn(self, metadata: LedgerMetadata) -> None:
        self._known.add(metadata.ledger_id)
        owner = metadata.custom.get(OWNER, b"")
        if not owner.startswith(LOG_OWNER):
            return
        name = owner.removeprefix(LOG_OWNER).decode(errors="replace")
        # Anybody may have created a ledger that claims to belong to a log.
        with contextlib.suppress(InvalidRequest):
            check_name(name)
            self._logs.add(name)

    async def _look(self) -> Cut:
        store = self._workshop.store
        await store.sync()
        at_ms = self._workshop.clock.wall_ms()
        keys = await _spaces(store)
        spaces = list(keys)
        for name in spaces:
            found = await store.get(f"{name}/{_CHECKPOINTS}")
            if found is not None:
                keys[f"{name}/{_CHECKPOINTS}"] = found.value
        # The log of a tablespace that is being filled, or was dropped, is left out as well.
        others = {name for name in self._logs if not name.startswith(HERD_LOGS)}
        settings = await store.get(SETTINGS)
        if settings is not None:
            keys[SETTINGS] = settings.value
        names = sorted(others | {log_of(key.removeprefix(f"{SPACES}/")) for key in spaces})
        ends: dict[int, int] = {}
        logs: set[int] = set()
        for start in range(0, len(names), _AT_ONCE):
            looks = [
                asyncio.ensure_future(self._look_at(name, keys, ends, logs))
                for name in names[start : start + _AT_ONCE]
            ]
            try:
                await asyncio.gather(*looks)
            finally:
                for look in looks:
                    look.cancel()
        return Cut(at_ms, keys, ends, frozenset(logs))

    async def _look_at(
        self, name: str, keys: dict[str, bytes], ends: dict[int, int], logs: set[int]
    ) -> None:
        """Read one log, and add the result to that of the others."""
        listed = await _take_log(self._workshop, f"{LOGS}/{name}", keys)
        if not listed.listed:
            return
        last = listed.ledgers[-1]
        logs.update(listed.ledgers)
        ends[last] = await end_of(self._workshop, last)
        snapshot = _snapshot_of(keys, f"{LOGS}/{name}")
        if snapshot is not None and snapshot.ledger_id:
            logs.add(snapshot.ledger_id)
            _check_kept(name, listed, snapshot, Position(last, ends[last]))


def _differences(before: Cut, cut: Cut) -> str:
    """Describes what changed between two reads; "" for nothing."""
    keys = [
        key
        for key in sorted(before.keys.keys() | cut.keys.keys())
        if before.keys.get(key) != cut.keys.get(key)
    ]
    moved = keys + [
        _log_of(cut, ledger_id)
        for ledger_id in sorted(before.ends.keys() | cut.ends.keys())
        if before.ends.get(ledger_id) != cut.ends.get(ledger_id)
    ]
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return ", ".join(moved[:3]) + more + " changed" if moved else ""


def _log_of(cut: Cut, ledger_id: int) -> str:
    """The name of the log that a ledger belongs to, if the cut has it."""
    for key, value in cut.keys.items():
        if key.endswith(f"/{_LIST}") and ledger_id in decode_list(value).ledgers:
            return f"log {key.removeprefix(f'{LOGS}/').removesuffix(f'/{_LIST}')}"
    return f"ledger {ledger_id}"


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
        # Bookies that should have this entry are down; those that have the last one may be up.
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
    """Add a log's keys. Only two equal looks show that both are of one moment.

    The list is read first: a snapshot is named before the log is truncated up to it.
    """
    store = workshop.store
    found = await store.get(f"{name}/{_LIST}")
    snapshot = await store.get(f"{name}/{_SNAPSHOT}")
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
        # A bookie that is down has entries that the snapshot already contains.
        raise Moved
    if not listed.keeps_after(max(snapshot.at, START)):
        raise CannotRead(f"log {name} is not kept from its snapshot on")

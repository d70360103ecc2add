"""Whether the replicas of a tablespace have the same rows, at one position, beside all other work.

    verdict = await check_replicas(space)              # in SQL: CHECK TABLESPACE
    if not verdict.well: ...

The leader logs a `Check`. Each replica that applies it takes a snapshot, hashes its rows table by
table in pages, and puts the digest into the metadata store, where the leader compares them:

    /herd/tablespaces/NAME/checks/NUMBER/asked         the leader waits for this one
    /herd/tablespaces/NAME/checks/NUMBER/REPLICA       `Digest`

The hash that replicas tell each other through the log (`engine.replica.applier`) is a chain over
changes and results: it finds a machine that applies differently, at once and for nothing. It never
looks at the rows again; what a disk, a lost write or a wrong restoration did to them is found here.

Invariants:
- A digest is of exactly the check's position: what the batch that carried it changed after it is
  taken back for the hash.
- Nothing is hashed on the event loop where there are threads, and a page at a time.
"""

import asyncio
import logging
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c
import msgspec

from engine.errors import EngineError, KeyExists
from engine.limits import MIB
from engine.log.log_list import LOGS
from engine.log.position import START, Position
from engine.metadata.contract import MetadataStore
from engine.ports.workers import Workers
from engine.replica.members import Member
from engine.state.contract import Row, Snapshot
from herd.commands import Check, encode_command
from herd.errors import Error, LeaderUnavailable
from herd.keys import CATALOG, DATA, store_of
from herd.machine import HerdMachine, Undo
from herd.reading_log import log_of
from herd.translating import translating

if TYPE_CHECKING:
    from herd.catalog import Catalog
    from herd.sql.session import Session
    from herd.tablespace import Tablespace
    from herd.wire.session import RemoteSession

PATIENCE_MS: Final = 600_000
LEADS, EQUAL, DIFFERENT, SILENT = "leader", "equal", "different", "silent"
VERDICT_COLUMNS: Final = (
    *(("replica", str), ("address", str), ("verdict", str), ("what", str)),
    *(("rows", int), ("leader_rows", int), ("ledger", int), ("entry", int)),
)
_PAGE_BYTES: Final = MIB
_LOOK_S: Final = 0.1
_ASKED: Final = "asked"
_LENGTHS: Final = struct.Struct(">II")
_logger = logging.getLogger(__name__)


class Group(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one store (index 0), the entries of one of its indexes, or the catalog (store 0)."""

    store: int
    index: int
    rows: int
    checksum: int


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """What one replica has at a check's position."""

    position: Position
    groups: tuple[Group, ...]


class Difference(NamedTuple):
    """Something that a replica has otherwise than the leader; counts are of rows or entries."""

    replica: str
    what: str
    rows: int
    leader_rows: int


class Verdict(NamedTuple):
    """What came of a check. Replicas are named by their ids."""

    position: Position
    agreeing: tuple[str, ...]
    differences: tuple[Difference, ...]
    unheard: tuple[str, ...]
    """Those that run and did not answer in time."""
    leader: str
    addresses: dict[str, str]
    """Where replicas are reached, as far as is known; "" in a folder."""

    @property
    def well(self) -> bool:
        """Whether every replica answered, and has the leader's rows."""
        return not self.differences and not self.unheard

    def rows(self) -> list[tuple[str | int | None, ...]]:
        """The same in rows of `VERDICT_COLUMNS`; the leader's is the first."""
        found: list[tuple[str, str, str | None, int | None, int | None]] = [
            (self.leader, LEADS, None, None, None),
            *((replica, EQUAL, None, None, None) for replica in self.agreeing),
            *((one.replica, DIFFERENT, *one[1:]) for one in self.differences),
            *((replica, SILENT, None, None, None) for replica in self.unheard),
        ]
        return [(one[0], self.addresses.get(one[0], ""), *one[1:], *self.position) for one in found]


def verdict_of(rows: Iterable[tuple[Any, ...]]) -> Verdict:
    """What `CHECK TABLESPACE` has answered."""
    by_verdict: dict[str, list[tuple[Any, ...]]] = {}
    addresses, position = {}, START
    for row in rows:
        addresses[row[0]], position = row[1], Position(*row[6:8])
        by_verdict.setdefault(row[2], []).append(row)
    (leader,) = by_verdict[LEADS]
    return Verdict(
        position,
        tuple(row[0] for row in by_verdict.get(EQUAL, ())),
        tuple(Difference(row[0], *row[3:6]) for row in by_verdict.get(DIFFERENT, ())),
        tuple(row[0] for row in by_verdict.get(SILENT, ())),
        leader[0],
        addresses,
    )


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Digest).decode
_decode_member: Final = msgspec.msgpack.Decoder(Member).decode


async def check_replicas(space: "Tablespace", patience_ms: int = PATIENCE_MS) -> Verdict:
    """Compare all replicas of a tablespace that run, on its leader.

    Raises `LeaderUnavailable`, `CommitUnknown` when the term ends meanwhile, `StorageFailed`.
    """
    with translating():
        assert space.checker is not None, "a tablespace that is open has one"
        return await space.checker.compare(patience_ms)


async def checked_through(session: "Session | RemoteSession") -> Verdict:
    """The same, by a session to wherever the leader is; closes it. Raises `LeaderUnavailable`."""
    try:
        return verdict_of((await session.execute("CHECK TABLESPACE")).rows)
    finally:
        await session.close()


class Checker:
    """One replica's part in checks. On the event loop."""

    def __init__(self, space: "Tablespace", store: MetadataStore, workers: Workers | None) -> None:
        self._space = space
        self._store = store
        self._workers = workers
        self._folder = f"/herd/tablespaces/{space.name}/checks"
        self._replicas = f"{LOGS}/{log_of(space.name)}/replicas"
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, position: Position, number: int, machine: HerdMachine) -> None:
        """A check is being applied; the batch that it is in is not committed yet."""
        task = asyncio.ensure_future(self._answer(position, number, machine, machine.note()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def compare(self, patience_ms: int) -> Verdict:
        """See `check_replicas`."""
        space = self._space
        term, own = space.term, space.replica.replica_id
        if not term:
            raise LeaderUnavailable(f"this replica of tablespace {space.name} does not lead")
        number = await self._store.next_id(f"/ids/checks/{space.name}")
        folder = f"{self._folder}/{number}"
        await self._store.create(f"{folder}/{_ASKED}", b"")
        try:
            await space.propose(encode_command(Check(number)), term)
            digests = await self._gather(folder, own, patience_ms)
        finally:
            await self._clear(folder)
        mine = digests.get(own)
        if mine is None:
            raise LeaderUnavailable(f"the leader of {space.name} could not hash its own rows")
        addresses = await self._addresses()
        unheard = set(addresses) - set(digests)
        return _judge(own, mine, digests, unheard, space.catalog)._replace(addresses=addresses)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _gather(self, folder: str, own: str, patience_ms: int) -> dict[str, Digest]:
        """The digests of all replicas that run, or of those that answer in time."""
        digests: dict[str, Digest] = {}
        looks = max(1, int(patience_ms / 1000 / _LOOK_S))
        for _ in range(looks):
            for replica in await self._store.children(folder):
                if replica != _ASKED and replica not in digests:
                    found = await self._store.get(f"{folder}/{replica}")
                    if found is not None:
                        digests[replica] = _decode(found.value)
            if set(await self._store.children(self._replicas)) | {own} <= set(digests):
                break
            await asyncio.sleep(_LOOK_S)
        return digests

    async def _addresses(self) -> dict[str, str]:
        """All replicas that run, and where."""
        found = {}
        for replica in await self._store.children(self._replicas):
            listed = await self._store.get(f"{self._replicas}/{replica}")
            if listed is not None:
                with suppress(msgspec.MsgspecError):
                    found[replica] = _decode_member(listed.value).address
                found.setdefault(replica, "")
        return found

    async def _clear(self, folder: str) -> None:
        for name in await self._store.children(folder):
            await self._store.delete(f"{folder}/{name}")

    async def _answer(
        self, position: Position, number: int, machine: HerdMachine, undo: Undo
    ) -> None:
        """Hash the rows of a position and tell the digest, if somebody still waits for it."""
        try:
            snapshot = self._space.view()
        except Error as error:
            _logger.info("tablespace %s: no check: %s", self._space.name, error)
            return
        finally:
            machine.forget(undo)
        try:
            folder = f"{self._folder}/{number}"
            if await self._store.get(f"{folder}/{_ASKED}") is None:
                return
            groups = await self._digest(snapshot, undo)
            answer = _encode(Digest(position, tuple(groups)))
            await self._store.create(f"{folder}/{self._space.replica.replica_id}", answer)
        except KeyExists:
            return
        except EngineError as error:
            _logger.info("tablespace %s: no digest: %s", self._space.name, error)
        finally:
            snapshot.close()

    async def _digest(self, snapshot: Snapshot, undo: Undo) -> list[Group]:
        hashing = Hashing(snapshot, undo)
        while not hashing.done:
            if self._workers is None:
                hashing.step()
                await asyncio.sleep(0)
            else:
                await self._workers.run(hashing.step)
        return hashing.groups


class Hashing:
    """The digest of a snapshot with some rows as they were before, a page a step."""

    def __init__(self, snapshot: Snapshot, undo: Undo) -> None:
        self._snapshot = snapshot
        self._undo = undo
        self._ahead = sorted(key for key in undo if key >= CATALOG)
        self._above = CATALOG
        self._group = (0, 0)
        self._rows = 0
        self._checksum = 0
        self.groups: list[Group] = []
        self.done = False

    def step(self) -> None:
        """Hash the next page. May run in a thread, one step at a time."""
        page = self._snapshot.page(self._above, _PAGE_BYTES)
        last = page[-1][0] if page else None
        for key, value in self._as_it_was(page, last):
            self._add(key, value)
        if last is None:
            self._end_group()
            self.done = True
        else:
            self._above = last

    def _as_it_was(self, page: list[Row], last: bytes | None) -> Iterator[Row]:
        count = sum(last is None or key <= last for key in self._ahead)
        here, self._ahead = self._ahead[:count], self._ahead[count:]
        if not here:
            yield from page
            return
        rows: dict[bytes, bytes | None] = dict(page)
        rows.update((key, self._undo[key]) for key in here)
        for key in sorted(rows):
            value = rows[key]
            if value is not None:
                yield key, value

    def _add(self, key: bytes, value: bytes) -> None:
        group = store_of(key) if key >= DATA else (0, 0)
        if group != self._group:
            self._end_group()
            self._group = group
        self._rows += 1
        lengths = _LENGTHS.pack(len(key), len(value))
        self._checksum = google_crc32c.extend(self._checksum, lengths + key + value)

    def _end_group(self) -> None:
        if self._rows:
            self.groups.append(Group(*self._group, self._rows, self._checksum))
        self._rows = self._checksum = 0


def _judge(
    own: str, mine: Digest, digests: dict[str, Digest], unheard: set[str], catalog: "Catalog"
) -> Verdict:
    agreeing, differences = [], []
    wanted = {(group.store, group.index): group for group in mine.groups}
    for replica, digest in sorted(digests.items()):
        assert digest.position == mine.position, "a check is of one position"
        found = {(group.store, group.index): group for group in digest.groups}
        for place in sorted(wanted.keys() | found.keys()):
            here, there = wanted.get(place), found.get(place)
            if here != there:
                rows, leader_rows = (0 if one is None else one.rows for one in (there, here))
                what = _named(catalog, *place)
                differences.append(Difference(replica, what, rows, leader_rows))
        if digest.groups == mine.groups and replica != own:
            agreeing.append(replica)
    heard = tuple(agreeing), tuple(differences)
    return Verdict(mine.position, *heard, tuple(sorted(unheard)), own, {})


def _named(catalog: "Catalog", store: int, index: int) -> str:
    """What a user calls the rows of a store."""
    if not store:
        return "the definitions"
    for table in catalog.tables.values():
        if table.store == store:
            named = [one.name for one in table.indexes if one.number == index]
            return f"index {named[0]} of table {table.name}" if named else f"table {table.name}"
    return f"rows of a table that was dropped (store {store})"

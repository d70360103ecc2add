"""Filling an empty tablespace: from pages, and from a checkpoint and the log after it.

    await restore_until(space, client, workers, "farm", position)

Invariants:
- Only an empty tablespace is filled, and until the last command it has no table: nobody sees half.
- Nobody else defines tables until it has ended: whoever wants to waits for the lock on the names.
- Whatever is written is marked to be erased before; the last command takes the marks away. So the
  rest of a restoration that was cut short is erased by whoever leads then, and its numbers of
  tables are given to no other.
- A restoration to a position has every transaction up to that position and none after it.
- Rows get the positions of the log that they are written into now.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Final

import msgspec

from engine.errors import PositionTruncated
from engine.ledger.client import LedgerClient
from engine.log import START, Position, ReplicatedLog
from engine.ports.workers import Workers
from herd.catalog import erasing, load, stores_to_erase
from herd.checkpoint.blobs import read_blob
from herd.checkpoint.manifest import Manifest, decode_manifest
from herd.checkpoint.pages import decode_page
from herd.checkpoint.reading import catalog_of
from herd.checkpoint.record import CheckpointList
from herd.checkpoint.unpacking import unpacked
from herd.commands import Change, Write, encode_command
from herd.errors import LeaderUnavailable, ProgrammingError, StorageFailed
from herd.keys import AUTO, COUNTERS, DATA, ERASE, TABLE, VIEW, store_of
from herd.locks import SCHEMA
from herd.plan import Plan
from herd.reading_log import log_of, read_commands
from herd.rows import encode_row
from herd.schema import Counters, Table
from herd.tablespace import Tablespace
from herd.transaction import Transaction
from herd.translating import translating

_WRITE_BYTES: Final = 1024 * 1024
_PIN_MS: Final = 24 * 3_600_000
_LOOKS_MAX: Final = 50
_LOOK_S: Final = 0.1
_DEFINING: Final = (TABLE, VIEW, COUNTERS, AUTO)


async def fill(
    space: Tablespace, workers: Workers, manifest: Manifest, pages: AsyncIterator[bytes]
) -> None:
    """Write a manifest's definitions and rows into an empty tablespace.

    Raises `ProgrammingError` if it is not empty, `LeaderUnavailable`, what reading pages raises.
    """
    async with _alone(space) as transaction:
        filling = _Filling(space)
        await filling.take(workers, manifest, pages)
        await filling.end(transaction)


async def restore_until(
    space: Tablespace, client: LedgerClient, workers: Workers, source: str, until: Position
) -> Position:
    """Fill an empty tablespace with another one as it was after the transaction at a position.

    It begins with the newest checkpoint up to there, or with the first entry of the log. Returns
    the position of the last transaction that is in it. Raises as `fill`, and `StorageFailed` where
    the log between the checkpoint and the position is not kept any more.
    """
    log = ReplicatedLog(client, log_of(source))
    pin = f"restore {client.rng.getrandbits(64):016x}"
    checkpoints = CheckpointList(client.store, source, client.time)
    async with _alone(space) as transaction:
        filling = _Filling(space)
        manifest = await _pinned_before(client, checkpoints, until, pin)
        try:
            begin = START if manifest is None else manifest.position
            last = await _end_from(log, source, until)
            await log.pin(pin, begin, _PIN_MS)
            try:
                if manifest is not None:
                    await filling.take(workers, manifest, pages_in(client, manifest))
                reached = await filling.follow(log, begin, last, until)
            finally:
                await log.unpin(pin)
        except PositionTruncated as error:
            raise StorageFailed(
                f"the log of {source} is not kept from {tuple(begin)} on",
                hint="restore to a position after its newest checkpoint, or from a backup",
            ) from error
        finally:
            await checkpoints.unpin(pin)
        await filling.end(transaction)
    return reached


@asynccontextmanager
async def _alone(space: Tablespace) -> AsyncIterator[Transaction]:
    """Nobody else defines anything, and no store is erased, as long as the block lasts."""
    with translating(), space.filling():
        transaction = space.begin()
        try:
            await transaction.lock_name(SCHEMA)
            # In a statement it is not idle, however long that takes.
            with transaction.statement():
                yield transaction
        finally:
            transaction.rollback()


async def pages_in(client: LedgerClient, manifest: Manifest) -> AsyncIterator[bytes]:
    """A checkpoint's pages, in the manifest's order, each with its deltas behind it."""
    for table in manifest.pages:
        for page in table.pages:
            for locator in page.locators:
                yield await read_blob(client, locator)


async def _pinned_before(
    client: LedgerClient, checkpoints: CheckpointList, until: Position, pin: str
) -> Manifest | None:
    """The newest checkpoint that is not after a position, kept from now on."""
    for record in reversed((await checkpoints.get()).kept):
        if record.position <= until:
            await checkpoints.pin(pin, record.number, _PIN_MS)
            return decode_manifest(await read_blob(client, record.locator))
    return None


async def _end_from(log: ReplicatedLog, source: str, until: Position) -> Position:
    """The end of a log, which may be told of a moment after what lies before it was answered."""
    for _ in range(_LOOKS_MAX):
        end = await log.end()
        if end >= until:
            return end
        await asyncio.sleep(_LOOK_S)
    raise ProgrammingError(f"the log of {source} ends at {tuple(end)}, before {tuple(until)}")


class _Filling:
    """One restoration, from the first mark to the last definition."""

    def __init__(self, space: Tablespace) -> None:
        """Raises `LeaderUnavailable`, and `ProgrammingError` if there is anything already."""
        self._space = space
        self._term = space.term
        if not self._term:
            raise LeaderUnavailable(f"this replica of tablespace {space.name} does not lead")
        catalog = space.catalog
        if catalog.tables or catalog.views:
            raise ProgrammingError(
                f"tablespace {space.name} is not empty", hint="restore into another"
            )
        if space.stale_read(stores_to_erase)[0]:
            raise ProgrammingError(
                f"tablespace {space.name} is not empty yet: old rows are being erased",
                hint="try again in a moment",
            )
        self._counters: Counters = catalog.counters
        self._definitions: dict[bytes, bytes] = {}
        self._marked: set[int] = set()

    async def take(self, workers: Workers, manifest: Manifest, pages: AsyncIterator[bytes]) -> None:
        """Write the rows of a checkpoint and keep its definitions for the end."""
        catalog = catalog_of(manifest)
        self._define([*catalog.definitions(), *manifest.plain])
        for table_pages in manifest.pages:
            table = catalog.tables[table_pages.table_id]
            plan = catalog.plan(table)
            for page in table_pages.pages:
                blobs = [await anext(pages) for _ in page.locators]
                for write in await workers.run(partial(_writes, table, plan, blobs)):
                    await self._write(write)

    async def follow(
        self, log: ReplicatedLog, after: Position, last: Position, until: Position
    ) -> Position:
        """Write what transactions up to `until` changed; returns the position of the last one.

        `last` is an entry of the log that is not before it.
        """
        reached = after
        if after >= last:
            return reached
        async with aclosing(read_commands(log, after, last)) as commands:
            async for position, command in commands:
                if position > until:
                    break
                reached = position
                # What a drop left to erase is marked at the end; nobody sees it before.
                if type(command) is Write:
                    self._define(command.plain)
                    plain = [change for change in command.plain if change[0] >= DATA]
                    await self._write(Write(command.rows, plain))
        return reached

    async def end(self, transaction: Transaction) -> None:
        """Define the tables: now they are there."""
        assert self._space.catalog.version == self._counters.version, "somebody else has defined"
        command = encode_command(Write((), self._last_changes()))
        await self._space.propose(command, self._term, transaction)

    def _last_changes(self) -> list[Change]:
        defined = load(_Defined(self._definitions))
        self._count(max(defined.counters.next_id, self._counters.next_id), defined.version)
        live = {table.store for table in defined.tables.values()}
        return [
            *{**self._definitions, COUNTERS: msgspec.msgpack.encode(self._counters)}.items(),
            *((erasing(store)[0], None) for store in sorted(self._marked & live)),
        ]

    def _define(self, plain: Iterable[Change]) -> None:
        for key, value in plain:
            if key.startswith((*_DEFINING, ERASE)):
                if value is None:
                    self._definitions.pop(key, None)
                else:
                    self._definitions[key] = value

    async def _write(self, write: Write) -> None:
        """Write rows and entries, in a command that marks their stores before anything else may."""
        if not write.rows and not write.plain:
            return
        stores = {store_of(key)[0] for key, _ in (*write.rows, *write.plain)} - self._marked
        if stores:
            self._marked |= stores
            self._count(max(self._counters.next_id, max(stores) + 1))
            marks: list[Change] = [erasing(store) for store in sorted(stores)]
            counters = (COUNTERS, msgspec.msgpack.encode(self._counters))
            write = Write(write.rows, [*write.plain, *marks, counters])
        await self._space.propose(encode_command(write), self._term)

    def _count(self, next_id: int, version: int = 0) -> None:
        version = max(version, self._counters.version) + 1
        self._counters = Counters(next_id=next_id, version=version)


class _Defined:
    """Definitions as rows that a catalog is read from."""

    def __init__(self, definitions: dict[bytes, bytes]) -> None:
        self._definitions = definitions

    def get(self, key: bytes) -> bytes | None:
        """A definition, or None."""
        return self._definitions.get(key)

    def scan(
        self, first: bytes, end: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """Definitions in order."""
        found = sorted(
            (key, value)
            for key, value in self._definitions.items()
            if key >= first and (end is None or key < end)
        )
        return found[:limit]


def _writes(table: Table, plan: Plan, blobs: Sequence[bytes]) -> list[Write]:
    """A page's rows, and the entries of their indexes, in commands of a useful size."""
    writes: list[Write] = []
    rows: list[Change] = []
    plain: list[Change] = []
    size_bytes = 0
    for primary, row in unpacked(table, decode_page(table, *blobs)):
        key = plan.prefix + primary
        encoded = encode_row(row)
        rows.append((key, encoded))
        plain += [(entry, primary) for entry in plan.entries(row, key)]
        size_bytes += len(key) + len(encoded)
        if size_bytes >= _WRITE_BYTES:
            writes.append(Write(rows, plain))
            rows, plain, size_bytes = [], [], 0
    if rows:
        writes.append(Write(rows, plain))
    return writes

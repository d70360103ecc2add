"""Change capture: a tablespace's committed transactions, one after the other.

    async for transaction in changes(client, "default", after=position):
        for change in transaction.changes:
            print(change.table.name, change.kind, change.row)

Invariants:
- Every transaction comes once for a position, in the order in which replicas applied them; whoever
  remembers the position of the last one it has dealt with goes on after it.
- What is kept for a consumer moves on only to positions that it was told of and has gone past.
- A row is told with the definition that its table had in that very transaction.
- Which row a change is of is always known, by the columns of its key; also where it is gone.
- Tables with `full_changes` tell how a row was before; of others it is not known.
"""

import enum
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, NamedTuple

from engine.errors import NotFound
from engine.ledger.client import LedgerClient
from engine.log import START, Position, ReplicatedLog
from herd.capture.key_values import key_values
from herd.catalog import decode_table
from herd.commands import Change as KeyChange
from herd.commands import Write
from herd.consumers import Consumer
from herd.errors import ChangesGone, StorageFailed
from herd.keys import DATA, TABLE, number_of, store_of
from herd.reading_log import log_of, read_batches
from herd.rows import row_decoder, row_reader
from herd.schema import Column, Table
from herd.transaction import FRESH
from herd.translating import translating
from herd.types import Stored, returning

KEEP_MS: Final = 7 * 24 * 3_600_000


class ChangeKind(enum.Enum):
    """What happened to a row. PUT: set, whether or not it was there before."""

    PUT = "put"
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    DEFINE = "define"
    """A table was made, or its definition changed: `row` is None."""
    EMPTY = "empty"
    """All rows that the table had are gone; it is told before what the transaction puts there."""
    DROP = "drop"


class Change(NamedTuple):
    """One row's change. Rows are dicts of Python values by column name, the key is stored bytes."""

    table: Table
    kind: ChangeKind
    key: bytes
    row: dict[str, Any] | None
    before: dict[str, Any] | None = None

    @property
    def key_row(self) -> dict[str, Any] | None:
        """The columns of the primary key: which row it is, also of one that is gone.

        None: it is a change of the whole table. Raises `StorageFailed` for bytes that are no key.
        """
        if not self.key:
            return None
        columns = [self.table.by_number[number] for number in self.table.primary]
        values = zip(columns, key_values(self.table)(self.key), strict=True)
        return {column.name: _returned(column, value) for column, value in values}


class CommittedTransaction(NamedTuple):
    """What one transaction changed, all of it, at its position in the log.

    Without changes: nothing else of interest was committed up to there.
    """

    position: Position
    changes: tuple[Change, ...]


async def changes(
    client: LedgerClient,
    tablespace: str,
    after: Position = START,
    *,
    last: Position | None = None,
    tables: Sequence[str] = (),
    consumer: str = "",
    keep_ms: int = KEEP_MS,
) -> AsyncGenerator[CommittedTransaction, None]:
    """The transactions after a position: up to `last`, or as they come, for ever.

    `tables` names those that are of interest; none: all. With a name as `consumer`, the log and the
    checkpoint that it needs to go on are kept as long as it waits for more, and for `keep_ms` after
    it last asked; without, they go when the tablespace itself does not need them. While there are
    no changes of interest, it occasionally yields a position without changes, from which a caller
    can continue as well. Raises, while iterating, `ChangesGone` when the log no longer reaches back
    that far: start again from the tables as they are now. Raises `StorageFailed` when the position
    is before the rows of a table that was restored or written in bulk: start with a checkpoint and
    continue after it.
    """
    with translating(), _explaining(tablespace, after):
        following_as = Consumer(client, tablespace, consumer, keep_ms)
        begin, known = await following_as.begin(after)
        following = Following(known, {name.lower() for name in tables})
        told = reached = after
        async with (
            aclosing(read_batches(ReplicatedLog(client, log_of(tablespace)), begin, last)) as read,
            aclosing(following_as.waiting(read)) as batches,
        ):
            async for batch in batches:
                for position, command in batch:
                    found = following.take(command) if type(command) is Write else []
                    reached = max(position, reached)
                    if found and position > after:
                        yield CommittedTransaction(position, tuple(found))
                        told = position
                        await following_as.dealt_with(told)
                if following_as.is_due and reached > told:
                    yield CommittedTransaction(reached, ())
                    told = reached
                await following_as.dealt_with(told)


@contextmanager
def _explaining(tablespace: str, after: Position) -> Iterator[None]:
    """Say what to do if part of the log, or a checkpoint, no longer exists."""
    try:
        yield
    except NotFound as error:
        raise ChangesGone(
            f"the changes of {tablespace} after {tuple(after)} are no longer kept: {error}",
            hint="read the tables as they are now, then follow the changes from there",
        ) from error


class Following:
    """The definitions as they change, and each write told by them."""

    def __init__(self, known: Sequence[Table], wanted: set[str]) -> None:
        self._tables = {table.id: table for table in known}
        self._wanted = wanted
        self._unowned: set[int] = set()
        """Stores with rows of which no definition has been seen."""

    def take(self, write: Write) -> list[Change]:
        """What a transaction changed. Raises `StorageFailed` for a table that was restored."""
        gone = {table.store for table in self._tables.values()}
        told = self._define(write.plain)
        stores = {table.store: table for table in self._tables.values()}
        # What a transaction wrote into a table that it emptied or dropped then was never there.
        gone -= stores.keys()
        before = dict(write.before)
        for key, row in write.rows:
            assert key.startswith(DATA)
            store = store_of(key)[0]
            table = stores.get(store)
            if store in gone:
                continue
            if table is None:
                self._unowned.add(store)
            elif self._is_wanted(table):
                told.append(_told(table, key, row, before))
        return told

    def _define(self, plain: Sequence[KeyChange]) -> list[Change]:
        told = []
        for key, value in plain:
            if not key.startswith(TABLE):
                continue
            if value is None:
                table = self._tables.pop(number_of(key), None)
                kind = ChangeKind.DROP
            else:
                table = decode_table(value)
                earlier = self._tables.get(table.id)
                self._tables[table.id] = table
                kind = ChangeKind.DEFINE
                if earlier is not None and earlier.store != table.store:
                    kind = ChangeKind.EMPTY
                if table.store in self._unowned and self._is_wanted(table):
                    raise StorageFailed(
                        f"{table.name} was restored, or written in bulk: its rows came first",
                        hint="take a checkpoint, read the rows from it, and go on after it",
                    )
            if table is not None and self._is_wanted(table):
                told.append(Change(table, kind, b"", None))
        return told

    def _is_wanted(self, table: Table) -> bool:
        return not self._wanted or table.name.lower() in self._wanted


def _told(table: Table, key: bytes, row: bytes | None, before: dict[bytes, bytes | None]) -> Change:
    after = None if row is None else _values(table, row)
    if key not in before:
        kind = ChangeKind.DELETE if after is None else ChangeKind.PUT
        return Change(table, kind, key, after)
    old = before[key]
    earlier = None if old is None else _values(table, old)
    if after is None:
        kind = ChangeKind.DELETE
    else:
        kind = ChangeKind.INSERT if earlier is None else ChangeKind.UPDATE
    return Change(table, kind, key, after, earlier)


def _returned(column: Column, value: Stored) -> Any:
    convert = returning(column.type)
    return value if convert is None else convert(value)


def _values(table: Table, row: bytes) -> dict[str, Any]:
    values = row_reader(table.columns)(row_decoder(table)(FRESH + row))
    return {column.name: value for column, value in zip(table.columns, values, strict=True)}

"""Tables as keys and values: rows as dictionaries, without SQL and without what SQL needs.

    cows = await open_table(space, "cows")
    await cows.put({"id": 1, "name": "Alma"})
    await cows.get(1)                             # {"id": 1, "name": "Alma"}
    await cows.update(1, {"name": "Berta"})
    async for cow in cows.scan(first=1): ...

`Table` is the same for threads. A key is a value, or a tuple of them for a key of several columns.

Invariants:
- A call is a transaction of its own, unless it is given one; it is answered when it is durable.
- `Table.get` looks in the caller's own thread: it sees everything answered before it began.
- Every constraint of the table holds for what is written here, too.
- A key is made by the definition that is kept while the row is written.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import structs

from herd.autocommit import ChangeRow, RowWriter
from herd.binding import BoundTable, Key, RowDict
from herd.changing import Changer
from herd.errors import NameTaken, UniqueViolation
from herd.hopping import Hopper
from herd.locks import SCHEMA
from herd.permits import OF_BUCKETS, holds_buckets
from herd.rows import Row
from herd.schema import Column
from herd.schema import Table as Definition
from herd.sequences import sequences_of
from herd.tablespace import Tablespace
from herd.transaction import Transaction
from herd.types import ColumnType

T = TypeVar("T")

Changes = Mapping[str, Any] | Callable[[RowDict], Mapping[str, Any]]
"""New values by column, or what makes them of the row as it is; it must not wait for anything."""

Prepared = tuple[bytes, ChangeRow]
Prepare = Callable[[BoundTable], Prepared]
"""What a table, as it is defined, makes of a call: the whole key, and the change of its row."""

_PAGE_ROWS: Final = 1_000
_TURN_ROWS: Final = 250
"""So many rows of a scan are read without letting others run."""
_BATCH_ROWS: Final = 1_000
"""So many rows of `put_many` are changed without letting others run."""


class AsyncTable:
    """One table of a tablespace. Made by `open_table`; on the event loop."""

    def __init__(self, space: Tablespace, name: str) -> None:
        """Raises `NoSuchTable`."""
        self.space = space
        self.name = name
        self._bound = BoundTable(space, name)
        self._writer = RowWriter(space, self._bound.table, self._bound.verify)

    @property
    def bound(self) -> BoundTable:
        """The table as it is defined now. Raises `NoSuchTable`."""
        if self._bound.catalog is not self.space.known_catalog:
            self._bound = BoundTable(self.space, self.name)
            self._writer = RowWriter(self.space, self._bound.table, self._bound.verify)
        return self._bound

    # Reading

    async def get(self, key: Key, *, transaction: Transaction | None = None) -> RowDict | None:
        """The row with a primary key, or None."""
        if transaction is None:
            await self._readable()
            return self.bound.get(key)
        bound = BoundTable(self.space, self.name, transaction.catalog)
        value = transaction.get(bound.key(key))
        return None if value is None else bound.as_dict(value)

    async def get_row(self, key: Key) -> tuple[Any, ...] | None:
        """The row with a primary key as a tuple, in the order of the columns, or None."""
        await self._readable()
        return self.bound.get_row(key)

    async def lock_many(
        self, keys: Iterable[Key], *, transaction: Transaction
    ) -> list[RowDict | None]:
        """The newest rows with these keys, locked to the end of a transaction; None: no row.

        A key that has no row is locked, too. Raises `LockTimeout`, `Deadlock`.
        """
        bound, rows = await self.locked(transaction), list[RowDict | None]()
        for key in map(bound.key, keys):
            await transaction.lock_row(bound.table, key)
            value = transaction.get_newest(key)
            transaction.check_unchanged(bound.table, value, key)
            rows.append(None if value is None else bound.as_dict(value))
        return rows

    async def get_many(self, keys: Iterable[Key]) -> list[RowDict | None]:
        """The rows with these keys, None for those that are not there."""
        await self._readable()
        get = self.bound.get
        return [get(key) for key in keys]

    async def scan(
        self,
        first: Key | None = None,
        last: Key | None = None,
        prefix: Sequence[Any] | str | bytes | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[RowDict]:
        """Rows in the order of their keys: from `first` to `last`, both included.

        `prefix` is what keys begin with: the first columns' values, or for a key of one column
        the beginning of its text or bytes. Pages of rows are each of one moment.
        """
        bound = self.bound
        begin, end = bound.range(first, last, prefix)
        left = limit
        while left is None or left > 0:
            await self._readable()
            count = _TURN_ROWS if left is None else min(_TURN_ROWS, left)
            page = self.space.rows_scan(begin, end, count)
            for _, value in page:
                yield bound.as_dict(value)
            if len(page) < count:
                return
            begin = page[-1][0] + b"\x00"
            left = None if left is None else left - len(page)
            # Nothing above has to wait, and others have work.
            await asyncio.sleep(0)

    # Writing

    async def put(self, row: Mapping[str, Any], *, transaction: Transaction | None = None) -> None:
        """Store a row, in place of the one with its key, if there is one.

        Columns that are not named take their default. Raises `IntegrityError`, `DataError`,
        `NoSuchColumn`, `LockTimeout`, `LeaderUnavailable`, `CommitUnknown`.
        """
        await self.start_put(row, transaction, replace=True)

    async def insert(
        self, row: Mapping[str, Any], *, transaction: Transaction | None = None
    ) -> None:
        """Store a row whose key nobody has. Raises `UniqueViolation`, and what `put` raises."""
        await self.start_put(row, transaction, replace=False)

    async def update(
        self, key: Key, changes: Changes, *, transaction: Transaction | None = None
    ) -> bool:
        """Change some columns of a row; False if there is no such row.

        `changes` may be a function of the row: nobody else changes it in between.
        """
        return await self.start_update(key, changes, transaction)

    async def delete(self, key: Key, *, transaction: Transaction | None = None) -> bool:
        """Remove a row; False if there is no such row. Raises `ForeignKeyViolation`."""
        return await self.start_delete(key, transaction)

    async def put_many(
        self, rows: Iterable[Mapping[str, Any]], *, transaction: Transaction | None = None
    ) -> int:
        """Store rows, all or none of them; returns how many. Raises what `put` raises."""
        count = 0
        self._check_room()

        async def work(within: Transaction) -> None:
            nonlocal count
            bound = await self.locked(within)
            changer = Changer(within, bound.table, bound.verify)
            for given in rows:
                new = self._numbered(bound, bound.row(given), within)
                await _change(within, changer, bound.key_of(new), _always(new))
                count += 1
                if count % _BATCH_ROWS == 0:
                    await asyncio.sleep(0)

        await self._within(transaction, work)
        return count

    # The same for who waits in another thread: mostly a future, which needs no task

    def start_put(
        self,
        given: Mapping[str, Any],
        transaction: Transaction | None = None,
        *,
        replace: bool = True,
    ) -> Awaitable[None]:
        """Begin `put`, or with `replace=False` `insert`, which may also raise at once."""
        self._check_room()
        if self.bound.table.auto_column is not None:
            return self._put_numbered(given, transaction, replace=replace)

        def prepare(bound: BoundTable) -> Prepared:
            new = bound.row(given)
            return bound.key_of(new), _putting(bound, new, replace=replace)

        return self._write(prepare, transaction, _nothing)

    async def _put_numbered(
        self, given: Mapping[str, Any], transaction: Transaction | None, *, replace: bool
    ) -> None:
        async def work(within: Transaction) -> None:
            bound = await self.locked(within)
            new = self._numbered(bound, bound.row(given), within)
            changer = Changer(within, bound.table, bound.verify)
            change = _putting(bound, new, replace=replace)
            await _change(within, changer, bound.key_of(new), change)

        await self._within(transaction, work)

    def start_update(
        self, key: Key, changes: Changes, transaction: Transaction | None = None
    ) -> Awaitable[bool]:
        """Begin `update`, which may also raise at once."""
        self._check_room()
        found = False

        def prepare(bound: BoundTable) -> Prepared:
            assigned = bound.assigning(changes) if isinstance(changes, Mapping) else None

            def change(before: Row | None) -> Row | None:
                nonlocal found
                found = before is not None
                if before is None:
                    return None
                if assigned is not None:
                    return assigned(before)
                assert callable(changes)
                return bound.assigning(changes(bound.row_dict(before)))(before)

            return bound.key(key), change

        return self._write(prepare, transaction, lambda: found)

    def start_delete(self, key: Key, transaction: Transaction | None = None) -> Awaitable[bool]:
        """Begin `delete`, which may also raise at once."""
        found = False

        def change(before: Row | None) -> None:
            nonlocal found
            found = before is not None

        return self._write(lambda bound: (bound.key(key), change), transaction, lambda: found)

    def _numbered(self, bound: BoundTable, row: Row, within: Transaction) -> Row:
        """Give the AUTO_INCREMENT column its value, if it has none."""
        column = bound.table.auto_column
        if column is not None:
            value, sequences = row[column.number], sequences_of(self.space)
            if value is None:
                row[column.number] = sequences.take(within, bound.table, column)
            else:
                assert isinstance(value, int)
                sequences.pass_over(within, bound.table, column, value)
        return row

    def _write(
        self,
        prepare: Prepare,
        transaction: Transaction | None,
        answer: Callable[[], T],
    ) -> Awaitable[T]:
        key, change = prepare(self.bound)
        if transaction is None:
            answered = self._writer.write(key, change, answer)
            if answered is not None:
                return answered
        return self._write_long(prepare, transaction, answer)

    async def _write_long(
        self,
        prepare: Prepare,
        transaction: Transaction | None,
        answer: Callable[[], T],
    ) -> T:
        async def work(within: Transaction) -> None:
            bound = await self.locked(within)
            # By the definition that is locked: the wait may have been for another one.
            key, change = prepare(bound)
            await _change(within, Changer(within, bound.table, bound.verify), key, change)

        await self._within(transaction, work)
        return answer()

    def _check_room(self) -> None:
        """Raise `DiskFull` if a disk has no space for new rows.

        Rows of buckets are not checked here: deletions need them, and putting objects checks
        the space by itself.
        """
        if self.name.lower() not in OF_BUCKETS or not holds_buckets(self.bound.catalog):
            self.space.check_room()

    async def locked(self, within: Transaction) -> BoundTable:
        """The table as it stays until the transaction ends. Raises `NoSuchTable`, `LockTimeout`."""
        while True:
            table = within.catalog.table(self.name)
            await within.lock_table(table)
            # Who had it before may have changed it, or made another one of its name.
            catalog = within.catalog
            known = catalog is self.space.known_catalog
            bound = self.bound if known else BoundTable(self.space, self.name, catalog)
            if bound.table.id == table.id:
                return bound

    async def _within(
        self, transaction: Transaction | None, work: Callable[[Transaction], Awaitable[None]]
    ) -> None:
        if transaction is not None:
            with transaction.statement():
                await work(transaction)
            return
        own = self.space.begin()
        try:
            with own.statement():
                await work(own)
            sequences_of(self.space).write(own)
            await own.commit()
        finally:
            own.rollback()

    async def _readable(self) -> None:
        """Wait until this leader may answer reads."""
        await self.space.until_readable()


def _nothing() -> None:
    """What a write answers that has nothing to tell."""


def _putting(bound: BoundTable, new: Row, *, replace: bool) -> ChangeRow:
    def change(before: Row | None) -> Row:
        if before is not None and not replace:
            raise UniqueViolation(f"{bound.table.name} has a row with this primary key already")
        return new

    return change


def _always(row: Row) -> Callable[[Row | None], Row]:
    return lambda _: row


async def _change(
    transaction: Transaction,
    changer: Changer,
    key: bytes,
    change: ChangeRow,
) -> None:
    """The long way of one row."""
    await transaction.lock_row(changer.table, key)
    value = transaction.get_newest(key)
    transaction.check_unchanged(changer.table, value, key)
    before = None if value is None else changer.plan.decode(value)
    after = change(before)
    if before is None:
        if after is not None:
            await changer.insert(after)
    elif after is None:
        await changer.delete(key, before)
    elif after is not before:
        await changer.update(key, before, after)


async def open_table(space: Tablespace, name: str) -> AsyncTable:
    """A table of a tablespace by name. Raises `NoSuchTable`, `LeaderUnavailable`."""
    await space.until_readable()
    return AsyncTable(space, name)


async def create_table(
    space: Tablespace, name: str, columns: Mapping[str, ColumnType], primary: Sequence[str]
) -> AsyncTable:
    """Make a table without SQL: columns by name, of which `primary` are the key.

    Raises `NameTaken`, `NoSuchColumn`, `TypeMismatch` for a key of a type without an order.
    """
    space.check_room()
    transaction = space.begin()
    try:
        await transaction.lock_name(SCHEMA)
        if transaction.catalog.find(name) is not None:
            raise NameTaken(f"there is {name} already")
        catalog, (number,) = transaction.catalog.new_ids(1)
        made = tuple(
            Column(place, column, kind, nullable=column not in primary)
            for place, (column, kind) in enumerate(columns.items())
        )
        table = Definition(number, name, number, made, (), next_column=len(made))
        key = tuple(table.column(column).number for column in primary)
        table = structs.replace(table, primary=key)
        # Made here it raises before anything is changed.
        assert table.encode_primary is not None
        transaction.set_catalog(*catalog.with_table(table))
        await transaction.commit()
    finally:
        transaction.rollback()
    return AsyncTable(space, name)


class Table:
    """The same table for threads. Any number of them may use one."""

    def __init__(self, table: AsyncTable, hopper: Hopper) -> None:
        self._table = table
        self._space = table.space
        self._call = hopper.call
        self._insert = partial(table.start_put, replace=False)
        self._bound = table.bound

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table.name

    def get(self, key: Key) -> RowDict | None:
        """The row with a primary key, or None. In the caller's thread, at once."""
        bound = self._bound
        if bound.catalog is not self._space.known_catalog:
            bound = self._bind()
        return bound.get(key)

    def get_row(self, key: Key) -> tuple[Any, ...] | None:
        """The row with a primary key as a tuple, in the order of the columns, or None."""
        bound = self._bound
        if bound.catalog is not self._space.known_catalog:
            bound = self._bind()
        return bound.get_row(key)

    def get_many(self, keys: Iterable[Key]) -> list[RowDict | None]:
        """The rows with these keys, None for those that are not there."""
        return [self.get(key) for key in keys]

    def scan(
        self,
        first: Key | None = None,
        last: Key | None = None,
        prefix: Sequence[Any] | str | bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[RowDict]:
        """Rows in the order of their keys; see `AsyncTable.scan`. One hop a page."""
        begin, end = self._bind().range(first, last, prefix)
        left = limit
        while left is None or left > 0:
            count = _PAGE_ROWS if left is None else min(_PAGE_ROWS, left)
            bound, page = self._call(self._page, begin, end, count)
            for _, value in page:
                yield bound.as_dict(value)
            if len(page) < count:
                return
            begin = page[-1][0] + b"\x00"
            left = None if left is None else left - len(page)

    def put(self, row: Mapping[str, Any]) -> None:
        """Store a row; see `AsyncTable.put`."""
        self._call(self._table.start_put, row)

    def insert(self, row: Mapping[str, Any]) -> None:
        """Store a row whose key nobody has; see `AsyncTable.insert`."""
        self._call(self._insert, row)

    def update(self, key: Key, changes: Changes) -> bool:
        """Change some columns of a row; see `AsyncTable.update`. A function runs on the loop."""
        return self._call(self._table.start_update, key, changes)

    def delete(self, key: Key) -> bool:
        """Remove a row; False if there is no such row."""
        return self._call(self._table.start_delete, key)

    def put_many(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Store rows, all or none of them; returns how many."""
        return self._call(self._table.put_many, list(rows))

    def _bind(self) -> BoundTable:
        async def bind() -> BoundTable:
            await self._space.until_readable()
            return self._table.bound

        self._bound = self._call(bind)
        return self._bound

    async def _page(
        self, begin: bytes, end: bytes, count: int
    ) -> tuple[BoundTable, list[tuple[bytes, bytes]]]:
        await self._space.until_readable()
        return self._table.bound, self._space.rows_scan(begin, end, count)

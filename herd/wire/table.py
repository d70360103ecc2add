"""Tables that run elsewhere, with the interface of `herd.table`.

Invariants:
- A call is a transaction of its own, unless it is given one of a remote session.
- A change whose answer got lost raises `CommitUnknown`; it is never done twice. What only looks is
  asked again.
"""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final

from herd.binding import Key, RowDict
from herd.errors import InterfaceError, OperationalError
from herd.hopping import Hopper
from herd.table import AsyncTable, Changes, Table
from herd.wire import messages
from herd.wire.calling import Calling, expect
from herd.wire.messages import Answer, Told
from herd.wire.session import RemoteTransaction
from herd.wire.values import packed, packed_map

_PAGE_BYTES: Final = 1 << 20
_FIRST_COUNT: Final = 100
_COUNT_MAX: Final = 1_000
_ATTEMPTS_MAX: Final = 1_000


class RemoteTable(AsyncTable):
    """A table of a tablespace elsewhere. Made by `RemoteHerd.table`; on the event loop."""

    def __init__(
        self, calling: Calling, tablespace: str, name: str, described: messages.Described
    ) -> None:
        # What the table of this process would hold of a tablespace is not here.
        self.name = name
        self.tablespace = tablespace
        self.described = described
        """Its columns and its key as they were when it was asked for."""
        self._calling = calling

    # Reading

    async def get(self, key: Key, *, transaction: Any = None) -> RowDict | None:
        """The row with a primary key, or None."""
        rows = await self._get([key], transaction)
        row: RowDict | None = rows[0]
        return row

    async def get_also(
        self, key: Key, other: "RemoteTable", other_key: Key
    ) -> tuple[RowDict | None, RowDict | None]:
        """The row with a primary key, and one of another table as it was then or later."""
        also = other.name, packed(other_key)
        call = messages.Get(self.tablespace, self.name, [packed(key)], also=also)
        answer = await self._calling.ask(self.tablespace, call, again=True)
        rows: list[Any] = expect(answer, Told).value
        # A server of an older version has read the one alone.
        return rows[0], rows[1] if len(rows) > 1 else await other.get(other_key)

    async def get_row(self, key: Key) -> tuple[Any, ...] | None:
        """The row with a primary key as a tuple, in the order of the columns, or None."""
        row = (await self._get([key], None, plain=True))[0]
        return None if row is None else tuple(row)

    async def lock_many(self, keys: Iterable[Key], *, transaction: Any) -> list[RowDict | None]:
        """The newest rows with these keys, locked; see `AsyncTable.lock_many`."""
        wanted, rows = list(keys), []
        for start in range(0, len(wanted), _COUNT_MAX):
            some = wanted[start : start + _COUNT_MAX]
            rows += await self._get(some, transaction, locks=True)
        return rows

    async def get_many(self, keys: Iterable[Key]) -> list[RowDict | None]:
        """The rows with these keys, None for those that are not there."""
        wanted, rows = list(keys), []
        for start in range(0, len(wanted), _COUNT_MAX):
            rows += await self._get(wanted[start : start + _COUNT_MAX], None)
        return rows

    async def scan(
        self,
        first: Key | None = None,
        last: Key | None = None,
        prefix: Sequence[Any] | str | bytes | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[RowDict]:
        """Rows in the order of their keys; see `AsyncTable.scan`."""
        left, after, count = limit, b"", _FIRST_COUNT
        while left is None or left > 0:
            wanted = count if left is None else min(count, left)
            page = await self.page(first, last, prefix, after, wanted)
            for row in page.rows:
                yield row
            if not page.after:
                return
            after, count = page.after, _next_count(page.rows, count)
            left = None if left is None else left - len(page.rows)

    async def page(
        self,
        first: Key | None,
        last: Key | None,
        prefix: Sequence[Any] | str | bytes | None,
        after: bytes,
        count: int,
    ) -> messages.Page:
        """At most `count` rows of a scan, from where the page before ended."""
        call = messages.Scan(
            self.tablespace,
            self.name,
            _optional(first),
            _optional(last),
            _optional(prefix),
            after,
            count,
        )
        return expect(await self._calling.ask(self.tablespace, call, again=True), messages.Page)

    # Writing

    async def put(self, row: Mapping[str, Any], *, transaction: Any = None) -> None:
        """Store a row; see `AsyncTable.put`."""
        await self._put([packed_map(row)], True, transaction)

    async def insert(self, row: Mapping[str, Any], *, transaction: Any = None) -> None:
        """Store a row whose key nobody has; see `AsyncTable.insert`."""
        await self._put([packed_map(row)], False, transaction)

    async def put_many(self, rows: Iterable[Mapping[str, Any]], *, transaction: Any = None) -> int:
        """Store rows, all or none of them; returns how many."""
        given = [packed_map(row) for row in rows]
        return await self._put(given, True, transaction) if given else 0

    async def update(self, key: Key, changes: Changes, *, transaction: Any = None) -> bool:
        """Change some columns of a row; False if there is no such row.

        A function of the row runs here, again if somebody else changed the row meanwhile.
        """
        if isinstance(changes, Mapping):
            return await self._update(key, changes, None, transaction) is True
        row = await self.get(key, transaction=transaction)
        for _ in range(_ATTEMPTS_MAX):
            if row is None:
                return False
            found = await self._update(key, changes(dict(row)), row, transaction)
            if isinstance(found, bool):
                return found
            row = found
        raise OperationalError("others change the row all the time", hint="try again")

    async def delete(self, key: Key, *, transaction: Any = None) -> bool:
        """Remove a row; False if there is no such row."""
        told = await self._change(
            lambda session: messages.Delete(self.tablespace, self.name, packed(key), session),
            transaction,
        )
        return told.value is True

    def start_put(
        self, row: Mapping[str, Any], transaction: Any = None, *, replace: bool = True
    ) -> Awaitable[None]:
        """`put`, or `insert`: what is awaited for it."""
        return (self.put if replace else self.insert)(row, transaction=transaction)

    def start_update(self, key: Key, changes: Changes, transaction: Any = None) -> Awaitable[bool]:
        """`update`: what is awaited for it."""
        return self.update(key, changes, transaction=transaction)

    def start_delete(self, key: Key, transaction: Any = None) -> Awaitable[bool]:
        """`delete`: what is awaited for it."""
        return self.delete(key, transaction=transaction)

    # Inside

    async def _get(
        self,
        keys: Sequence[Key],
        transaction: Any,
        *,
        plain: bool = False,
        locks: bool = False,
    ) -> list[Any]:
        given = [packed(key) for key in keys]

        def make(session: int) -> messages.Get:
            return messages.Get(self.tablespace, self.name, given, plain, session, locks)

        if transaction is None:
            answer = await self._calling.ask(self.tablespace, make(0), again=True)
        else:
            answer = await _within(transaction, make)
        rows: list[Any] = expect(answer, Told).value
        return rows

    async def _put(self, rows: list[dict[str, Any]], replace: bool, transaction: Any) -> int:
        told = await self._change(
            lambda session: messages.Put(self.tablespace, self.name, rows, replace, session),
            transaction,
        )
        count: int = told.value
        return count

    async def _update(
        self, key: Key, changes: Mapping[str, Any], expected: RowDict | None, transaction: Any
    ) -> bool | RowDict:
        known = None if expected is None else packed_map(expected)
        told = await self._change(
            lambda session: messages.Update(
                self.tablespace, self.name, packed(key), packed_map(changes), known, session
            ),
            transaction,
        )
        found: bool | RowDict = told.value
        return found

    async def _change(self, make: Callable[[int], messages.Call], transaction: Any) -> Told:
        if transaction is None:
            answer = await self._calling.ask(self.tablespace, make(0), again=False)
        else:
            answer = await _within(transaction, make)
        return expect(answer, Told)


class RemoteThreadTable(Table):
    """The same table for threads. Any number of them may use one."""

    def __init__(self, table: RemoteTable, hopper: Hopper) -> None:
        self._table: RemoteTable = table
        self._call = hopper.call

    def get(self, key: Key) -> RowDict | None:
        """The row with a primary key, or None."""
        return self._call(self._table.get, key)

    def get_row(self, key: Key) -> tuple[Any, ...] | None:
        """The row with a primary key as a tuple, in the order of the columns, or None."""
        return self._call(self._table.get_row, key)

    def get_many(self, keys: Iterable[Key]) -> list[RowDict | None]:
        """The rows with these keys, None for those that are not there."""
        return self._call(self._table.get_many, list(keys))

    def scan(
        self,
        first: Key | None = None,
        last: Key | None = None,
        prefix: Sequence[Any] | str | bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[RowDict]:
        """Rows in the order of their keys; see `AsyncTable.scan`. One hop a page."""
        left, after, count = limit, b"", _FIRST_COUNT
        while left is None or left > 0:
            wanted = count if left is None else min(count, left)
            page = self._call(self._table.page, first, last, prefix, after, wanted)
            yield from page.rows
            if not page.after:
                return
            after, count = page.after, _next_count(page.rows, count)
            left = None if left is None else left - len(page.rows)

    def put(self, row: Mapping[str, Any]) -> None:
        """Store a row; see `AsyncTable.put`."""
        self._call(self._table.put, row)

    def insert(self, row: Mapping[str, Any]) -> None:
        """Store a row whose key nobody has; see `AsyncTable.insert`."""
        self._call(self._table.insert, row)

    def update(self, key: Key, changes: Changes) -> bool:
        """Change some columns of a row; see `RemoteTable.update`. A function runs on the loop."""
        return self._call(self._table.update, key, changes)

    def delete(self, key: Key) -> bool:
        """Remove a row; False if there is no such row."""
        return self._call(self._table.delete, key)

    def put_many(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Store rows, all or none of them; returns how many."""
        return self._call(self._table.put_many, list(rows))


def threaded(table: AsyncTable, hopper: Hopper) -> Table:
    """A table for threads, of one wherever it runs."""
    if isinstance(table, RemoteTable):
        return RemoteThreadTable(table, hopper)
    return Table(table, hopper)


async def _within(transaction: Any, make: Callable[[int], messages.Call]) -> Answer:
    if not isinstance(transaction, RemoteTransaction):
        raise InterfaceError("the transaction is one of another place", hint="use its own session")
    return await transaction.session.ask_within(transaction, make)


def _optional(given: Any) -> list[Any]:
    return [] if given is None else [packed(given)]


def _next_count(rows: Sequence[RowDict], count: int) -> int:
    """How many rows the next page has, for it to be of about a megabyte."""
    size_bytes = sum(
        len(value) if isinstance(value, str | bytes) else 8
        for row in rows
        for value in row.values()
    )
    fit = _PAGE_BYTES * len(rows) // max(size_bytes, 1)
    return max(1, min(2 * count, fit, _COUNT_MAX))

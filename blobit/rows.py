"""The rows of one tablespace, the same wherever it runs: in this process or elsewhere.

Invariants:
- A transaction locks the rows that it decides by before it reads them, absent ones, too.
- Here a row costs no SQL and no message; elsewhere a batch costs a handful of messages, whatever
  its size.
- What a transaction has not committed was changed by nobody.
- A folder's tablespaces that ran elsewhere may run here later, never the other way round: whoever
  changes rows then finds the tables anew.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from blobit import errors
from blobit.at_once import AtOnce, Batch, storing
from blobit.errors import BlobError, CommitOutcomeUnknown, MetadataUnavailable, NoSuchBucket
from blobit.tables import INDEXES, LATER, PRIMARY, TABLES, Row, RowKey, lives_here
from herd.changing import Change, Changer
from herd.errors import AccessDenied, CommitUnknown, DiskFull, Error, NoSuchTable, ProgrammingError
from herd.keys import successor
from herd.rows import Row as StoredRow
from herd.store import AsyncHerd
from herd.table import AsyncTable
from herd.transaction import Transaction
from herd.translating import translating
from herd.turns import ROWS_AT_ONCE
from herd.wire.herd import RemoteHerd
from herd.wire.session import RemoteSession
from herd.wire.table import RemoteTable

if TYPE_CHECKING:
    from herd.sql.session import Session
    from herd.wire.session import RemoteTransaction

AnyHerd = AsyncHerd | RemoteHerd
PAGE_ROWS: Final = 1_000
_SESSIONS_IDLE_MAX: Final = 8
_ATTEMPTS_MAX: Final = 50
_PAUSE_S: Final = 0.05
_ENTRIES_AT_ONCE: Final = 250
_OF_BUCKET: Final = "SELECT * FROM {} WHERE bucket_id = ? ORDER BY ledger_id"
_COUNTED: Final = """
    SELECT COUNT(*), CAST(COALESCE(SUM(length), 0) AS BIGINT) FROM objects WHERE bucket_id = ?
    UNION ALL
    SELECT CAST(COALESCE(-SUM(objects), 0) AS BIGINT),
        CAST(COALESCE(-SUM(size_bytes), 0) AS BIGINT)
    FROM counts WHERE bucket_id = ? AND number > 0"""
_ORDER: Final = {table: number for number, table in enumerate(TABLES)}


class RowsTransaction(ABC):
    """What is read and changed together. Made by `Rows.transaction`."""

    @abstractmethod
    async def lock(self, keys: Iterable[RowKey]) -> dict[RowKey, Row | None]:
        """Rows as they are now, kept so for all others until the end; None: there is no row."""

    @abstractmethod
    async def write(self, rows: Mapping[RowKey, Row | None]) -> None:
        """Store rows, in place of those with their keys; None removes one.

        Raises `herd.errors.ForeignKeyViolation`.
        """

    @abstractmethod
    async def commit(self) -> None:
        """Make it durable and visible. Raises `herd.errors.CommitUnknown`, `LeaderUnavailable`."""


class Rows:
    """The store's tables in one tablespace. On one event loop."""

    def __init__(self, herd: AnyHerd, tablespace: str) -> None:
        self.herd = herd
        self.tablespace = tablespace
        self._tables: dict[str, AsyncTable] = {}
        self._at_once: AtOnce | None = None
        self._opening = asyncio.Lock()
        self._idle: list[RemoteSession] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self, *, create: bool = False) -> None:
        """Find the tables; with `create` they, and the tablespace, are made if they are missing.

        Raises what is in `herd.errors`, `NoSuchTable` among it.
        """
        async with self._opening:
            if self._tables:
                return
            if create:
                await self.herd.make(self.tablespace)
            try:
                self._tables = await self._found()
            except NoSuchTable:
                older = await self._is_older()
                if not create and not older:
                    raise
                await self._make_missing(older)
            self._note_where()

    async def why(self, error: Error) -> BlobError:
        """What a user hears of an error; perhaps that the whole tablespace has gone."""
        try:
            gone = self.tablespace not in await self.herd.names()
        except Error:
            gone = False
        if not gone:
            return told(error)
        return NoSuchBucket(f"tablespace {self.tablespace} was dropped, and its buckets with it")

    async def get(self, table: str, key: Sequence[Any]) -> Row | None:
        """The row with a primary key, or None. Raises what is in `herd.errors`."""
        if table in LATER and table not in self._tables:
            return None
        return await self._tables[table].get(_plain(key))

    async def object_of(self, bucket_id: int, name: str) -> tuple[Row | None, bool]:
        """The row of an object, and whether its bucket lived here when it was read."""
        table, moving = self._tables["objects"], self._tables.get("moving_buckets")
        if moving is None:
            return await table.get((bucket_id, name)), True
        if isinstance(table, RemoteTable) and isinstance(moving, RemoteTable):
            row, place = await table.get_also((bucket_id, name), moving, bucket_id)
            return row, lives_here(place)
        if isinstance(table, RemoteTable) or isinstance(moving, RemoteTable):
            # Whoever ran them has ended meanwhile.
            row = await table.get((bucket_id, name))
            return row, lives_here(await moving.get(bucket_id))
        await table.space.until_readable()
        # Of one moment: nothing runs in between.
        row = table.bound.get((bucket_id, name))
        return row, lives_here(moving.bound.get(bucket_id))

    async def has(self, bucket_id: int) -> bool:
        """Whether a bucket lives here now, as far as it was ever moved."""
        moving = self._tables.get("moving_buckets")
        return moving is None or lives_here(await moving.get(bucket_id))

    async def page(
        self,
        table: str,
        *,
        first: Sequence[Any] | None = None,
        last: Sequence[Any] | None = None,
        prefix: Sequence[Any] | None = None,
        limit: int = PAGE_ROWS,
    ) -> list[Row]:
        """At most `limit` rows in the order of their keys, of one moment for each thousand.

        `first` and `last` may be the first columns of a key alone; of a `prefix` the last text is
        only how it begins.
        """
        rows = self.scan(table, first=first, last=last, prefix=prefix, limit=limit)
        return [row async for row in rows]

    def scan(
        self,
        table: str,
        *,
        first: Sequence[Any] | None = None,
        last: Sequence[Any] | None = None,
        prefix: Sequence[Any] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Row]:
        """The same one by one, without a limit if none is given."""
        low = None if first is None else tuple(first)
        high = None if last is None else tuple(last)
        return self._tables[table].scan(low, high, prefix, limit)

    async def listed(self, bucket_id: int, prefix: str, first: str, limit: int) -> list[Row]:
        """Rows of `objects` whose names begin so, from a name on, as cheaply as they come."""
        table = self._tables["objects"]
        begin = (bucket_id, max(first, prefix))
        if isinstance(table, RemoteTable):
            page = await table.page(begin, None, (bucket_id, prefix), b"", limit)
            return page.rows
        await table.space.until_readable()
        bound = table.bound
        low, high = bound.range(None, None, (bucket_id, prefix))
        if begin[1]:
            low = max(low, bound.key(begin))
        if low >= high:
            return []
        return [bound.as_dict(value) for _, value in table.space.rows_scan(low, high, limit)]

    async def ledgers(self, bucket_id: int) -> list[Row]:
        """The rows of `ledgers` of one bucket, by the index: however many others there are."""
        return await self._of_bucket("ledgers", bucket_id)

    async def dying(self, bucket_id: int) -> list[Row]:
        """The rows of `dying` of one bucket, in the same way."""
        return await self._of_bucket("dying", bucket_id)

    async def _of_bucket(self, name: str, bucket_id: int) -> list[Row]:
        table = self._tables[name]
        if isinstance(table, RemoteTable):
            return await self._of_bucket_elsewhere(name, bucket_id)
        bound, space = table.bound, table.space
        index = bound.plan.index_over((bound.table.column("bucket_id").number,))
        if index is None:
            rows = self.scan(name)
            return [row async for row in rows if row["bucket_id"] == bucket_id]
        found: list[Row] = []
        first, prefix = index.beginning([bucket_id]), bound.plan.prefix
        end = successor(first)
        while True:
            await space.until_readable()
            entries = space.rows_scan(first, end, _ENTRIES_AT_ONCE)
            with translating():
                # Of the very state that the entries are of, which the lease was good for.
                values = [space.get_applied(prefix + primary) for _, primary in entries]
            for value in values:
                assert value is not None, "an entry of an index names a row"
                found.append(bound.as_dict(value))
            if len(entries) < _ENTRIES_AT_ONCE:
                return found
            first = entries[-1][0] + b"\x00"
            # Nothing above has to wait, and others have work.
            await asyncio.sleep(0)

    async def counts(self, bucket_id: int) -> list[Row]:
        """Rows of `counts` of one bucket, of one moment."""
        return await self.page("counts", first=(bucket_id,), last=(bucket_id,))

    async def counted(self, bucket_id: int) -> tuple[int, int]:
        """Objects of a bucket and their bytes, without what its counts say of the same moment.

        However much is put and deleted meanwhile it is the same at every moment.
        """
        session = await self.herd.session(self.tablespace)
        try:
            result = await session.execute(_COUNTED, [bucket_id, bucket_id])
        finally:
            await self._end(session)
        objects, size_bytes = zip(*result.rows, strict=True)
        return sum(map(int, objects)), sum(map(int, size_bytes))

    async def counted_together(self) -> tuple[int, int]:
        """Objects and bytes of all buckets of the tablespace, by their counts."""
        objects = size_bytes = 0
        async for row in self.scan("counts"):
            objects, size_bytes = objects + row["objects"], size_bytes + row["size_bytes"]
        return objects, size_bytes

    async def _of_bucket_elsewhere(self, table: str, bucket_id: int) -> list[Row]:
        session = await self.herd.session(self.tablespace)
        try:
            result = await session.execute(_OF_BUCKET.format(table), [bucket_id])
        finally:
            await self._end(session)
        names = [column.name for column in result.columns]
        return [dict(zip(names, row, strict=True)) for row in result.rows]

    def at_once(self, keys: Collection[RowKey]) -> Batch | None:
        """Rows locked and looked at, for a change that needs no wait; None: take a transaction.

        Raises what is in `herd.errors`.
        """
        return None if self._at_once is None else self._at_once.begin(keys)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[RowsTransaction]:
        """A transaction as long as the block lasts; what was not committed is forgotten."""
        session = await self._session_elsewhere()
        if session is None:
            transaction = self._tables["homes"].space.begin()
            try:
                yield _Here(self._tables, transaction)
            finally:
                transaction.rollback()
            return
        clean = False
        try:
            yield await _Elsewhere.begin(self._tables, session)
            await session.rollback()
            clean = session.elsewhere
        finally:
            # Of one that was cut short nobody knows what its server still does.
            if clean and len(self._idle) < _SESSIONS_IDLE_MAX and not self._closed:
                self._idle.append(session)
            else:
                await self._end(session)

    async def close(self) -> None:
        """Let go of what is kept for the next transaction."""
        self._closed = True
        while self._idle:
            await self._end(self._idle.pop())
        if self._ending:
            await asyncio.wait(self._ending)

    async def _end(self, session: "Session | RemoteSession") -> None:
        """Close a session, also if whoever waits for that is cancelled: it may hold locks."""
        ending = asyncio.get_running_loop().create_task(session.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        ending.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(ending)

    async def _session_elsewhere(self) -> RemoteSession | None:
        """A session where the tablespace runs; None: that is here, and so are the tables by now."""
        if not isinstance(self._tables["homes"], RemoteTable):
            return None
        # Sessions are used again: to open one costs as much as what is done in it.
        while self._idle:
            idle = self._idle.pop()
            if idle.elsewhere:
                return idle
            await self._end(idle)
        session = await self.herd.session(self.tablespace)
        if isinstance(session, RemoteSession):
            return session
        await self._end(session)
        async with self._opening:
            if self._at_once is None:
                self._tables = await self._found(self._tables)
                self._note_where()
        return None

    def _note_where(self) -> None:
        if not isinstance(self._tables["homes"], RemoteTable):
            self._at_once = AtOnce(self._tables)

    async def _make_missing(self, older: bool) -> None:
        names: Iterable[str] = TABLES
        try:
            await self._make()
        except AccessDenied:
            if not older:
                raise
            # Who may only read needs nothing but what was always there.
            names = [name for name in TABLES if name not in LATER]
        self._tables = await self._found(names)

    async def _found(self, names: Iterable[str] = TABLES) -> dict[str, AsyncTable]:
        while True:
            tables = {name: await self.herd.table(name, self.tablespace) for name in names}
            if len({isinstance(table, RemoteTable) for table in tables.values()}) == 1:
                break
            # Whoever ran them has ended meanwhile, and they run here now.
        for name, table in tables.items():
            if _primary(table) != PRIMARY[name]:
                raise ProgrammingError(
                    f"tablespace {self.tablespace} has a table {name} that is somebody else's",
                    hint="give the bucket another tablespace",
                )
        return tables

    async def _is_older(self) -> bool:
        """Whether buckets live here, of a version that had fewer tables."""
        try:
            await self.herd.table("homes", self.tablespace)
        except NoSuchTable:
            return False
        return True

    async def _make(self) -> None:
        for attempt in range(_ATTEMPTS_MAX):
            session = await self.herd.session(self.tablespace)
            try:
                for table, statement in TABLES.items():
                    await session.execute(statement)
                    if table in INDEXES:
                        await session.execute(INDEXES[table])
                return
            except Error as error:
                # Others make them at the same time, or another node begins to lead.
                again = error.retryable or isinstance(error, CommitUnknown)
                if not again or attempt == _ATTEMPTS_MAX - 1:
                    raise
            finally:
                await session.close()
            await asyncio.sleep(_PAUSE_S)


class _Here(RowsTransaction):
    """A transaction of a tablespace that runs in this process."""

    def __init__(self, tables: dict[str, AsyncTable], transaction: Transaction) -> None:
        self._tables = tables
        self._transaction = transaction
        self._looked: dict[RowKey, tuple[bytes, StoredRow | None]] = {}
        """The whole keys of rows that are locked, and what they hold."""

    async def lock(self, keys: Iterable[RowKey]) -> dict[RowKey, Row | None]:
        transaction, looked = self._transaction, self._looked
        found: dict[RowKey, Row | None] = {}
        for table, some in _by_table(keys):
            bound = await self._tables[table].locked(transaction)
            plan, definition = bound.plan, bound.table
            for number, key in enumerate(some):
                whole = plan.prefix + plan.encode_primary(key)
                # The first look says whether this leader may answer at all.
                if number and transaction.try_free(definition, whole):
                    looked[table, key] = whole, None
                    found[table, key] = None
                    continue
                await transaction.lock_row(definition, whole)
                value = transaction.get_newest(whole)
                before = None if value is None else plan.decode(value)
                looked[table, key] = whole, before
                found[table, key] = None if before is None else bound.row_dict(before)
        return found

    async def write(self, rows: Mapping[RowKey, Row | None]) -> None:
        transaction = self._transaction
        with transaction.statement():
            for table, keys in _by_table(rows):
                bound = await self._tables[table].locked(transaction)
                changer = Changer(transaction, bound.table, bound.verify)
                stored = storing(table, bound)
                await self._write(table, changer, [(key, rows[table, key]) for key in keys], stored)

    async def _write(
        self,
        table: str,
        changer: Changer,
        rows: Sequence[tuple[tuple[Any, ...], Row | None]],
        stored: Callable[[Row], StoredRow],
    ) -> None:
        transaction, plan = self._transaction, changer.plan
        gone: list[Change] = []
        locked: list[tuple[bytes, StoredRow | None, StoredRow]] = []
        other: list[StoredRow] = []
        for number, (key, row) in enumerate(rows, 1):
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
            known = self._looked.pop((table, key), None)
            if row is None:
                whole = known[0] if known else plan.prefix + plan.encode_primary(key)
                await transaction.lock_row(plan.table, whole)
                value = transaction.get_newest(whole)
                if value is not None:
                    gone.append((whole, plan.decode(value), None))
            elif known is not None:
                locked.append((*known, stored(row)))
            else:
                other.append(stored(row))
        if gone:
            await changer.change_all(gone)
        if locked:
            await changer.put_locked(locked)
        if other:
            await changer.put_all(other)

    async def commit(self) -> None:
        await self._transaction.commit()


class _Elsewhere(RowsTransaction):
    """A transaction of a tablespace that runs elsewhere."""

    def __init__(
        self,
        tables: dict[str, AsyncTable],
        session: "RemoteSession",
        transaction: "RemoteTransaction",
    ) -> None:
        self._tables = tables
        self._session = session
        self._transaction: Any = transaction

    @classmethod
    async def begin(cls, tables: dict[str, AsyncTable], session: Any) -> "_Elsewhere":
        """Begin a transaction in a session, which the caller closes."""
        return cls(tables, session, await session.begin())

    async def lock(self, keys: Iterable[RowKey]) -> dict[RowKey, Row | None]:
        found: dict[RowKey, Row | None] = {}
        for table, some in _by_table(keys):
            plain = [_plain(key) for key in some]
            rows = await self._tables[table].lock_many(plain, transaction=self._transaction)
            found.update(zip([(table, key) for key in some], rows, strict=True))
        return found

    async def write(self, rows: Mapping[RowKey, Row | None]) -> None:
        for table, keys in _by_table(rows):
            stored = [row for key in keys if (row := rows[table, key]) is not None]
            gone = [key for key in keys if rows[table, key] is None]
            if gone:
                where = " AND ".join(f"{column} = ?" for column in PRIMARY[table])
                await self._session.execute_many(f"DELETE FROM {table} WHERE {where}", gone)
            if stored:
                await self._tables[table].put_many(stored, transaction=self._transaction)

    async def commit(self) -> None:
        await self._session.commit()


def _primary(table: AsyncTable) -> tuple[str, ...]:
    """The columns of a table's primary key."""
    if isinstance(table, RemoteTable):
        return tuple(table.described.primary)
    definition = table.bound.table
    return tuple(definition.by_number[number].name for number in definition.primary)


def _by_table(keys: Iterable[RowKey]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Keys by table, parents first, in order: who locks in order waits in no circle."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for table, key in keys:
        found.setdefault(table, []).append(key)
    return [(table, sorted(found[table])) for table in sorted(found, key=_ORDER.__getitem__)]


def _plain(key: Sequence[Any]) -> Any:
    return key[0] if len(key) == 1 else tuple(key)


def told(error: Error) -> BlobError:
    """What a user of the store hears of an error of the database."""
    if isinstance(error, CommitUnknown):
        return CommitOutcomeUnknown(f"{error.message}: check whether it happened, then try again")
    if isinstance(error, DiskFull):
        return errors.DiskFull(error.message)
    if isinstance(error, AccessDenied):
        reach = "who was granted a bucket reaches its objects over HTTP"
        return errors.AccessDenied(f"{error.message}: {reach}")
    # What is wrong with the statement itself will not be better later.
    later = "look into it" if isinstance(error, ProgrammingError) else "try again later"
    return MetadataUnavailable(f"names cannot be used now: {error.message}: {later}")

"""One transaction on the leader: what it reads, what it will write, what it has locked.

Invariants:
- Its own changes hide what lies below them. Nothing is in the log before `commit`, and then all of
  it is one command.
- A statement that fails leaves no change: each has a layer of its own until it has ended well.
- READ COMMITTED reads what is committed at each look; SNAPSHOT reads one position, and may change
  a row only if nobody has changed it since.
- After the end, by whomever, it holds no lock and no snapshot, and every call says so.
- A transaction belongs to one term of one leader and ends with it.
"""

import asyncio
import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final

from engine.state.contract import Row as KeyValue
from engine.state.contract import Snapshot
from engine.state.cutting import KEY_BYTES_MAX, VALUE_BYTES_MAX
from engine.state.overlay import Overlay, laid_over
from herd.commands import Change, Write
from herd.errors import (
    Deadlock,
    SerializationFailure,
    TooLarge,
    TransactionEnded,
    ValueTooLong,
)
from herd.keys import COUNTERS
from herd.locks import SCHEMA, Holder, Key
from herd.rows import POSITION_BYTES, changed_at
from herd.schema import Table

if TYPE_CHECKING:
    from herd.catalog import Catalog
    from herd.tablespace import Tablespace

ROW_BYTES_MAX: Final = VALUE_BYTES_MAX - POSITION_BYTES
_LARGE_BYTES: Final = KEY_BYTES_MAX
FRESH: Final = bytes(POSITION_BYTES)
"""Stands where the position will be, in rows that are not in the log yet."""


class Isolation(enum.Enum):
    """What a transaction sees of the others."""

    READ_COMMITTED = "READ COMMITTED"
    SNAPSHOT = "SNAPSHOT"


class Transaction(Holder):
    """Made by `Tablespace.begin`. All methods on the event loop."""

    follows: ClassVar[bool] = False
    """Whether it reads a replica as it is, leader or not, and changes nothing."""

    def __init__(
        self, space: "Tablespace", number: int, isolation: Isolation, identity: bytes = b""
    ) -> None:
        super().__init__()
        self.number = number
        self.isolation = isolation
        self.identity = identity
        """What its client calls it, to ask for its outcome; empty: nobody will."""
        self.term = space.term
        self.used_s = space.clock.monotonic()
        self._space = space
        self._locks = space.locks
        self._layers: list[Overlay] = [Overlay()]
        self._plain: list[Overlay] = [Overlay()]
        self._before: dict[bytes, bytes | None] = {}
        self._catalogs: list[Catalog | None] = [None]
        self._sizes_bytes: list[int] = []
        self._defined_over = 0
        self._defined_then: Catalog = space.catalog
        self._row_locks: dict[int, int] = {}
        self._whole_tables: set[int] = set()
        self._statements = 0
        self._snapshot: Snapshot | None = None
        self._ended = ""
        self.size_bytes = 0
        self.logged: asyncio.Future[bytes] | None = None
        """What tells that its command is applied; None before it is in the log."""

    # State

    @property
    def catalog(self) -> "Catalog":
        """The definitions that it sees, its own changes among them."""
        for changed in reversed(self._catalogs):
            if changed is not None:
                return changed
        return self._space.catalog

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return any(layer.rows for layer in self._layers + self._plain)

    @property
    def defines(self) -> bool:
        """Whether it changes definitions."""
        return any(changed is not None for changed in self._catalogs)

    @property
    def busy(self) -> bool:
        """Whether a statement, a wait for a lock or a commit is under way."""
        return bool(self._statements) or self.waiting is not None or self.logged is not None

    def check(self) -> None:
        """Raise `TransactionEnded` if it is over; else note that it is in use."""
        if not self._ended and self.term != self._space.term:
            self.end("another leader was elected")
        if self._ended:
            raise TransactionEnded(f"the transaction is over: {self._ended}", hint="begin another")
        self.used_s = self._space.clock.monotonic()

    # Reading

    def get(self, key: bytes) -> bytes | None:
        """A row with its position in front (zeros for its own), or None."""
        for layer in reversed(self._layers):
            if key in layer.rows:
                return layer.rows[key]
        return self._below_get(key)

    def get_plain(self, key: bytes) -> bytes | None:
        """An entry of an index or of the catalog, or None."""
        for layer in reversed(self._plain):
            if key in layer.rows:
                return layer.rows[key]
        return self._below_get(key)

    def get_newest(self, key: bytes) -> bytes | None:
        """A row as it is committed now, whatever the snapshot shows; for who holds its lock."""
        for layer in reversed(self._layers):
            if key in layer.rows:
                return layer.rows[key]
        self._check_open()
        return self._space.rows_get(key)

    def get_newest_plain(self, key: bytes) -> bytes | None:
        """An entry as it is committed now, whatever the snapshot shows; for who holds its lock."""
        for layer in reversed(self._plain):
            if key in layer.rows:
                return layer.rows[key]
        self._check_open()
        return self._space.rows_get(key)

    def scan(self, first: bytes, end: bytes, limit: int = 1_000) -> list[KeyValue]:
        """At most `limit` rows with keys from `first` on and under `end`, in order."""
        return self._laid(self._layers, first, end, limit)

    def scan_plain(self, first: bytes, end: bytes, limit: int = 1_000) -> list[KeyValue]:
        """The same of entries of an index or of the catalog."""
        return self._laid(self._plain, first, end, limit)

    def scan_newest(self, first: bytes, end: bytes, limit: int = 1_000) -> list[KeyValue]:
        """Rows as they are committed now, whatever the snapshot shows; for checks of others."""
        return self._laid(self._layers, first, end, limit, newest=True)

    def scan_newest_plain(self, first: bytes, end: bytes, limit: int = 1_000) -> list[KeyValue]:
        """The same of entries of an index."""
        return self._laid(self._plain, first, end, limit, newest=True)

    def own_changes(self, first: bytes, end: bytes) -> dict[bytes, bytes | None]:
        """What it changed of the rows in a range: their new values, None for removed ones."""
        return {
            key: value
            for layer in self._layers
            for key, value in layer.rows.items()
            if first <= key < end
        }

    def snapshot(self) -> Snapshot | None:
        """The position that a SNAPSHOT transaction reads, taken at its first look; else None.

        Raises `SerializationFailure` if others have changed definitions since that look.
        """
        self._check_open()
        if self._snapshot is not None and self._defined_then is not (now := self._space.catalog):
            if not now.shows_as(self._defined_then):
                raise SerializationFailure("definitions changed meanwhile", hint="begin again")
            self._defined_then = now
        if self.isolation is Isolation.SNAPSHOT and self._snapshot is None:
            # This needs the lease, or is confirmed: the leader may have been replaced.
            self._space.rows_get(COUNTERS)
            self._defined_then = self._space.catalog
            self._snapshot = self._space.view()
        return self._snapshot

    def _below_get(self, key: bytes) -> bytes | None:
        snapshot = self.snapshot()
        return self._space.rows_get(key) if snapshot is None else snapshot.get(key)

    def _laid(
        self,
        layers: Sequence[Overlay],
        first: bytes,
        end: bytes,
        limit: int,
        *,
        newest: bool = False,
    ) -> list[KeyValue]:
        self._check_open()
        snapshot = None if newest else self.snapshot()
        below = self._space.rows_scan if snapshot is None else snapshot.scan
        if not any(layer.rows for layer in layers):
            return below(first, end, limit)
        found: list[KeyValue] = []
        newest_first = list(reversed(layers))
        while len(found) < limit:
            page = below(first, end, limit)
            whole = len(page) < limit
            page_end = end if whole else page[-1][0] + b"\x00"
            found += laid_over(iter(page), newest_first, first, page_end)
            if whole:
                break
            first = page_end
        return found[:limit]

    # Locking

    async def lock_table(self, table: Table, *, exclusive: bool = False) -> None:
        """Keep a table's definition as it is; exclusively: keep others' changes out, too."""
        await self._lock(table.id, exclusive)
        if exclusive:
            self._whole_tables.add(table.id)

    async def lock_definition(self, table_id: int) -> Table | None:
        """Keep a table as it is defined now, and return it; None if there is none of this id.

        Who had it before may have changed it: what was known of it before the call may be wrong.
        """
        while (table := self.catalog.tables.get(table_id)) is not None:
            await self.lock_table(table)
            if self.catalog.tables.get(table_id) is table:
                break
        return table

    async def lock_row(self, table: Table, key: bytes, *, exclusive: bool = True) -> None:
        """Lock a row, or a key that no row has yet. Raises `LockTimeout`, `Deadlock`.

        The table has to be locked before, at least not exclusively.
        """
        if table.id in self._whole_tables:
            self._check_open()
            return
        before = len(self.locks)
        self._check_open()
        if not self._locks.try_lock(self, key, exclusive):
            await self._wait_for(key, exclusive)
        count = self._row_locks.get(table.id, 0) + len(self.locks) - before
        if count > self._space.settings.row_locks_max:
            # So many are better kept as one, which nobody else's single ones may overlap.
            await self.lock_table(table, exclusive=True)
        self._row_locks[table.id] = count

    def try_free(self, table: Table, key: bytes) -> bool:
        """Lock a key if nobody has it and no row does, as far as that can be told at once.

        As `lock_row` and `get_newest` in one, for many rows; where it is False, they tell why.
        """
        if self._ended or self.isolation is Isolation.SNAPSHOT:
            return False
        if table.id not in self._whole_tables:
            count, before = self._row_locks.get(table.id, 0), len(self.locks)
            full = count >= self._space.settings.row_locks_max
            if full or not self._locks.try_lock(self, key, True):
                return False
            self._row_locks[table.id] = count + len(self.locks) - before
        for layer in reversed(self._layers):
            if key in layer.rows:
                return layer.rows[key] is None
        # Under the lock: what is in the log later is checked by the log, so no lease is needed.
        return self._space.get_applied(key) is None

    async def lock_name(self, name: str) -> None:
        """Lock a name, so that nobody else gives or takes it."""
        await self._lock(("name", name.lower()), True)

    async def _lock(self, key: Key, exclusive: bool) -> None:
        self._check_open()
        if not self._locks.try_lock(self, key, exclusive):
            await self._wait_for(key, exclusive)

    async def _wait_for(self, key: Key, exclusive: bool) -> None:
        try:
            await self._locks.lock(self, key, self._space.lock_timeout_ms, exclusive)
        except Deadlock:
            # Whoever it waited for waits for it: they go on only if it goes.
            self.end("it was in a deadlock")
            raise
        self.check()

    def check_unchanged(self, table: Table, value: bytes | None, key: bytes = b"") -> None:
        """Raise `SerializationFailure` if a row's newest value is from after the snapshot.

        With its `key` it is noticed, too, that the row has gone since then.
        """
        snapshot = self._snapshot
        if snapshot is None:
            return
        if value is None:
            own = any(key in layer.rows for layer in self._layers)
            changed = bool(key) and not own and snapshot.get(key) is not None
        else:
            changed = not value.startswith(FRESH) and changed_at(value) > snapshot.position
        if changed:
            raise SerializationFailure(
                f"a row of {table.name} was changed by another transaction", hint="begin again"
            )

    # Changing

    @contextmanager
    def statement(self) -> Iterator[None]:
        """What is changed inside stays if the block ends well, else none of it."""
        mark = self.mark()
        with self.in_use():
            try:
                yield
            except BaseException:
                self._drop(mark)
                raise
        self.release(mark)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """It is not idle as long as the block lasts."""
        self._statements += 1
        try:
            yield
        finally:
            self._statements -= 1
            self.used_s = self._space.clock.monotonic()

    def mark(self) -> int:
        """A savepoint: begin a layer; `release` or `undo` with what this returns."""
        self.check()
        self._layers.append(Overlay())
        self._plain.append(Overlay())
        self._catalogs.append(None)
        self._sizes_bytes.append(self.size_bytes)
        return len(self._layers)

    def release(self, mark: int) -> None:
        """Keep what was changed since a savepoint."""
        self.check()
        while len(self._layers) >= mark:
            self._merge_down()

    def undo(self, mark: int) -> None:
        """Take back what was changed since a savepoint; its locks stay."""
        self.check()
        self._drop(mark)

    def _drop(self, mark: int) -> None:
        while len(self._layers) >= mark:
            self._layers.pop()
            self._plain.pop()
            self._catalogs.pop()
            self.size_bytes = self._sizes_bytes.pop()

    def set_row(self, key: bytes, row: bytes | None) -> None:
        """Set a row's bytes, without position, or remove it. It must be locked.

        Raises `ValueTooLong` for one that is larger than a row may be, `TooLarge`.
        """
        self._grow(key, row)
        self._layers[-1].rows[key] = None if row is None else FRESH + row

    def set_plain(self, key: bytes, value: bytes | None) -> None:
        """Set an entry of an index or of the catalog, or remove it. Raises as `set_row`."""
        self._grow(key, value)
        self._plain[-1].rows[key] = value

    def set_before(self, key: bytes, value: bytes | None) -> None:
        """Note how a row was before its first change here, for those who read changes."""
        if key not in self._before:
            self._grow(key, value)
            self._before[key] = value

    def set_catalog(self, catalog: "Catalog", changes: Sequence[Change]) -> None:
        """Change definitions."""
        if not self.defines:
            self._defined_over = self._space.catalog.version
        self._catalogs[-1] = catalog
        for key, value in changes:
            self.set_plain(key, value)

    def write(self) -> Write:
        """Everything that it changes, as one command."""
        while len(self._layers) > 1:
            self._merge_down()
        rows = [
            (key, None if value is None else value[POSITION_BYTES:])
            for key, value in self._layers[0].rows.items()
        ]
        changed = self._layers[0].rows
        # What a statement that failed was about to change was changed by nobody.
        before = [(key, value) for key, value in self._before.items() if key in changed]
        return Write(rows, list(self._plain[0].rows.items()), before)

    # Ending

    async def commit(self) -> None:
        """Write everything to the log; durable and visible when it returns.

        With the identity of one that was committed before it changes nothing: it was answered.
        Raises `TransactionEnded`, `LeaderUnavailable` (nothing happened), `CommitUnknown`, and of
        one that defines `SerializationFailure`, `LockTimeout`.
        """
        self.check()
        why = "its commit failed"
        self._statements += 1
        try:
            if self.changed or self.identity:
                if self.defines:
                    # What another one defines counts when it is applied, not when it is logged.
                    await self.lock_name(SCHEMA)
                self._check_definitions()
                await self._space.commit(self)
            why = "it was committed"
        finally:
            self._statements -= 1
            self.end(why)

    def rollback(self) -> None:
        """Forget everything. May be called after the end; too late for a commit under way."""
        self.end("it was rolled back")

    def end(self, why: str) -> None:
        """Let go of everything; the first reason is the one that is told."""
        if not self._ended:
            self._ended = why
            if self.logged is None or self.logged.done():
                self._let_go()
            else:
                # Who took its locks now would read rows from before its commit.
                self.logged.add_done_callback(lambda _: self._let_go())

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return bool(self._ended)

    def _let_go(self) -> None:
        self._locks.release(self)
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
        self._layers = [Overlay()]
        self._plain = [Overlay()]
        self._catalogs = [None]
        self._sizes_bytes = []
        self._space.forget(self)

    def _check_open(self) -> None:
        if self._ended:
            self.check()

    def _check_definitions(self) -> None:
        """What was defined by others meanwhile is not in this one's catalog."""
        if self.defines and self._space.catalog.version != self._defined_over:
            raise SerializationFailure(
                "another transaction changed definitions at the same time", hint="begin again"
            )

    def _merge_down(self) -> None:
        catalog = self._catalogs.pop()
        for layers in (self._layers, self._plain):
            layer = layers.pop()
            if layers[-1].rows:
                layers[-1].rows.update(layer.rows)
            else:
                layers[-1] = layer
        if catalog is not None:
            self._catalogs[-1] = catalog
        self._sizes_bytes.pop()

    def _grow(self, key: bytes, value: bytes | None) -> None:
        """Count a change. What no replica could apply must never be in the log."""
        self._check_open()
        size_bytes = len(key) if value is None else len(key) + len(value)
        if size_bytes > _LARGE_BYTES:
            _check_fits(key, value)
        self.size_bytes += size_bytes
        limit = self._space.settings.transaction_bytes_max
        if self.size_bytes > limit:
            raise TooLarge(f"a transaction changes at most {limit} bytes", hint="do it in parts")


def _check_fits(key: bytes, value: bytes | None) -> None:
    if len(key) > KEY_BYTES_MAX:
        raise ValueTooLong(f"a key of {len(key)} bytes; {KEY_BYTES_MAX} fit")
    if value is not None and len(value) > ROW_BYTES_MAX:
        raise ValueTooLong(f"a row of {len(value)} bytes; {ROW_BYTES_MAX} fit")

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
from typing import TYPE_CHECKING, Final

from engine.state.contract import Row as KeyValue
from engine.state.contract import Snapshot
from engine.state.overlay import Overlay, laid_over
from herd.commands import Change, Write
from herd.errors import SerializationFailure, TooLarge, TransactionEnded
from herd.locks import Holder, Key
from herd.rows import POSITION_BYTES, changed_at
from herd.schema import Table

if TYPE_CHECKING:
    from herd.catalog import Catalog
    from herd.tablespace import Tablespace

FRESH: Final = bytes(POSITION_BYTES)
"""Stands where the position will be, in rows that are not in the log yet."""


class Isolation(enum.Enum):
    """What a transaction sees of the others."""

    READ_COMMITTED = "READ COMMITTED"
    SNAPSHOT = "SNAPSHOT"


class Transaction(Holder):
    """Made by `Tablespace.begin`. All methods on the event loop."""

    def __init__(self, space: "Tablespace", number: int, isolation: Isolation) -> None:
        super().__init__()
        self.number = number
        self.isolation = isolation
        self.term = space.term
        self.used_s = space.clock.monotonic()
        self._space = space
        self._layers: list[Overlay] = [Overlay()]
        self._plain: list[dict[bytes, bytes | None]] = [{}]
        self._before: dict[bytes, bytes | None] = {}
        self._catalogs: list[Catalog | None] = [None]
        self._table_locks: dict[int, int] = {}
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
        return any(layer.rows for layer in self._layers) or any(self._plain)

    @property
    def defines(self) -> bool:
        """Whether it changes definitions."""
        return any(changed is not None for changed in self._catalogs)

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
            if key in layer:
                return layer[key]
        return self._below_get(key)

    def get_newest(self, key: bytes) -> bytes | None:
        """A row as it is committed now, whatever the snapshot shows; for who holds its lock."""
        for layer in reversed(self._layers):
            if key in layer.rows:
                return layer.rows[key]
        return self._space.rows_get(key)

    def scan(self, first: bytes, end: bytes, limit: int = 1_000) -> list[KeyValue]:
        """At most `limit` rows with keys from `first` on and under `end`, in order."""
        return self._laid(self._layers, first, end, limit)

    def scan_plain(self, first: bytes, end: bytes, limit: int = 1_000) -> list[KeyValue]:
        """The same of entries of an index or of the catalog."""
        layers = []
        for changes in self._plain:
            if changes:
                overlay = Overlay()
                overlay.rows = changes
                layers.append(overlay)
        return self._laid(layers, first, end, limit)

    def own_changes(self, first: bytes, end: bytes) -> dict[bytes, bytes | None]:
        """What it changed of the rows in a range: their new values, None for removed ones."""
        return {
            key: value
            for layer in self._layers
            for key, value in layer.rows.items()
            if first <= key < end
        }

    def snapshot(self) -> Snapshot | None:
        """The position that a SNAPSHOT transaction reads, taken at its first look; else None."""
        if self.isolation is Isolation.SNAPSHOT and self._snapshot is None:
            self._snapshot = self._space.view()
        return self._snapshot

    def _below_get(self, key: bytes) -> bytes | None:
        snapshot = self.snapshot()
        return self._space.rows_get(key) if snapshot is None else snapshot.get(key)

    def _laid(
        self, layers: Sequence[Overlay], first: bytes, end: bytes, limit: int
    ) -> list[KeyValue]:
        snapshot = self.snapshot()
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
        key: Key = table.id
        if not self._space.locks.try_lock(self, key, exclusive):
            await self._space.locks.lock(self, key, self._space.lock_timeout_ms, exclusive)
            self.check()
        self._table_locks.setdefault(table.id, 0)

    async def lock_row(self, table: Table, key: bytes, *, exclusive: bool = True) -> None:
        """Lock a row, or a key that no row has yet. Raises `LockTimeout`, `Deadlock`."""
        count = self._table_locks.get(table.id, 0)
        if count > self._space.settings.row_locks_max:
            return
        if not self._space.locks.try_lock(self, key, exclusive):
            await self._space.locks.lock(self, key, self._space.lock_timeout_ms, exclusive)
            self.check()
        self._table_locks[table.id] = count + 1
        if count == self._space.settings.row_locks_max:
            # So many are better kept as one, which nobody else's single ones may overlap.
            await self.lock_table(table, exclusive=True)

    async def lock_name(self, name: str) -> None:
        """Lock a name, so that nobody else gives or takes it."""
        key: Key = ("name", name.lower())
        await self._space.locks.lock(self, key, self._space.lock_timeout_ms)
        self.check()

    def check_unchanged(self, table: Table, value: bytes | None) -> None:
        """Raise `SerializationFailure` if a row's newest value is from after the snapshot."""
        snapshot = self._snapshot
        if snapshot is None or value is None or value.startswith(FRESH):
            return
        if changed_at(value) > snapshot.position:
            raise SerializationFailure(
                f"a row of {table.name} was changed by another transaction", hint="begin again"
            )

    # Changing

    @contextmanager
    def statement(self) -> Iterator[None]:
        """What is changed inside stays if the block ends well, else none of it."""
        self.check()
        self._layers.append(Overlay())
        self._plain.append({})
        self._catalogs.append(None)
        size_bytes = self.size_bytes
        try:
            yield
        except BaseException:
            if not self._ended:
                self._layers.pop()
                self._plain.pop()
                self._catalogs.pop()
                self.size_bytes = size_bytes
            raise
        self.check()
        self._merge_down()

    def mark(self) -> int:
        """A savepoint: begin a layer; `release` or `undo` with what this returns."""
        self.check()
        self._layers.append(Overlay())
        self._plain.append({})
        self._catalogs.append(None)
        return len(self._layers)

    def release(self, mark: int) -> None:
        """Keep what was changed since a savepoint."""
        while len(self._layers) >= mark:
            self._merge_down()

    def undo(self, mark: int) -> None:
        """Take back what was changed since a savepoint; its locks stay."""
        while len(self._layers) >= mark:
            self._layers.pop()
            self._plain.pop()
            self._catalogs.pop()

    def set_row(self, key: bytes, row: bytes | None) -> None:
        """Set a row's bytes, without position, or remove it. It must be locked."""
        self._layers[-1].rows[key] = None if row is None else FRESH + row
        self._grow(len(key) + (0 if row is None else len(row)))

    def set_plain(self, key: bytes, value: bytes | None) -> None:
        """Set an entry of an index or of the catalog, or remove it."""
        self._plain[-1][key] = value
        self._grow(len(key) + (0 if value is None else len(value)))

    def set_before(self, key: bytes, value: bytes | None) -> None:
        """Note how a row was before its first change here, for those who read changes."""
        if key not in self._before:
            self._before[key] = value
            self._grow(len(key) + (0 if value is None else len(value)))

    def set_catalog(self, catalog: "Catalog", changes: Sequence[Change]) -> None:
        """Change definitions."""
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
        return Write(rows, list(self._plain[0].items()), list(self._before.items()))

    # Ending

    async def commit(self) -> None:
        """Write everything to the log; durable and visible when it returns.

        Raises `TransactionEnded`, `LeaderUnavailable` (nothing happened), `CommitUnknown`.
        """
        self.check()
        try:
            if self.changed:
                await self._space.commit(self)
        finally:
            if self.logged is None or self.logged.done():
                self.end("it was committed")
            else:
                # The wait was cancelled. Who took its locks now would read rows from before it.
                self._ended = "its commit is under way"
                self.logged.add_done_callback(lambda _: self._let_go())

    def rollback(self) -> None:
        """Forget everything. May be called after the end."""
        self.end("it was rolled back")

    def end(self, why: str) -> None:
        """Let go of everything; the first reason is the one that is told."""
        if not self._ended:
            self._ended = why
            self._let_go()

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return bool(self._ended)

    def _let_go(self) -> None:
        self._space.locks.release(self)
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
        self._layers = [Overlay()]
        self._plain = [{}]
        self._catalogs = [None]
        self._space.forget(self)

    def _merge_down(self) -> None:
        layer, plain, catalog = self._layers.pop(), self._plain.pop(), self._catalogs.pop()
        below = self._layers[-1]
        if below.rows:
            below.rows.update(layer.rows)
        else:
            self._layers[-1] = layer
        self._plain[-1].update(plain)
        if catalog is not None:
            self._catalogs[-1] = catalog

    def _grow(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        limit = self._space.settings.transaction_bytes_max
        if self.size_bytes > limit:
            raise TooLarge(f"a transaction changes at most {limit} bytes", hint="do it in parts")

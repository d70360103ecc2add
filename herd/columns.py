"""Tables as Arrow columns, kept in memory beside the rows and never behind them.

    pages      batches of about 64k rows; the keys of one are all below those of the next
    changed    rows that were written since the pages were made, by key, as they are now

What a query reads of a table is its pages without the changed keys, and the changed rows.

Invariants:
- Pages and changes together are the table as this replica has it, at every turn of the event loop.
- A page never changes: queries that run keep theirs. Folding the changes in makes other pages.
- Everything but bookkeeping runs in worker threads, in slices that let other threads go on.
- Where a checkpoint's pages and the log tell the rows, the rows themselves are not read.
- What is kept is bounded: tables that nobody asks for go first; one that is too large for the
  bound is read anew, as a stream of a snapshot, each time.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from engine import limits
from engine.log.position import Position
from engine.ports.workers import Workers
from engine.state.contract import Snapshot
from herd.arrow import KEY, POSITION, batch_maker, schema_of
from herd.catalog import rows_of
from herd.commands import Command, Write
from herd.keys import PREFIX_BYTES
from herd.reading import Captured, Changes, Page, Reading, Streamed
from herd.rows import POSITION_BYTES, stamp
from herd.schema import Column, Table
from herd.tablespace import Tablespace

Checkpointed = Callable[
    [Table, Position, int], Awaitable[tuple[Sequence[pa.RecordBatch], Changes] | None]
]
"""A table's rows as a checkpoint has them, and what has changed up to a position.

None: that is not known, or has more than so many bytes."""

_SLICE_ROWS: Final = 4_096
_FOLD_SHARE: Final = 100
_HISTORY_KEYS_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class ColumnSettings:
    """How much is kept. `bytes_max` is for all tables; a page has about so many rows or bytes.

    Changes are folded in when they are over `fold_rows_min` and a hundredth of the rows.
    """

    bytes_max: int = 512 * limits.MIB
    page_rows: int = 65_536
    page_bytes: int = 16 * limits.MIB
    fold_rows_min: int = 4_096


class _Kept:
    """One table's columns."""

    def __init__(self, table: Table, position: Position) -> None:
        self.table = table
        self.since = position
        """No older position can be told from what is kept."""
        self.pages: list[Page] | None = None
        self.columns: tuple[Column, ...] = ()
        self.changed: dict[bytes, bytes | None] = {}
        self.folded: list[tuple[Position, set[bytes]]] = []
        """Keys that were folded in lately, and a position that none of them is newer than."""
        self.size_bytes = 0
        self.row_count = 0
        self.building: asyncio.Task[None] | None = None
        self.folding = False
        self.used = 0
        self.used_at_fold = 0

    def fits(self, table: Table) -> bool:
        """Whether its pages are of this definition's columns."""
        return self.table.columns == table.columns and self.table.width == table.width

    def parted(self, position: Position) -> tuple[Changes, list[bytes]] | None:
        """What the pages do not have of a position; None if that is not known.

        Rows that were changed up to it, and the keys that may have changed after it.
        """
        if position < self.since:
            return None
        stamped = stamp(position)
        before: Changes = {}
        after = set()
        for key, value in self.changed.items():
            # When a row was removed is not known.
            if value is None or value[:POSITION_BYTES] > stamped:
                after.add(key)
            else:
                before[key] = value
        for newest, keys in self.folded:
            if newest > position:
                after |= keys
        return before, list(after)


class ColumnCache:
    """The columns of one tablespace replica. All methods on the event loop."""

    def __init__(
        self, space: Tablespace, workers: Workers, settings: ColumnSettings | None = None
    ) -> None:
        self._space = space
        self._workers = workers
        self._settings = settings or ColumnSettings()
        self._kept: dict[bytes, _Kept] = {}
        self._too_large: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock = 0
        self._replaced = space.replica.replaced
        self._closed = False
        self.checkpointed: Checkpointed | None = None
        """Set by who keeps checkpoints."""
        self._stop = space.watch(self._watch)

    @property
    def size_bytes(self) -> int:
        """How much is kept."""
        return sum(kept.size_bytes for kept in self._kept.values())

    @property
    def folding(self) -> bool:
        """Whether changes are being folded in, or pages made."""
        return bool(self._tasks)

    def statistics(self, table: Table) -> tuple[int, int, int, int] | None:
        """Rows, pages, changed rows and bytes of a table, if its columns are kept."""
        kept = self._kept.get(table.prefix)
        if kept is None or kept.pages is None:
            return None
        return kept.row_count, len(kept.pages), len(kept.changed), kept.size_bytes

    async def prepare(self, table: Table, columns: Sequence[Column]) -> None:
        """Make what `capture` of these columns needs, unless they are too many to keep.

        Raises what reading the rows raises.
        """
        for _ in range(2):
            kept = self._usable(table, columns)
            if kept is None and table.store in self._too_large:
                return
            if kept is None:
                kept = self._begin(table, columns)
            if kept.building is None:
                return
            await asyncio.shield(kept.building)

    def capture(
        self, table: Table, columns: Sequence[Column], snapshot: Snapshot | None, turn: Lock
    ) -> Reading:
        """What a table holds at this moment, or at a snapshot's. Close it.

        `turn` is held while the snapshot is read: it serves one reader at a time.
        """
        kept = self._usable(table, columns)
        if kept is not None and kept.pages is not None:
            self._clock += 1
            kept.used = self._clock
            if snapshot is None:
                return Captured(table, kept.pages, dict(kept.changed))
            parted = kept.parted(snapshot.position)
            if parted is not None and len(parted[1]) <= _HISTORY_KEYS_MAX:
                before, after = parted
                return Captured(table, kept.pages, before, snapshot, after)
        if snapshot is None:
            return Streamed(table, self._space.view(), Lock(), owned=True)
        return Streamed(table, snapshot, turn, owned=False)

    async def close(self) -> None:
        """Forget everything; wait for the threads' work. May be called twice."""
        if not self._closed:
            self._closed = True
            self._stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._kept.clear()

    # Following the rows

    def _watch(self, position: Position, command: Command) -> None:
        if not self._kept or type(command) is not Write:
            return
        find, stamped, fold_min = self._kept.get, stamp(position), self._settings.fold_rows_min
        for key, row in command.rows:
            kept = find(key[:PREFIX_BYTES])
            if kept is not None:
                kept.changed[key] = None if row is None else stamped + row
                if len(kept.changed) > fold_min and not kept.folding:
                    self._consider_folding(kept)

    def _consider_folding(self, kept: _Kept) -> None:
        if kept.pages is None or len(kept.changed) <= kept.row_count // _FOLD_SHARE:
            return
        if kept.used == kept.used_at_fold:
            # Nobody has asked since the last time: not worth following.
            self._drop(kept)
            return
        kept.folding = True
        kept.used_at_fold = kept.used
        self._start(self._fold(kept))

    async def _fold(self, kept: _Kept) -> None:
        pages, changed = kept.pages, dict(kept.changed)
        assert pages is not None
        newest = self._space.stale_read(lambda rows: None)[1]
        columns, size = kept.columns, self._settings.page_rows
        try:
            folded = await self._workers.run(
                lambda: _folded(kept.table, columns, pages, changed, size)
            )
        finally:
            kept.folding = False
        kept.pages = folded
        for key, value in changed.items():
            if kept.changed.get(key, b"") is value:
                del kept.changed[key]
        kept.folded.append((newest, set(changed)))
        while sum(len(keys) for _, keys in kept.folded) > _HISTORY_KEYS_MAX:
            kept.since, _ = kept.folded.pop(0)
        self._measure(kept)

    # Making pages

    def _usable(self, table: Table, columns: Sequence[Column]) -> _Kept | None:
        if self._space.replica.replaced != self._replaced:
            # A snapshot took the place of the rows, and no command told of it.
            self._replaced = self._space.replica.replaced
            self._kept.clear()
        kept = self._kept.get(table.prefix)
        if kept is None:
            return None
        if kept.fits(table):
            if kept.pages is None or all(column in kept.columns for column in columns):
                return kept
        elif self._space.catalog.tables.get(table.id) is not table:
            # The definition is of a transaction that has not committed it: the pages stay.
            return None
        if kept.building is None:
            del self._kept[table.prefix]
        return None

    def _begin(self, table: Table, columns: Sequence[Column]) -> _Kept:
        snapshot = self._space.view()
        kept = self._kept[table.prefix] = _Kept(table, snapshot.position)
        self._clock += 1
        kept.used = self._clock
        kept.building = self._start(self._build(kept, snapshot, tuple(columns)))
        return kept

    async def _build(self, kept: _Kept, snapshot: Snapshot, needed: tuple[Column, ...]) -> None:
        table = kept.table
        builder = _Builder(table, needed, self._settings, lambda: self._closed)
        try:
            pages = await self._known(table, snapshot.position)
            if pages is None:
                pages = await self._workers.run(lambda: builder.build(snapshot))
        except BaseException:
            self._drop(kept)
            raise
        finally:
            kept.building = None
            snapshot.close()
        if pages is None:
            self._too_large.add(table.store)
            self._drop(kept)
            return
        kept.columns, kept.pages = builder.columns, pages
        self._measure(kept)
        self._evict(kept)

    async def _known(self, table: Table, position: Position) -> list[Page] | None:
        """The pages of a checkpoint, with what changed since folded in, if there is room."""
        if self.checkpointed is None:
            return None
        settings = self._settings
        found = await self.checkpointed(table, position, settings.bytes_max)
        if found is None:
            return None
        batches, changed = found
        return await self._workers.run(
            lambda: _brought_up(table, batches, changed, settings.page_rows)
        )

    def _drop(self, kept: _Kept) -> None:
        if self._kept.get(kept.table.prefix) is kept:
            del self._kept[kept.table.prefix]

    def _measure(self, kept: _Kept) -> None:
        assert kept.pages is not None
        kept.size_bytes = sum(page.size_bytes for page in kept.pages)
        kept.row_count = sum(page.batch.num_rows for page in kept.pages)

    def _evict(self, wanted: _Kept) -> None:
        for kept in sorted(self._kept.values(), key=lambda kept: kept.used):
            if self.size_bytes <= self._settings.bytes_max:
                return
            if kept is not wanted and kept.building is None:
                del self._kept[kept.table.prefix]

    def _start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Who waits for it hears of it; a fold that failed is tried at the next change.
            task.exception()


class _Builder:
    """Reads a table's rows into pages, in a thread."""

    def __init__(
        self,
        table: Table,
        needed: tuple[Column, ...],
        settings: ColumnSettings,
        stopped: Callable[[], bool],
    ) -> None:
        self.columns = table.columns
        self._table = table
        self._needed = needed
        self._settings = settings
        self._stopped = stopped
        self._pages: list[Page] = []
        self._size_bytes = 0

    def build(self, snapshot: Snapshot) -> list[Page] | None:
        """The pages of all rows; None if they are too large, or nobody wants them any more."""
        settings = self._settings
        first, end = rows_of(self._table)
        slices: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        make = batch_maker(self._table, self.columns, hidden=True)
        slice_rows = min(_SLICE_ROWS, settings.page_rows)
        while found := snapshot.scan(first, end, slice_rows):
            if self._stopped():
                return None
            slices.append(make(found))
            rows += len(found)
            size_bytes += slices[-1].nbytes
            first = found[-1][0] + b"\x00"
            if rows >= settings.page_rows or size_bytes >= settings.page_bytes:
                if not self._add(slices):
                    return None
                make = batch_maker(self._table, self.columns, hidden=True)
                slices, rows, size_bytes = [], 0, 0
            if len(found) < slice_rows:
                break
        return self._pages if not slices or self._add(slices) else None

    def _add(self, slices: list[pa.RecordBatch]) -> bool:
        """Add a page; whether there was room, perhaps for the needed columns alone."""
        page = Page.of(pa.concat_batches(slices))
        self._pages.append(page)
        self._size_bytes += page.size_bytes
        if self._size_bytes > self._settings.bytes_max and len(self._needed) < len(self.columns):
            self.columns = tuple(c for c in self.columns if c in self._needed)
            names = [*(column.name for column in self.columns), KEY, POSITION]
            self._pages = [Page(p.batch.select(names), p.first, p.last) for p in self._pages]
            self._size_bytes = sum(each.size_bytes for each in self._pages)
        return self._size_bytes <= self._settings.bytes_max


def _brought_up(
    table: Table, batches: Sequence[pa.RecordBatch], changed: Changes, page_rows: int
) -> list[Page]:
    """A checkpoint's rows as pages, with changes in them."""
    schema = schema_of(table.columns, hidden=True)
    prefix = pa.scalar(table.prefix, pa.binary())
    pages = []
    for batch in batches:
        if batch.num_rows:
            whole = pc.binary_join_element_wise(prefix, batch.column(KEY), pa.scalar(b""))
            arrays = [batch.column(column.name) for column in table.columns]
            arrays += [whole, batch.column(POSITION)]
            pages.append(Page.of(pa.RecordBatch.from_arrays(arrays, schema=schema)))
    return _folded(table, table.columns, pages, changed, page_rows)


def _folded(
    table: Table,
    columns: tuple[Column, ...],
    pages: list[Page],
    changed: dict[bytes, bytes | None],
    page_rows: int,
) -> list[Page]:
    """Pages with changes in them; those that nothing touched are the same ones."""
    make = batch_maker(table, columns, hidden=True)
    keys = sorted(changed)
    starts = [page.first for page in pages]
    folded: list[Page] = []
    place = 0
    for number in range(max(len(pages), 1)):
        # What lies before the first page, or behind a page and before the next, belongs to it.
        stop = bisect_left(keys, starts[number + 1]) if number + 1 < len(pages) else len(keys)
        here, place = keys[place:stop], stop
        if not here:
            folded.extend(pages[number : number + 1])
            continue
        parts = [pages[number].without(here)] if pages else []
        added = [(key, value) for key in here if (value := changed[key]) is not None]
        if added:
            parts.append(make(added))
        folded += _cut(pa.Table.from_batches(parts) if parts else None, page_rows)
    return folded


def _cut(rows: pa.Table | None, page_rows: int) -> list[Page]:
    """Pages of so many rows, in the order of their keys."""
    if rows is None or not rows.num_rows:
        return []
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[(KEY, "ascending")])).combine_chunks()
    size = page_rows if rows.num_rows >= 2 * page_rows else rows.num_rows
    return [Page.of(batch) for batch in ordered.to_batches(max_chunksize=size)]

"""What a query reads of one table: made on the event loop at one moment, read in a thread.

Invariants:
- Every row of the table at that moment is read once, with the changes of the query's own
  transaction laid over it.
- Nothing here changes after it was made, whatever happens to the table.
"""

import ctypes
import fcntl
import mmap
import os
import sys
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from engine.ports.system_files import files_max
from engine.state.contract import Snapshot
from herd.arrow import KEY, POSITION, batch_maker, schema_of
from herd.catalog import rows_of
from herd.schema import Column, Table

_SEALS: Final = (
    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    if sys.platform == "linux"
    else 0
)
Changes = dict[bytes, bytes | None]
_SLICE_ROWS: Final = 4_096
_FEW_ROWS: Final = 1_000
_sharing: Final = Lock()
"""A lock that is held while a page is copied to shared memory, so that this happens once."""
_DESCRIPTORS_PART: Final = 4
"""Pages use at most this fraction (one in ...) of the process's file descriptors."""


class Page:
    """Some rows of a table, all columns that are kept, `_key` and `_position` among them.

    They lie in the order of their keys. Threads may use one at once.
    """

    __slots__ = ("_keys", "_places", "_shared", "batch", "first", "last", "size_bytes")

    def __init__(self, batch: pa.RecordBatch, first: bytes, last: bytes) -> None:
        self.batch = batch
        self.first = first
        """No key is below it."""
        self.last = last
        """No key is above it."""
        self.size_bytes = int(batch.nbytes)
        self._keys = batch.column(KEY)
        self._shared: SharedBatch | None = None
        self._places: dict[bytes, int] = {}
        """Where keys lie that were looked for, -1 for nowhere: changed rows are, in every query."""

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Page":
        """A page of some rows, at least one, in the order of their keys."""
        keys = batch.column(KEY)
        assert pc.all(pc.less(keys[:-1], keys[1:])).as_py() is not False
        return cls(batch, keys[0].as_py(), keys[-1].as_py())

    def without(self, keys: Sequence[bytes]) -> pa.RecordBatch:
        """Its rows without those that have one of the keys."""
        return without_places(self.batch, self.places(keys))

    def places(self, keys: Sequence[bytes]) -> list[int]:
        """The places of the rows that have one of the keys."""
        return [place for key in keys if (place := self._place(key)) >= 0]

    def share(self) -> "SharedBatch | None":
        """The page in memory that other processes can map; None if too many pages are shared.

        Call it in a thread. Raises `OSError`.
        """
        with _sharing:
            if self._shared is None:
                if len(SharedBatch.living) >= files_max() // _DESCRIPTORS_PART:
                    return None
                self._shared = SharedBatch(self.batch)
                # From now on both read the same memory.
                self.batch = self._shared.batch
                self._keys = self.batch.column(KEY)
            return self._shared

    def _place(self, key: bytes) -> int:
        place = self._places.get(key)
        if place is None:
            keys = self._keys
            place = bisect_left(range(len(keys)), key, key=lambda at: keys[at].as_py())
            if place == len(keys) or keys[place].as_py() != key:
                place = -1
            self._places[key] = place
        return place


class SharedBatch:
    """Rows in memory that other processes can map; they are copied there once and never change."""

    _numbers: Final = count()
    living: Final["weakref.WeakSet[SharedBatch]"] = weakref.WeakSet()
    """All shared batches of this process. Each holds a file descriptor."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Raises `OSError` if there is no memory, or no file descriptor left."""
        self.number = next(self._numbers)
        """A number that no other batch of this process has."""
        self.schema = batch.schema
        body = batch.serialize()
        self.size_bytes = body.size
        self.fd = os.memfd_create("herd-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.size_bytes)
            with mmap.mmap(self.fd, self.size_bytes) as written:
                written[:] = memoryview(body)
            # Nobody can change it any more, not even a process that receives it.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self.batch = mapped(self.fd, self.size_bytes, batch.schema)
        except BaseException:
            os.close(self.fd)
            raise
        weakref.finalize(self, os.close, self.fd)
        self.living.add(self)


def mapped(fd: int, size_bytes: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows that a `SharedBatch` holds. They stay when `fd` is closed. Raises `OSError`."""
    mapping = _Mapping(fd, size_bytes)
    buffer = pa.foreign_buffer(mapping.address, size_bytes, base=mapping)
    return pa.ipc.read_record_batch(buffer, schema)


class _Mapping:
    """A file's bytes in memory. `mmap.mmap` would hold a file descriptor for as long."""

    _system: Final = ctypes.CDLL(None, use_errno=True)
    _system.mmap.restype = ctypes.c_void_p
    _system.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    )
    _system.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def __init__(self, fd: int, size_bytes: int) -> None:
        # Private, because older kernels refuse to map sealed memory as shared.
        flags, failed = mmap.MAP_PRIVATE, ctypes.c_void_p(-1).value
        address = self._system.mmap(None, size_bytes, mmap.PROT_READ, flags, fd, 0)
        if address is None or address == failed:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self.address: int = address
        weakref.finalize(self, self._system.munmap, address, size_bytes)


def without_places(batch: pa.RecordBatch, places: Sequence[int]) -> pa.RecordBatch:
    """All rows except those in some places."""
    return batch.filter(_all_but(places, batch.num_rows)) if places else batch


def _all_but(places: Sequence[int], count: int) -> pa.Array:
    """Which of so many rows stay: all but those."""
    bits = bytearray(b"\xff" * ((count + 7) // 8))
    for place in places:
        bits[place >> 3] &= ~(1 << (place & 7))
    return pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bits)])


@dataclass(slots=True)
class Want:
    """What a query needs of a table: columns, and the keys from `first` on and under `end`."""

    columns: Sequence[Column]
    hidden: bool
    first: bytes
    end: bytes
    own: Changes = field(default_factory=dict)
    """What the query's transaction has changed in that range."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of what is read."""
        return schema_of(self.columns, hidden=self.hidden)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [*(c.name for c in self.columns), *((KEY, POSITION) if self.hidden else ())]


class Size(NamedTuple):
    """Of rows."""

    rows: int
    size_bytes: int


class Reading(Protocol):
    """A table at a moment."""

    failures: list[BaseException]
    """Where an error while rows are read is put, beside being raised."""

    def read(self, want: Want) -> Any:
        """`TablePages`, or an object that DuckDB can read as a table repeatedly.

        Called in a thread.
        """
        ...

    def describe(self, want: Want) -> str:
        """How it is read, for people."""
        ...

    def size(self, want: Want) -> Size | None:
        """How much is read, at most; None if that is not known, or is more than a few rows."""
        ...

    def close(self) -> None:
        """Let go of it, on the event loop."""
        ...


@dataclass(frozen=True, slots=True)
class TablePages:
    """The rows of a table: pages without the rows in some places, and further rows."""

    schema: pa.Schema
    """The names of the columns that are read."""
    pages: Sequence[tuple[Page, Sequence[int]]]
    added: pa.RecordBatch | None

    def table(self) -> pa.Table:
        """The rows as an Arrow table."""
        names = self.schema.names
        batches = [without_places(page.batch.select(names), places) for page, places in self.pages]
        if self.added is not None:
            batches.append(self.added)
        return pa.Table.from_batches(batches, self.schema)


class Captured:
    """Pages, and what changed since they were made."""

    def __init__(
        self,
        table: Table,
        pages: Sequence[Page],
        changed: Changes,
        snapshot: Snapshot | None = None,
        touched: Sequence[bytes] = (),
    ) -> None:
        self._table = table
        self._pages = pages
        self._changed = changed
        self._snapshot = snapshot
        self.failures: list[BaseException] = []
        self._touched = touched
        """Keys whose values are the snapshot's, not the pages'."""

    def read(self, want: Want) -> TablePages:
        """The pages of the range, and the rows that have changed since."""
        changed = self._changed
        if self._snapshot is not None:
            changed = {**changed, **{key: self._snapshot.get(key) for key in self._touched}}
        if want.own:
            changed = {**changed, **want.own}
        keys = sorted(changed)
        pages = []
        for page in self._in_range(want):
            here = keys[bisect_left(keys, page.first) : bisect_left(keys, page.last + b"\x00")]
            pages.append((page, page.places(here)))
        here = keys[bisect_left(keys, want.first) : bisect_left(keys, want.end)]
        added = [(key, value) for key in here if (value := changed[key]) is not None]
        make = batch_maker(self._table, want.columns, hidden=want.hidden)
        return TablePages(want.schema, pages, make(added) if added else None)

    def describe(self, want: Want) -> str:
        """Pages and changed rows."""
        pages = self._in_range(want)
        rows = sum(page.batch.num_rows for page in pages)
        changed = len(self._changed) + len(self._touched)
        return (
            f"{len(pages)} of {len(self._pages)} pages in memory, {rows} rows; "
            f"{changed} changed since they were made, {len(want.own)} by this transaction"
        )

    def size(self, want: Want) -> Size | None:
        """The rows of the pages of the range, and those that have changed."""
        # How long the values are that only the snapshot has is not known.
        if self._touched or len(self._changed) + len(want.own) > _FEW_ROWS:
            return None
        pages = self._in_range(want)
        changed = [*self._changed.values(), *want.own.values()]
        rows = sum(page.batch.num_rows for page in pages) + len(changed)
        size_bytes = sum(page.size_bytes for page in pages) + sum(map(len, filter(None, changed)))
        return Size(rows, size_bytes)

    def close(self) -> None:
        """Nothing is held."""

    def _in_range(self, want: Want) -> list[Page]:
        return [page for page in self._pages if page.last >= want.first and page.first < want.end]


class Streamed:
    """A snapshot's rows, read as they are asked for."""

    def __init__(self, table: Table, snapshot: Snapshot, turn: Lock, *, owned: bool) -> None:
        self._table = table
        self._snapshot = snapshot
        self._owned = owned
        self._turn = turn
        self.failures: list[BaseException] = []

    def read(self, want: Want) -> "pa.Table | Stream":
        """A stream that begins again for each who reads it."""
        return Stream(want.schema, lambda: self.batches(want))

    def describe(self, want: Want) -> str:
        """That all rows of the range are read from the storage."""
        whole = (want.first, want.end) == rows_of(self._table)
        return "all rows" if whole else "the rows of a range of keys, from the storage"

    def size(self, want: Want) -> Size | None:
        """Not known."""
        return None

    def close(self) -> None:
        """Let go of the snapshot."""
        if self._owned:
            self._snapshot.close()

    def batches(self, want: Want) -> Iterator[pa.RecordBatch]:
        """The rows, with the transaction's own changes."""
        make = batch_maker(self._table, want.columns, hidden=want.hidden)
        own, first, end = want.own, want.first, want.end
        try:
            while first < end:
                # One cursor serves all who read.
                with self._turn:
                    rows = self._snapshot.scan(first, end, _SLICE_ROWS)
                kept = [row for row in rows if row[0] not in own] if own else rows
                if kept:
                    yield make(kept)
                if len(rows) < _SLICE_ROWS:
                    break
                first = rows[-1][0] + b"\x00"
            added = [(key, value) for key, value in own.items() if value is not None]
            if added:
                yield make(added)
        except Exception as error:
            self.failures.append(error)
            raise


class Stream:
    """What Arrow calls a stream, made anew at each look."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.schema = schema
        self.batches = batches

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        capsule: object = reader.__arrow_c_stream__(requested_schema)
        return capsule

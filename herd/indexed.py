"""What a query reads of a table by an index: entries, and the rows that they name.

Invariants:
- Entries and rows are of one snapshot, so each entry names a row that is there.
- A row that the query's own transaction has changed is read from there, whether its entry leads to
  it or not: the query asks each row.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import Final

import pyarrow as pa

from engine import limits
from engine.state.contract import Snapshot
from herd.arrow import batch_maker
from herd.reading import Size, Stream, Streamed, Want
from herd.schema import Table

_PAGE_ENTRIES: Final = 1_024
_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 8 * limits.MIB


class Indexed(Streamed):
    """Rows of a snapshot that ranges of an index's entries name."""

    def __init__(
        self,
        table: Table,
        name: str,
        ranges: Sequence[tuple[bytes, bytes]],
        snapshot: Snapshot,
        turn: Lock,
        *,
        owned: bool,
        rows: int,
    ) -> None:
        """`rows` is how many entries there are in the ranges."""
        super().__init__(table, snapshot, turn, owned=owned)
        self._name = name
        self._ranges = ranges
        self._rows = rows

    def size(self, want: Want) -> Size | None:
        """The rows that the entries name; how long they are is not known before they are read."""
        return Size(self._rows + len(want.own), 0)

    def describe(self, want: Want) -> str:
        """Which index, and how much of it."""
        count = len(self._ranges)
        text = f"rows by index {self._name}, {count} range{'' if count == 1 else 's'} of entries"
        return f"{text}; {len(want.own)} changed by this transaction" if want.own else text

    def read(self, want: Want) -> pa.Table | Stream:
        """A table of Arrow if they fit in one batch, else a stream."""
        some = list(islice(self.batches(want), 2))
        return (
            pa.Table.from_batches(some, want.schema)
            if len(some) < 2
            else Stream(want.schema, lambda: self.batches(want))
        )

    def batches(self, want: Want) -> Iterator[pa.RecordBatch]:
        """The rows, with the transaction's own changes."""
        make = batch_maker(self._table, want.columns, hidden=want.hidden)
        own, found, size_bytes = want.own, list[tuple[bytes, bytes]](), 0
        try:
            for key in self._keys():
                if key in own or not want.first <= key < want.end:
                    continue
                with self._turn:
                    value = self._snapshot.get(key)
                assert value is not None, f"an entry of {self._name} names no row"
                found.append((key, value))
                size_bytes += len(value)
                if len(found) >= _BATCH_ROWS or size_bytes > _BATCH_BYTES:
                    yield make(found)
                    found, size_bytes = [], 0
            found += [(key, value) for key, value in own.items() if value is not None]
            if found:
                yield make(found)
        except Exception as error:
            self.failures.append(error)
            raise

    def _keys(self) -> Iterator[bytes]:
        """The keys of the rows that the entries name."""
        prefix = self._table.prefix
        for first, end in self._ranges:
            while first < end:
                with self._turn:
                    entries = self._snapshot.scan(first, end, _PAGE_ENTRIES)
                for _, primary in entries:
                    yield prefix + primary
                if len(entries) < _PAGE_ENTRIES:
                    break
                first = entries[-1][0] + b"\x00"

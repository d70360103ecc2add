"""AUTO_INCREMENT: the next value of each table that has such a column.

Invariants:
- The leader keeps the next values in memory; a value is given once in a term, whether or not the
  transaction that took it commits.
- A transaction that took some, or that set one by hand, writes how far they are when it commits.
- Commits may overtake each other, so a new leader goes on after the highest of what was written
  and what stands in the rows.
"""

import weakref
from typing import TYPE_CHECKING, Final

from herd.errors import ValueOutOfRange
from herd.keys import AUTO, catalog_key, encoder, successor
from herd.schema import Column, Table
from herd.types import BIGINT, INTEGER_BITS

if TYPE_CHECKING:
    from herd.tablespace import Tablespace
    from herd.transaction import Transaction

_HIGHEST: Final = (1 << 63) - 1
_VALUE_BYTES: Final = 8


class Sequences:
    """The next values of one tablespace's tables. Made by `sequences_of`."""

    def __init__(self, space: "Tablespace") -> None:
        self._space = space
        self._term = 0
        self._next: dict[int, int] = {}
        self._used: weakref.WeakKeyDictionary[Transaction, set[int]] = weakref.WeakKeyDictionary()

    def take(self, transaction: "Transaction", table: Table, column: Column) -> int:
        """The next value. Raises `ValueOutOfRange` at the end of the column's type."""
        value = self._known(transaction, table, column)
        if value >= 1 << INTEGER_BITS[column.type.kind] - 1:
            raise ValueOutOfRange(f"{table.name}.{column.name} has no value left: it is too narrow")
        self._next[table.id] = value + 1
        self._note(transaction, table.id)
        return value

    def pass_over(
        self, transaction: "Transaction", table: Table, column: Column, value: int
    ) -> None:
        """A row has this value by hand: later ones are higher."""
        if value >= self._known(transaction, table, column):
            self._next[table.id] = min(value + 1, _HIGHEST)
            self._note(transaction, table.id)

    def write(self, transaction: "Transaction") -> None:
        """Before a commit: add what has to be known after it."""
        for table_id in self._used.pop(transaction, ()):
            value = self._next.get(table_id)
            if value is not None and table_id in transaction.catalog.tables:
                transaction.set_plain(catalog_key(AUTO, table_id), value.to_bytes(_VALUE_BYTES))

    def _note(self, transaction: "Transaction", table_id: int) -> None:
        used = self._used.get(transaction)
        if used is None:
            used = self._used[transaction] = set()
        used.add(table_id)

    def _known(self, transaction: "Transaction", table: Table, column: Column) -> int:
        if self._term != transaction.term:
            self._term = transaction.term
            self._next = {}
        found = self._next.get(table.id)
        if found is None:
            space = self._space
            written = space.rows_get(catalog_key(AUTO, table.id))
            highest = _highest(space, table, column) + 1
            found = max(highest, 1 if written is None else int.from_bytes(written))
            self._next[table.id] = found
        return found


def beginning_of(table: Table, column: Column) -> bytes | None:
    """What the keys begin with that a column's values come next in, NULL left out; None: no key.

    An AUTO_INCREMENT column needs one: it is how a new leader finds the highest value.
    """
    if table.primary[0] == column.number:
        return table.prefix
    for index in table.indexes:
        if index.columns[0] == column.number:
            prefix = table.prefix[:5] + index.number.to_bytes(2)
            return prefix + b"\x02" if column.nullable else prefix
    return None


def _highest(space: "Tablespace", table: Table, column: Column) -> int:
    """The highest value among the rows, 0 without any."""
    beginning = beginning_of(table, column)
    assert beginning is not None, "such a column leads a key"
    encode, end = encoder(BIGINT), successor(beginning)
    low, high = 0, _HIGHEST
    while low < high:
        middle = low + (high - low + 1) // 2
        if space.rows_scan(beginning + encode(middle), end, 1):
            low = middle
        else:
            high = middle - 1
    return low


def sequences_of(space: "Tablespace") -> Sequences:
    """Those of a tablespace, the same for all who ask."""
    return space.attached(Sequences, lambda: Sequences(space))

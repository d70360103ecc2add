"""How rows of one table are written: derived of the definitions once, used for every row.

Invariants:
- An entry of an index is a function of the row alone, so what a row's change removes and adds is
  known from the row before and after.
"""

from collections.abc import Callable
from typing import NamedTuple

from engine.state.cutting import KEY_BYTES_MAX
from herd.errors import ValueTooLong
from herd.keys import EncodeKey, key_encoder, prefix
from herd.rows import Row, row_decoder
from herd.schema import Building, ForeignKey, Index, Table
from herd.types import Convert, Stored, accepting


class IndexPlan(NamedTuple):
    """One index: which columns, how its keys are made."""

    definition: Index
    prefix: bytes
    encode: EncodeKey

    def beginning(self, values: list[Stored]) -> bytes:
        """What the keys of all entries with these values begin with."""
        return self.prefix + self.encode(values)

    def entry(self, row: Row, primary: bytes) -> tuple[bytes, bool]:
        """The key of a row's entry, and whether no other row may have the same."""
        values = [row[number] for number in self.definition.columns]
        key = self.prefix + self.encode(values)
        if self.definition.unique and None not in values:
            return key, True
        key += primary
        if len(key) > KEY_BYTES_MAX:
            raise ValueTooLong(
                f"index {self.definition.name}: an entry of {len(key)} bytes, with the row's "
                f"primary key; {KEY_BYTES_MAX} fit"
            )
        return key, False


class Reference(NamedTuple):
    """A foreign key, seen from either side."""

    child: Table
    key: ForeignKey


class Plan:
    """Everything that writing rows of `table` needs."""

    def __init__(self, table: Table, children: list[Table]) -> None:
        self.table = table
        self.prefix = table.prefix
        self.primary = table.primary
        self.encode_primary = table.encode_primary
        self.decode: Callable[[bytes], Row] = row_decoder(table)
        self.width = table.width
        self.indexes = [_index_plan(table, index) for index in table.indexes]
        self.parents = [Reference(table, key) for key in table.foreign_keys]
        self.children = [
            Reference(child, key)
            for child in children
            for key in child.foreign_keys
            if key.parent == table.id
        ]
        self.required = [c for c in table.columns if not c.nullable]
        self.accept: dict[int, Convert] = {c.number: accepting(c.type) for c in table.columns}

    def key_of(self, row: Row) -> bytes:
        """The whole key of a row."""
        primary = self.primary
        if len(primary) == 1:
            return self.prefix + self.encode_primary((row[primary[0]],))
        return self.prefix + self.encode_primary([row[number] for number in primary])

    def entries(self, row: Row, key: bytes) -> dict[bytes, bool]:
        """The keys of a row's entries in all indexes, and whether each is unique."""
        primary = key[len(self.prefix) :]
        return dict([index.entry(row, primary) for index in self.indexes])

    def index_over(self, columns: tuple[int, ...]) -> IndexPlan | None:
        """An index that is ready and begins with these columns, in any order of them."""
        count, wanted = len(columns), set(columns)
        for plan in self.indexes:
            definition = plan.definition
            begins_so = set(definition.columns[:count]) == wanted
            if begins_so and definition.state is Building.READY:
                return plan
        return None

    def unique_over(self, columns: tuple[int, ...]) -> IndexPlan | None:
        """The unique index over these columns and no others, in any order of them."""
        for plan in self.indexes:
            definition = plan.definition
            if definition.unique and set(definition.columns) == set(columns):
                return plan
        return None


def _index_plan(table: Table, index: Index) -> IndexPlan:
    columns = [table.by_number[number] for number in index.columns]
    encode = key_encoder(
        tuple(column.type for column in columns), tuple(column.nullable for column in columns)
    )
    return IndexPlan(index, prefix(table.store, index.number), encode)

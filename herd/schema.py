"""What a table is: columns with numbers, keys, indexes and constraints.

Invariants:
- A column's number is its place in every row and is never given to another column; so adding,
  dropping and renaming columns rewrites no row.
- A row that is shorter than a column's number was written before the column: its value is `fill`.
- A table's rows lie in its store; TRUNCATE gives it another store, and the old one is erased.
- Definitions are values: a change makes a new one. What is derived of one is derived once.
"""

import enum
from functools import cached_property
from typing import Any, Final

import msgspec

from herd.errors import NoSuchColumn
from herd.keys import EncodeKey, key_encoder, prefix
from herd.types import ColumnType, Stored

COLUMNS_MAX: Final = 1_600


class Column(msgspec.Struct, frozen=True, array_like=True):
    """A column. `default` is SQL text, "" for none; `fill` is for rows older than the column."""

    number: int
    name: str
    type: ColumnType
    nullable: bool = True
    default: str = ""
    fill: Any = None
    """A `Stored`, which the decoder cannot tell by its type."""
    auto: bool = False
    """AUTO_INCREMENT: an INSERT without a value takes the next one."""


class Building(enum.Enum):
    """How far an index is."""

    READY = "ready"
    BUILDING = "building"
    """Changes maintain it; rows from before are being added; no query may use it yet."""


class Index(msgspec.Struct, frozen=True, array_like=True):
    """A secondary index over columns, named by their numbers. Number 0 is the table itself."""

    number: int
    name: str
    columns: tuple[int, ...]
    unique: bool = False
    state: Building = Building.READY
    constraint: bool = False
    """Made by a UNIQUE of the table: it goes with that constraint, not by DROP INDEX."""


class OnDelete(enum.Enum):
    """What a parent's removal does to its children."""

    RESTRICT = "RESTRICT"
    CASCADE = "CASCADE"
    SET_NULL = "SET NULL"
    SET_DEFAULT = "SET DEFAULT"


class ForeignKey(msgspec.Struct, frozen=True, array_like=True):
    """Columns that name a row of a parent table by its primary key or a unique one."""

    name: str
    columns: tuple[int, ...]
    parent: int
    parent_columns: tuple[int, ...]
    on_delete: OnDelete = OnDelete.RESTRICT
    on_update: OnDelete = OnDelete.RESTRICT


class Check(msgspec.Struct, frozen=True, array_like=True):
    """A condition that no row makes false."""

    name: str
    condition: str


class Table(msgspec.Struct, frozen=True, dict=True):
    """A table. `columns` are those that it has now, in their order for users."""

    id: int
    name: str
    store: int
    columns: tuple[Column, ...]
    primary: tuple[int, ...]
    indexes: tuple[Index, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    checks: tuple[Check, ...] = ()
    next_column: int = 0
    next_index: int = 1
    hidden_key: bool = False
    """Its primary key is a column `_pk` that the database made and `*` leaves out."""
    full_changes: bool = False
    """Its changes are logged with the rows as they were before."""

    @cached_property
    def width(self) -> int:
        """How long a row written now is."""
        return self.next_column

    @cached_property
    def visible(self) -> tuple[Column, ...]:
        """The columns of `*`."""
        return self.columns[1:] if self.hidden_key else self.columns

    @cached_property
    def by_number(self) -> dict[int, Column]:
        """Columns by their number."""
        return {column.number: column for column in self.columns}

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Columns by their name in lower case."""
        return {column.name.lower(): column for column in self.columns}

    @cached_property
    def prefix(self) -> bytes:
        """What the keys of all rows begin with."""
        return prefix(self.store)

    @cached_property
    def encode_primary(self) -> EncodeKey:
        """Makes the key of a row, without its prefix, of the stored values of `primary`."""
        types = tuple(self.by_number[number].type for number in self.primary)
        return key_encoder(types, (False,) * len(types))

    @cached_property
    def auto_column(self) -> Column | None:
        """The AUTO_INCREMENT column, if there is one."""
        return next((column for column in self.columns if column.auto), None)

    def column(self, name: str) -> Column:
        """A column by name, in any case of letters. Raises `NoSuchColumn`."""
        found = self.by_name.get(name.lower())
        if found is None:
            names = ", ".join(column.name for column in self.visible)
            raise NoSuchColumn(f"table {self.name} has no column {name}", hint=f"it has {names}")
        return found


class View(msgspec.Struct, frozen=True):
    """A named query."""

    name: str
    query: str
    columns: tuple[str, ...] = ()


class Counters(msgspec.Struct, frozen=True):
    """What the catalog counts: ids are never given twice."""

    next_id: int = 1
    version: int = 0
    """Raised by every change of a definition."""


def key_of(table: Table, row: list[Stored]) -> bytes:
    """The whole key of a row."""
    return table.prefix + table.encode_primary([row[number] for number in table.primary])

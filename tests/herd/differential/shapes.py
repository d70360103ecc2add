"""Tables as the generator knows them, and the kinds of their columns.

Invariants:
- A kind's text is a type of all three databases, and its literals mean the same in all.
"""

import datetime
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

WORDS: Final = ("ann", "bob", "cow", "dan", "Eve", "fox", "a_b", "", "zoe zoe", "%", "牛")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of column: its type, and values that come up. Without `literal`: only parameters."""

    type: str
    values: tuple[Any, ...]
    literal: bool = True
    key: bool = False


KINDS: Final = {
    "int": Kind("INTEGER", (-7, -1, 0, 1, 2, 3, 5, 10, 100), key=True),
    "big": Kind("BIGINT", (-(1 << 40), -1, 0, 1, 7, 1 << 40)),
    "small": Kind("SMALLINT", (-300, -1, 0, 1, 2, 300)),
    "text": Kind("VARCHAR", WORDS, key=True),
    "real": Kind("DOUBLE", (-2.5, -1.0, 0.0, 0.5, 1.5, 3.0, 100.5)),
    "exact": Kind("DECIMAL(10,2)", tuple(map(Decimal, ("-2.50", "0.00", "0.25", "1.10", "99.99")))),
    "bool": Kind("BOOLEAN", (True, False)),
    "date": Kind(
        "DATE", tuple(datetime.date(2020, month, 28) for month in (1, 2, 6, 12)), key=True
    ),
    "time": Kind("TIMESTAMP", tuple(datetime.datetime(2021, 5, day, 7, 30) for day in (1, 2, 9))),
    "bytes": Kind("BLOB", (b"", b"\x00", b"\x00\xff", b"abc"), literal=False),
    "uuid": Kind("UUID", tuple(uuid.UUID(int=number) for number in (1, 2, 1 << 90)), literal=False),
}
NUMBERS: Final = ("int", "big", "small", "real", "exact")
FIRST: Final = ("int", "int", "text", "real", "exact", "bool", "date")
"""Kinds that columns of new tables have; the others come by ALTER TABLE, too."""


def literal(value: Any) -> str:
    """A value as SQL writes it."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float | Decimal):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


@dataclass
class Shape:
    """A table: its columns with their kinds, keys and constraints."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    required: set[str] = field(default_factory=set)
    defaults: dict[str, str] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    unique: list[str] = field(default_factory=list)
    """Columns that are UNIQUE."""
    indexes: dict[str, tuple[bool, str]] = field(default_factory=dict)
    """Names of indexes: whether unique, and the column."""
    parent: tuple[str, str, str, str] | None = None
    """A column that refers to another table, that table, its key, and ON DELETE."""
    number: int = 0
    """How many columns were added."""

    def created(self, *, references: bool = True) -> list[str]:
        """The statements that make it."""
        parts = [self._column(name) for name in self.columns]
        parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        parts += [f"UNIQUE ({name})" for name in self.unique]
        parts += [f"CHECK ({check})" for check in self.checks]
        if self.parent is not None and references:
            column, table, key, rule = self.parent
            parts.append(f"FOREIGN KEY ({column}) REFERENCES {table} ({key}) {rule}".rstrip())
        return [
            f"CREATE TABLE {self.name} ({', '.join(parts)})",
            *(
                f"CREATE {'UNIQUE ' if unique else ''}INDEX {name} ON {self.name} ({column})"
                for name, (unique, column) in self.indexes.items()
            ),
        ]

    def _column(self, name: str) -> str:
        text = f"{name} {KINDS[self.columns[name]].type}"
        if name in self.required:
            text += " NOT NULL"
        if name in self.defaults:
            text += f" DEFAULT {self.defaults[name]}"
        return text

    def of_kind(self, *kinds: str) -> list[str]:
        """The columns of some kinds."""
        return [name for name, kind in self.columns.items() if kind in kinds]

    def free(self) -> list[str]:
        """Columns that nothing is about, so that all three let go of them."""
        bound = {*self.key, *self.unique, *(column for _, column in self.indexes.values())}
        # Queries join and group by a number.
        bound.add(self.of_kind("int")[0])
        if self.parent is not None:
            bound.add(self.parent[0])
        words = {word for check in self.checks for word in check.replace("(", " ").split()}
        return [name for name in self.columns if name not in bound | words]

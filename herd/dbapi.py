"""The module of PEP 249: `import herd` has all of it, too.

    connection = herd.connect("./data")
    cursor = connection.cursor()
    cursor.execute("SELECT name FROM cows WHERE id = ?", (1,))
    cursor.fetchone()

Invariants:
- A type object equals the type codes of `description` that it stands for, and nothing else.
- Dates and times given as ticks are in the machine's own time zone, as PEP 249 has it.
"""

import datetime
from typing import Final

from herd.connection import Connection, Cursor
from herd.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from herd.opening import connect
from herd.types import Kind

apilevel: Final = "2.0"
threadsafety: Final = 2
"""Threads may share the module and connections."""
paramstyle: Final = "qmark"


class TypeObject:
    """Compares equal to each of the type codes that it stands for."""

    def __init__(self, name: str, *kinds: Kind) -> None:
        self.name = name
        self._codes = frozenset(kind.value for kind in kinds)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TypeObject):
            return self._codes == other._codes and self.name == other.name
        return other in self._codes if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"herd.{self.name}"


STRING: Final = TypeObject("STRING", Kind.VARCHAR, Kind.JSON, Kind.UUID)
BINARY: Final = TypeObject("BINARY", Kind.BLOB)
NUMBER: Final = TypeObject(
    "NUMBER",
    Kind.BOOLEAN,
    Kind.TINYINT,
    Kind.SMALLINT,
    Kind.INTEGER,
    Kind.BIGINT,
    Kind.REAL,
    Kind.DOUBLE,
    Kind.DECIMAL,
)
DATETIME: Final = TypeObject("DATETIME", Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
ROWID: Final = TypeObject("ROWID")
"""No column is one: a table without a primary key hides its own."""

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:
    """The date of so many seconds after the epoch."""
    return datetime.date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> datetime.time:
    """The time of day of so many seconds after the epoch."""
    return datetime.datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    """The moment of so many seconds after the epoch."""
    return datetime.datetime.fromtimestamp(ticks)


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "TypeObject",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

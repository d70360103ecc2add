"""Herd: SQL and key-value tables on a replicated log. `herd.connect(path)` is the door.

The module is one of PEP 249; `herd.aio` is the same with await.
"""

from herd import aio, errors
from herd.connection import Connection, Cursor
from herd.dbapi import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    apilevel,
    paramstyle,
    threadsafety,
)
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
from herd.opening import Herd, connect, open_herd
from herd.store import AsyncHerd, open_folder
from herd.table import AsyncTable, Table
from herd.types import ColumnType, Kind

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "AsyncHerd",
    "AsyncTable",
    "Binary",
    "ColumnType",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "Herd",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "Kind",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Table",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "aio",
    "apilevel",
    "connect",
    "errors",
    "open_folder",
    "open_herd",
    "paramstyle",
    "threadsafety",
]

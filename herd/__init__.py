"""Herd: SQL and key-value tables on a replicated log. `herd.connect(path)` is the door.

The module is one of PEP 249; `herd.aio` is the same with await.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

# Hidden from those who check types: to them each unknown name would be one that there is.
if not TYPE_CHECKING:
    _PLACES = {
        "connection": (
            "Connection",
            "Cursor",
        ),
        "dbapi": (
            "BINARY",
            "DATETIME",
            "NUMBER",
            "ROWID",
            "STRING",
            "Binary",
            "Date",
            "DateFromTicks",
            "Time",
            "TimeFromTicks",
            "Timestamp",
            "TimestampFromTicks",
            "apilevel",
            "paramstyle",
            "threadsafety",
        ),
        "errors": (
            "DatabaseError",
            "DataError",
            "Error",
            "IntegrityError",
            "InterfaceError",
            "InternalError",
            "NotSupportedError",
            "OperationalError",
            "ProgrammingError",
            "Warning",
        ),
        "opening": (
            "Herd",
            "connect",
            "open_herd",
        ),
        "store": (
            "AsyncHerd",
            "open_folder",
        ),
        "table": (
            "AsyncTable",
            "Table",
        ),
        "types": (
            "ColumnType",
            "Kind",
        ),
    }

    def __getattr__(name):
        """Import what a name leads to with its first use: most processes need a few of them."""
        from importlib import import_module

        if name in ("aio", "errors"):
            return import_module(f"herd.{name}")
        for place, names in _PLACES.items():
            if name in names:
                found = getattr(import_module(f"herd.{place}"), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})

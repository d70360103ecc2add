"""Translates errors of the ledger layer and of libraries into the database's errors.

Invariants:
- Every exception is translated here; no other module translates those of a library.
- Libraries are recognised by the names of their modules and classes, without importing them.
- An unknown exception is a bug: it is logged, and raised as `InternalError`.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from engine.errors import (
    AccessRefused,
    DiskFull,
    EngineError,
    EntryTooLarge,
    InvalidRequest,
    NotLeader,
    NoZooKeeper,
    OutcomeUnknown,
    ReplicaFailed,
    Unavailable,
)
from herd import errors as herd

_KINDS: tuple[tuple[type[EngineError], type[herd.Error], str], ...] = (
    (OutcomeUnknown, herd.CommitUnknown, "read what it changed to know"),
    (NotLeader, herd.LeaderUnavailable, "try again: another replica leads, or soon will"),
    (NoZooKeeper, herd.LeaderUnavailable, ""),
    (AccessRefused, herd.AccessDenied, "log in as a user who may do this, or give the secret"),
    (DiskFull, herd.DiskFull, "delete rows, drop tables, or free space; then try again"),
    (Unavailable, herd.LeaderUnavailable, "try again"),
    (EntryTooLarge, herd.TooLarge, "do it in parts"),
    (ReplicaFailed, herd.StorageFailed, "see the replica's log"),
    (InvalidRequest, herd.InterfaceError, ""),
    (EngineError, herd.StorageFailed, ""),
)


def translated(error: EngineError) -> herd.Error:
    """The database's error for one of the engine."""
    for kind, meaning, hint in _KINDS:
        if isinstance(error, kind):
            return meaning(str(error), hint=hint)
    raise AssertionError("every error of the engine is an EngineError")


def database_error(error: BaseException) -> herd.Error:
    """The database's error for any exception; the database's own errors are returned unchanged.

    The result refers neither to the exception nor to its frames.
    """
    if isinstance(error, herd.Error):
        return error
    if isinstance(error, EngineError):
        return translated(error)
    library = type(error).__module__.partition(".")[0]
    if library in _OF_QUERIES or (isinstance(error, OSError) and _TITLE.match(str(error))):
        # Arrow passes on DuckDB's errors in the middle of a result as an OSError.
        return _of_a_query(error)
    if isinstance(error, RecursionError):
        return herd.TooLarge("the statement is nested too deeply")
    for kinds, meaning in _PLAIN:
        if isinstance(error, kinds):
            return meaning(_text(error), hint=_HINTS.get(meaning, ""))
    if library == "sqlglot":
        return herd.NotSupportedError(_text(error), hint="rewrite the statement")
    if type(error) is Exception:
        # RocksDB raises nothing more specific.
        return herd.StorageFailed(_text(error))
    _logger.error("a statement failed because of a bug", exc_info=error)
    return herd.InternalError(f"{type(error).__name__}: {error}", hint="see the log")


_logger = logging.getLogger(__name__)
_OF_QUERIES: Final = frozenset({"_duckdb", "duckdb", "pyarrow"})
_PLAIN: Final[tuple[tuple[type[Exception], type[herd.Error]], ...]] = (
    (MemoryError, herd.TooLarge),
    (OSError, herd.StorageFailed),
    (OverflowError, herd.ValueOutOfRange),
    (UnicodeError, herd.ValueInvalid),
)
_HINTS: Final[dict[type[herd.Error], str]] = {herd.TooLarge: "split it into parts"}
# DuckDB's classes without "Exception" or "Error", and the words before ": " in its messages.
_QUERY_KINDS: Final[dict[str, type[herd.Error]]] = {
    "Conversion": herd.ValueInvalid,
    "OutOfRange": herd.ValueOutOfRange,
    "OutOfMemory": herd.TooLarge,
    "ArrowMemory": herd.TooLarge,
    "ArrowCapacity": herd.TooLarge,
    "ObjectSize": herd.TooLarge,
    "Interrupt": herd.OperationalError,
    "Permission": herd.NotSupportedError,
    "NotImplemented": herd.NotSupportedError,
    "ArrowNotImplemented": herd.NotSupportedError,
    "Parser": herd.SqlSyntaxError,
    "Syntax": herd.SqlSyntaxError,
    "TypeMismatch": herd.TypeMismatch,
    "MismatchType": herd.TypeMismatch,
    "InvalidType": herd.TypeMismatch,
    "ArrowType": herd.TypeMismatch,
    "Binder": herd.ProgrammingError,
    "Catalog": herd.ProgrammingError,
    "InvalidInput": herd.DataError,
    "ArrowInvalid": herd.DataError,
    "IO": herd.StorageFailed,
    "Internal": herd.InternalError,
    "INTERNAL": herd.InternalError,
    "Fatal": herd.InternalError,
    "FATAL": herd.InternalError,
    "TransactionContext": herd.InternalError,
    "ResourceInUse": herd.InternalError,
}
# Messages that are more specific than their class.
_WORDS: Final[tuple[tuple[re.Pattern[str], type[herd.Error]], ...]] = (
    (re.compile(r"Arrow Appender: The maximum"), herd.TooLarge),
    (re.compile(r"[Rr]eferenced column|a column named|column .* not found"), herd.NoSuchColumn),
    (re.compile(r"Referenced table|Table with name"), herd.NoSuchTable),
    (re.compile(r"No function matches|Cannot (compare|mix|combine)"), herd.TypeMismatch),
    (re.compile(r"Values were not provided|Parameter argument/count"), herd.ParametersMismatch),
    (re.compile(r"out of range|Overflow", re.IGNORECASE), herd.ValueOutOfRange),
    (re.compile(r"Division by zero", re.IGNORECASE), herd.DivisionByZero),
    (re.compile(r"Unable to transform python value|Python Conversion"), herd.ValueInvalid),
    (re.compile(r"integer too large"), herd.ValueOutOfRange),
    (re.compile(r"database has been invalidated"), herd.InternalError),
)  # fmt: skip
_NAME_END: Final = re.compile(r"(Exception|Error)$")
_TITLE: Final = re.compile(r"^([A-Za-z -]{2,30}) Error: ")
_TAIL: Final = re.compile(
    r"\n+(LINE \d+:|\s*Candidate |Possible solutions|\* SET |\n).*", re.DOTALL
)


def _of_a_query(error: BaseException) -> herd.Error:
    """The database's error for an error of DuckDB or Arrow."""
    said = str(error)
    if "INTERRUPT" in said:
        return herd.OperationalError("the query was cancelled")
    titled = _TITLE.match(said)
    names = [_NAME_END.sub("", kind.__name__) for kind in type(error).__mro__]
    if titled is not None:
        names.append(titled[1].title().replace(" ", "") if " " in titled[1] else titled[1])
    kind = next((_QUERY_KINDS[name] for name in names if name in _QUERY_KINDS), herd.DatabaseError)
    if kind is not herd.InternalError:
        kind = next((meaning for words, meaning in _WORDS if words.search(said)), kind)
    return kind(_text(error), hint=_HINTS.get(kind, ""))


def _text(error: BaseException) -> str:
    """An exception's message, without the parts that only users of its library need."""
    said = _TAIL.sub("", _TITLE.sub("", str(error))).strip().replace("\n", "; ")
    return said or type(error).__name__


@contextmanager
def translating() -> Iterator[None]:
    """Raise the database's errors for those of the engine."""
    try:
        yield
    except EngineError as error:
        raise translated(error) from error


@contextmanager
def translating_all() -> Iterator[None]:
    """Translate every exception that the block raises, as `database_error` does."""
    try:
        yield
        return
    except Exception as error:
        failure = database_error(error)
    raise failure


def after_logging(error: EngineError) -> Exception:
    """What is told of a command that was given to the log.

    It may be in there although this replica failed at it, and the others apply it.
    """
    if isinstance(error, ReplicaFailed):
        return herd.CommitUnknown(str(error), hint="read what it changed to know")
    return translated(error)

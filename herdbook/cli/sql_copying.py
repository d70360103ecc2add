"""Rows of files into tables, and of tables and queries into files.

    \\copy cow FROM cows.csv            .csv, .parquet, .arrow, .feather
    \\copy (SELECT …) TO cows.parquet   these and .jsonl

Invariants:
- A file's rows are added all or none, unless the caller wants a commit every so many rows.
- A file that is there is not overwritten, and one that could not be finished is not left there.
- CSV: an empty field is NULL, `""` an empty text, both ways; bytes are base64.
"""

import base64
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from herd.connection import Connection
from herd.errors import DataError, Error, ProgrammingError, SqlSyntaxError, TooLarge
from herdbook.cli.sql_output import PAGE_ROWS, Form, Output, csv_rows

_BATCH_ROWS: Final = 5_000
_WORDS: Final = re.compile(
    r"""(?P<what>\(.*\)|"(?:[^"]|"")+"|\w+)\s+(?P<way>from|to)\s+"""
    r"""(?P<file>'[^']+'|"[^"]+"|\S+)\s*;?""",
    re.IGNORECASE | re.DOTALL,
)
_TEXTS: Final = {".csv": Form.CSV, ".jsonl": Form.JSON, ".json": Form.JSON}

Batches = Iterator[list[tuple[Any, ...]]]
Tell = Callable[[int], None]
"""Hears how many rows are done."""


def _silently(count: int) -> None:
    """Nobody wants to hear of it."""


def copy(connection: Connection, text: str) -> str:
    """Do what the words after `\\copy` say; returns what to tell. Raises `Error`, `OSError`."""
    found = _WORDS.fullmatch(text.strip())
    if found is None:
        raise SqlSyntaxError("this is no \\copy", hint="\\copy TABLE FROM FILE.csv, or TO")
    file = Path(found["file"].strip("'\"")).expanduser()
    what = found["what"]
    if found["way"].lower() == "to":
        query = what[1:-1] if what.startswith("(") else f"SELECT * FROM {what}"
        return f"COPY {write_rows(connection, query, file)}"
    if what.startswith("("):
        raise SqlSyntaxError("rows cannot be added to a query", hint="name a table")
    return f"COPY {add_rows(connection, what, file)}"


def write_rows(connection: Connection, query: str, file: Path, tell: Tell = _silently) -> int:
    """Write what a query answers into a new file; returns how many rows.

    Raises `Error`, `OSError`.
    """
    form = _TEXTS.get(file.suffix.lower())
    cursor = connection.execute(query)
    columns = cursor.description
    if columns is None:
        raise ProgrammingError("this answers no rows")
    if form is None:
        from herd.exchange import write_file

        return write_file(cursor.fetch_arrow_table(), file)

    def pages() -> Batches:
        count = 0
        while page := cursor.fetchmany(PAGE_ROWS):
            yield page
            count += len(page)
            tell(count)

    with file.open("x", encoding="utf-8", newline="") as stream:
        try:
            names, kinds = [column[0] for column in columns], [column[1] for column in columns]
            return Output(stream, form).write(names, pages(), kinds)
        except BaseException:
            file.unlink()
            raise


def add_rows(
    connection: Connection,
    table: str,
    file: Path,
    *,
    commit_rows: int = 0,
    tell: Tell = _silently,
) -> int:
    """Add the rows of a file to a table; returns how many. `table` is a name as SQL writes it.

    In the transaction that is open, else in one of its own, or, with `commit_rows`, in one for
    every so many rows. Raises `Error`, which names the rows of the file, and `OSError`.
    """
    own = not connection.in_transaction
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            names, batches = _opened(stream, file)
            batches = _telling(batches, tell)
            count = _add(connection, table, names, batches, file, commit_rows if own else 0)
        if own:
            connection.commit()
    except BaseException as error:
        if own:
            connection.rollback()
        if isinstance(error, ValueError):
            raise DataError(f"{file}: {error}") from error
        raise
    return count


def _telling(batches: Batches, tell: Tell) -> Batches:
    count = 0
    for batch in batches:
        yield batch
        count += len(batch)
        tell(count)


def _opened(stream: Any, file: Path) -> tuple[list[str], Batches]:
    if file.suffix.lower() != ".csv":
        from herd.exchange import read_file

        return read_file(file)
    rows = csv_rows(stream)
    names = [name or "" for name in next(rows, [])]
    if "" in names or not names:
        raise DataError(f"{file} does not begin with the names of columns")
    return names, _csv_batches(rows, len(names))


def _csv_batches(rows: Iterator[list[str | None]], width: int) -> Batches:
    number = 0
    while batch := list(islice(rows, _BATCH_ROWS)):
        for row in batch:
            number += 1
            if len(row) != width:
                raise DataError(f"row {number} has {len(row)} fields, the first line {width}")
        yield [tuple(row) for row in batch]


def _add(
    connection: Connection,
    table: str,
    names: list[str],
    batches: Batches,
    file: Path,
    commit_rows: int,
) -> int:
    quoted = ", ".join('"' + name.strip().replace('"', '""') + '"' for name in names)
    insert = f"INSERT INTO {table} ({quoted}) VALUES ({', '.join('?' * len(names))})"
    asked = connection.execute(f"SELECT {quoted} FROM {table} LIMIT 0").description or []
    binary = [place for place, column in enumerate(asked) if column[1] == "BLOB"]
    if not connection.in_transaction:
        connection.execute("BEGIN")
    count = committed = 0
    for batch in batches:
        given = [_with_bytes(row, binary) for row in batch] if binary else batch
        try:
            connection.executemany(insert, given)
        except Error as error:
            _say_where(error, f"rows {count + 1} to {count + len(batch)} of {file}", committed)
            raise
        count += len(batch)
        if commit_rows and count - committed >= commit_rows:
            connection.commit()
            connection.execute("BEGIN")
            committed = count
    return count


def _say_where(error: Error, where: str, committed: int) -> None:
    if isinstance(error, TooLarge):
        said = "herdbook import --commit-rows 100000 does it in parts"
    else:
        said = f"it is among the {where}"
    if committed:
        said += f"; the first {committed} rows are committed"
    error.hint = f"{error.hint}; {said}" if error.hint else said


def _with_bytes(row: tuple[Any, ...], binary: list[int]) -> tuple[Any, ...]:
    values = list(row)
    for place in binary:
        if isinstance(values[place], str):
            values[place] = base64.b64decode(values[place], validate=True)
    return tuple(values)

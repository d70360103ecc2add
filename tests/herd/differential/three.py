"""Our session, SQLite and DuckDB with the same tables.

Where the two others agree, we must; where they differ, we must be with one of them. A statement
that one refuses counts as refused, whatever the error says.

Invariants:
- After a statement that one of the others took otherwise, that one is given our tables, so every
  statement is judged by itself.
- SQLite has our transactions; DuckDB, which ends one at the first error, has each statement alone
  and is given our tables after a rollback.
- Rows are compared in order where the statement asks for one.
"""

import datetime
import sqlite3
import uuid
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import duckdb

from herd.catalog import rows_of
from herd.errors import Error
from herd.rows import row_decoder, row_reader
from herd.sql.session import Session
from tests.herd.differential.shapes import Shape
from tests.herd.differential.statements import Statement

Answer = tuple[int, tuple[tuple[Any, ...], ...]] | None
"""How many rows were changed, or -1, and the rows; None: it was refused."""

_COUNTED: Final = ("INSERT", "UPDATE", "DELETE")


class Disagreement(AssertionError):
    """We answered what neither of the others did."""


class Three:
    """The three, and what has been counted of them."""

    def __init__(self, session: Session, tables: list[Shape]) -> None:
        self.session = session
        self.tables = tables
        self.refused = 0
        self.disagreed = 0
        self.sqlite = sqlite3.connect(":memory:", isolation_level=None)
        for name, value in (("case_sensitive_like", "ON"), ("foreign_keys", "ON")):
            self.sqlite.execute(f"PRAGMA {name} = {value}")
        self.duck = duckdb.connect(":memory:", config={"threads": 1})
        self._error: Error | None = None

    async def begin(self) -> None:
        """Make the tables."""
        for shape in self.tables:
            for text in shape.created():
                await self.session.execute(text)
                self.sqlite.execute(text)
            for text in shape.created(references=False):
                self.duck.execute(text)

    async def run(self, statement: Statement) -> None:
        """Run a statement in all three, and judge. Raises `Disagreement`."""
        ours = await self._ours(statement)
        lite, duck = self._lite(statement), self._duck(statement)
        self.refused += ours is None
        self.disagreed += lite != duck
        if statement.judged and ours != lite and ours != duck:
            said = self._error if ours is None else ours
            raise Disagreement(
                f"{statement.text} {statement.parameters or ''}\n"
                f"  ours {said}\n  lite {lite}\n  duck {duck}"
            )
        if ours is not None and statement.effect is not None:
            statement.effect()
        if not statement.changes or _is_of_view(statement):
            return
        if not statement.judged or ours != lite:
            self._give_sqlite()
        if not statement.judged or ours != duck or self._took_along(statement):
            self.give_duckdb()

    async def word(self, text: str) -> None:
        """A statement about the transaction, here and in SQLite."""
        await self.session.execute(text)
        self.sqlite.execute(text)

    def compare_tables(self) -> None:
        """All rows of all tables must be the same. Raises `Disagreement`."""
        for shape in self.tables:
            statement = Statement(f"SELECT {', '.join(shape.columns)} FROM {shape.name}")
            ours = _answer(statement, -1, self._rows(shape))
            for name, theirs in (("lite", self._lite(statement)), ("duck", self._duck(statement))):
                if ours != theirs:
                    raise Disagreement(f"rows of {shape.name}\n  ours {ours}\n  {name} {theirs}")

    def _took_along(self, statement: Statement) -> bool:
        """Whether rows may have changed that refer to those of the statement: not in DuckDB."""
        parents = {shape.parent[1] for shape in self.tables if shape.parent is not None}
        return statement.kind == "DELETE" and statement.text.split(" ")[2] in parents

    def close(self) -> None:
        """Let go of the others."""
        self.sqlite.close()
        self.duck.close()

    async def _ours(self, statement: Statement) -> Answer:
        try:
            result = await self.session.execute(statement.text, statement.given)
        except Error as error:
            self._error = error
            return None
        except Exception as error:
            raise Disagreement(f"{statement.text} {statement.parameters}: {error!r}") from error
        return _answer(statement, result.count, result.rows)

    def _lite(self, statement: Statement) -> Answer:
        given = {name: _for_sqlite(value) for name, value in statement.parameters.items()}
        try:
            cursor = self.sqlite.execute(statement.text, given)
            rows = cursor.fetchall()
        except (sqlite3.Error, OverflowError):
            return None
        return _answer(statement, len(rows) if rows else cursor.rowcount, rows)

    def _duck(self, statement: Statement) -> Answer:
        try:
            rows = self.duck.execute(statement.text, statement.given).fetchall()
        except (duckdb.Error, UnicodeDecodeError):
            return None
        counted = statement.kind in _COUNTED and not statement.answers
        return _answer(statement, rows[0][0] if counted and rows else len(rows), rows)

    # Giving the others our tables

    def _rows(self, shape: Shape) -> list[tuple[Any, ...]]:
        """Our rows of a table, as they are stored."""
        space, transaction = self.session.space, self.session.transaction
        catalog = space.catalog if transaction is None else transaction.catalog
        scan = space.rows_scan if transaction is None else transaction.scan
        table = catalog.table(shape.name)
        decode, read = row_decoder(table), row_reader([table.column(n) for n in shape.columns])
        return [read(decode(value)) for _, value in scan(*rows_of(table), 10_000)]

    def _give_sqlite(self) -> None:
        tables = self._drop_all(
            self.sqlite.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        )
        self.sqlite.execute("PRAGMA defer_foreign_keys = ON")
        for name in tables:
            self.sqlite.execute(f"DROP TABLE IF EXISTS {name}")
        for shape in self.tables:
            for text in shape.created():
                self.sqlite.execute(text)
            rows = [tuple(map(_for_sqlite, row)) for row in self._rows(shape)]
            if rows:
                self.sqlite.executemany(_filling(shape), rows)
        self.sqlite.execute("PRAGMA defer_foreign_keys = OFF")

    def give_duckdb(self) -> None:
        """Give DuckDB our tables."""
        found = self.duck.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        for name in self._drop_all(found):
            self.duck.execute(f"DROP TABLE IF EXISTS {name}")
        for shape in self.tables:
            for text in shape.created(references=False):
                self.duck.execute(text)
            rows = self._rows(shape)
            if rows:
                values = [value for row in rows for value in row]
                self.duck.execute(_filling(shape, len(rows)), values)

    def _drop_all(self, found: Iterable[tuple[Any, ...]]) -> list[str]:
        """Names of tables, the children of others first."""
        names = [row[0] for row in found]
        parents = {shape.parent[1] for shape in self.tables if shape.parent is not None}
        return sorted(names, key=lambda name: (name in parents or name == "cow", name))


def _filling(shape: Shape, count: int = 1) -> str:
    row = f"({', '.join('?' for _ in shape.columns)})"
    rows = ", ".join(row for _ in range(count))
    return f"INSERT INTO {shape.name} ({', '.join(shape.columns)}) VALUES {rows}"


def _is_of_view(statement: Statement) -> bool:
    return " VIEW " in statement.text


def _answer(statement: Statement, count: int, rows: Iterable[tuple[Any, ...]]) -> Answer:
    counted = count if statement.kind in _COUNTED else -1
    if not statement.answers:
        return counted, ()
    found = [tuple(map(_plain, row)) for row in rows]
    if " ORDER BY " not in statement.text or " OVER " in statement.text:
        found.sort(key=repr)
    return counted, tuple(found)


def _plain(value: Any) -> Any:
    """A value in a form that all three have."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal | float):
        number = float(f"{float(value):.12g}") + 0.0
        return int(number) if number == int(number) else number
    if isinstance(value, datetime.date | uuid.UUID):
        return str(value)
    return value


def _for_sqlite(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime.date | uuid.UUID):
        return str(value)
    return value

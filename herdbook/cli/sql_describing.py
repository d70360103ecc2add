"""What `\\d` and its like answer: made of the system tables, so it works over every connection.

Invariants:
- What is asked runs in the user's own transaction and sees what it has defined.
"""

from collections.abc import Iterator
from typing import Any, Final

from herd.connection import Connection
from herd.errors import NoSuchTable

Sheet = tuple[str, list[str], list[tuple[Any, ...]]]
"""A title, names of columns, rows."""

_TABLES: Final = """
SELECT t.table_name AS name, s.row_count AS "rows", s.memory_bytes, t.full_changes
FROM systables t LEFT JOIN systablestats s ON s.table_name = t.table_name
WHERE NOT t.is_view ORDER BY lower(t.table_name)
"""
_VIEWS: Final = "SELECT table_name AS name FROM systables WHERE is_view ORDER BY lower(table_name)"
_INDEXES: Final = """
SELECT i.table_name AS "table", i.index_name AS name,
    (SELECT string_agg(c.column_name, ', ' ORDER BY c.ordinal_position) FROM sysindexcolumns c
     WHERE c.table_name = i.table_name AND c.index_name = i.index_name) AS columns,
    i."unique", i.index_type AS type, i.state
FROM sysindexes i
"""
_COLUMNS: Final = """
SELECT column_name AS name, data_type AS type, is_nullable AS nullable,
    CASE WHEN auto_increment THEN 'AUTO_INCREMENT' ELSE default_value END AS "default",
    primary_position + 1 AS key
FROM syscolumns WHERE lower(table_name) = lower(?) ORDER BY ordinal_position
"""
_REFERENCES: Final = """
SELECT foreign_key_name AS name, table_name AS "table",
    string_agg(column_name, ', ' ORDER BY ordinal_position) AS columns,
    parent_table_name AS parent,
    string_agg(parent_column_name, ', ' ORDER BY ordinal_position) AS parent_columns,
    on_delete, on_update
FROM sysforeignkeys WHERE lower({side}) = lower(?)
GROUP BY foreign_key_name, table_name, parent_table_name, on_delete, on_update
ORDER BY "table", name
"""


def tables(connection: Connection) -> Sheet:
    """The tables, with what is known of their sizes."""
    return _asked(connection, "tables", _TABLES)


def views(connection: Connection) -> Sheet:
    """The views."""
    return _asked(connection, "views", _VIEWS)


def indexes(connection: Connection, table: str = "") -> Sheet:
    """The indexes of a table, or of all."""
    if not table:
        return _asked(connection, "indexes", f"{_INDEXES} ORDER BY 1, 2")
    where = "WHERE lower(i.table_name) = lower(?) ORDER BY 1, 2"
    return _asked(connection, "indexes", f"{_INDEXES} {where}", table)


def described(connection: Connection, name: str) -> Iterator[Sheet]:
    """All of a table or a view. Raises `NoSuchTable`."""
    found = _asked(
        connection, "", "SELECT table_name, is_view FROM systables WHERE lower(table_name) = ?",
        name.lower(),
    )[2]  # fmt: skip
    if not found:
        raise NoSuchTable(f"there is no table or view {name}", hint="\\d lists them")
    exact, is_view = found[0]
    if is_view:
        yield _view_columns(connection, exact)
        yield _definition(connection, "VIEW", exact)
        return
    yield _asked(connection, f"table {exact}", _COLUMNS, exact)
    yield indexes(connection, exact)
    for title, side in (("foreign keys", "table_name"), ("referred to by", "parent_table_name")):
        sheet = _asked(connection, title, _REFERENCES.format(side=side), exact)
        if sheet[2]:
            yield sheet
    text = _definition(connection, "TABLE", exact)[2][0][0]
    checks = [(line.strip().rstrip(","),) for line in text.splitlines() if " CHECK (" in line]
    if checks:
        yield "checks", ["check"], list(checks)


def names(connection: Connection) -> set[str]:
    """The names of all tables, views and columns."""
    found: set[str] = set()
    for query in ("SELECT table_name FROM systables", "SELECT column_name FROM syscolumns"):
        found |= {row[0] for row in connection.execute(query)}
    return found


def _asked(connection: Connection, title: str, query: str, *parameters: Any) -> Sheet:
    cursor = connection.execute(query, parameters)
    columns = [column[0] for column in cursor.description or ()]
    return title, columns, cursor.fetchall()


def _view_columns(connection: Connection, name: str) -> Sheet:
    quoted = '"' + name.replace('"', '""') + '"'
    cursor = connection.execute(f"SELECT * FROM {quoted} LIMIT 0")
    rows = [(column[0], column[1]) for column in cursor.description or ()]
    return f"view {name}", ["name", "type"], list(rows)


def _definition(connection: Connection, kind: str, name: str) -> Sheet:
    quoted = '"' + name.replace('"', '""') + '"'
    row = connection.execute(f"SHOW CREATE {kind} {quoted}").fetchone()
    assert row is not None, "a table that was found has a definition"
    return "definition", ["definition"], [(row[1],)]

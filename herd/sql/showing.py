"""SHOW, DESCRIBE and EXPLAIN: what there is and how a statement would run.

Invariants:
- SHOW CREATE TABLE answers a statement that makes the same table again.
"""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from herd.catalog import Catalog
from herd.errors import NoSuchTable, NotSupportedError, SqlSyntaxError
from herd.schema import Building, Column, ForeignKey, OnDelete, Table, View
from herd.sql.fast import DeleteByKey, SelectByKey, UpdateByKey
from herd.sql.parsing import Parsed, bind, is_long
from herd.sql.result import Result, ResultColumn
from herd.sql.writing import Delete, Update
from herd.translating import translating
from herd.types import BIGINT, TEXT, ColumnType, Kind

if TYPE_CHECKING:
    from herd.sql.session import Session

Parameters = Sequence[Any] | Mapping[str, Any]


async def run(session: "Session", parsed: Parsed) -> Result:
    """Answer one of these statements. Raises `SqlSyntaxError`, `NoSuchTable`."""
    pieces = parsed.pieces
    words = [piece.upper() for piece in pieces]
    transaction = session.transaction
    catalog = session.space.catalog if transaction is None else transaction.catalog
    if parsed.word in ("DESCRIBE", "DESC") and len(pieces) == 2:
        return _describe(catalog, pieces[1])
    if words == ["SHOW", "CHECKPOINTS"]:
        return await _checkpoints(session)
    if words == ["SHOW", "TABLES"]:
        return _texts("SHOW TABLES", ["name"], [(name,) for name in catalog.names])
    if words[1:2] == ["COLUMNS"] and len(words) == 4:
        return _describe(catalog, pieces[3])
    if words[1:2] in (["INDEX"], ["INDEXES"]) and len(words) == 4:
        return _indexes(catalog.table(pieces[3]))
    if words[1:3] == ["CREATE", "TABLE"] and len(words) in (4, 6):
        name = _find(catalog, pieces[3])
        return _texts(
            "SHOW CREATE TABLE", ["name", "sql"], [(name.name, create_text(name, catalog))]
        )
    if words[1:3] == ["CREATE", "VIEW"] and len(words) == 4:
        name = _find(catalog, pieces[3])
        return _texts(
            "SHOW CREATE VIEW", ["name", "sql"], [(name.name, create_text(name, catalog))]
        )
    raise SqlSyntaxError(
        f"there is no such {parsed.word}",
        place=parsed.start,
        hint="SHOW TABLES, COLUMNS FROM t, INDEXES FROM t, CREATE TABLE t, CHECKPOINTS; "
        "systablespaces and the other system tables have the rest",
    )


def _texts(kind: str, names: list[str], rows: list[tuple[Any, ...]]) -> Result:
    return Result(tuple(ResultColumn(name, TEXT) for name in names), rows, len(rows), None, kind)


async def _checkpoints(session: "Session") -> Result:
    """Those that are kept, the oldest first."""
    checkpointer = session.space.checkpointer
    if checkpointer is None:
        raise NotSupportedError(f"{session.space.name} was opened without checkpoints")
    with translating():
        listed = await checkpointer.list.get()
    pinned = Counter(pin.number for pin in listed.pins)
    names = ["number", "ledger", "entry", "epoch", "taken", "pins"]
    kinds = [BIGINT, BIGINT, BIGINT, BIGINT, ColumnType(Kind.TIMESTAMPTZ), BIGINT]
    rows = [
        (
            one.number,
            *(one.position.ledger, one.position.entry, one.epoch),
            datetime.datetime.fromtimestamp(one.taken_ms / 1000, datetime.UTC),
            pinned[one.number],
        )
        for one in listed.kept
    ]
    columns = tuple(ResultColumn(name, kind) for name, kind in zip(names, kinds, strict=True))
    return Result(columns, rows, len(rows), None, "SHOW CHECKPOINTS")


def _find(catalog: Catalog, name: str) -> Table | View:
    found = catalog.find(name)
    if found is None:
        raise NoSuchTable(f"there is no table {name}", hint="SHOW TABLES lists them")
    return found


def _describe(catalog: Catalog, name: str) -> Result:
    found = _find(catalog, name)
    if isinstance(found, View):
        raise NotSupportedError(f"{name} is a view", hint=f"SHOW CREATE VIEW {name}")
    rows = [
        (
            column.name,
            column.type.sql,
            "YES" if column.nullable else "NO",
            _key_word(found, column),
            column.default or None,
            "auto_increment" if column.auto else "",
        )
        for column in found.visible
    ]
    return _texts("DESCRIBE", ["name", "type", "null", "key", "default", "extra"], rows)


def _key_word(table: Table, column: Column) -> str:
    if column.number in table.primary:
        return "PRI"
    for index in table.indexes:
        if index.columns[0] == column.number:
            return "UNI" if index.unique and len(index.columns) == 1 else "MUL"
    return ""


def _indexes(table: Table) -> Result:
    names = table.by_number
    rows = [("PRIMARY", "YES", ", ".join(names[n].name for n in table.primary), "ready")]
    rows += [
        (
            index.name,
            "YES" if index.unique else "NO",
            ", ".join(names[n].name for n in index.columns),
            str(index.state.value),
        )
        for index in table.indexes
    ]
    return _texts("SHOW INDEXES", ["name", "unique", "columns", "state"], rows)


# Definitions as text


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def create_text(found: Table | View, catalog: Catalog) -> str:
    """The statements that make a table, with its indexes, or a view."""
    if isinstance(found, View):
        names = f" ({', '.join(map(quoted, found.columns))})" if found.columns else ""
        return f"CREATE VIEW {quoted(found.name)}{names} AS {found.query}"
    lines = [_column_text(column) for column in found.visible]
    if not found.hidden_key:
        lines.append(f"PRIMARY KEY {_names(found, found.primary)}")
    for index in found.indexes:
        if index.constraint:
            columns = _names(found, index.columns)
            lines.append(f"CONSTRAINT {quoted(index.name)} UNIQUE {columns}")
    for check in found.checks:
        lines.append(f"CONSTRAINT {quoted(check.name)} CHECK ({check.condition})")
    made, later = _indexes_of_keys(found), list[str]()
    for key in found.foreign_keys:
        text = _foreign_key_text(found, key, catalog)
        if key.name in made:
            lines.append(text)
        else:
            later.append(f"ALTER TABLE {quoted(found.name)} ADD {text}")
    body = ",\n    ".join(lines)
    after = " WITH (changes = 'full')" if found.full_changes else ""
    statements = [f"CREATE TABLE {quoted(found.name)} (\n    {body}\n){after}"]
    for index in found.indexes:
        own = index.constraint or index.name in made.values()
        if not own and index.state is Building.READY:
            unique = "UNIQUE " if index.unique else ""
            columns = _names(found, index.columns)
            statements.append(
                f"CREATE {unique}INDEX {quoted(index.name)} ON {quoted(found.name)} {columns}"
            )
    return ";\n".join([*statements, *later])


def _indexes_of_keys(table: Table) -> dict[str, str]:
    """The foreign keys that need no index but one that comes with them, and its name, or ""."""
    found = {}
    for key in table.foreign_keys:
        count = len(key.columns)
        kept = [table.primary, *(i.columns for i in table.indexes if i.constraint)]
        if any(columns[:count] == key.columns for columns in kept):
            found[key.name] = ""
            continue
        others = [i for i in table.indexes if i.columns[:count] == key.columns]
        names = "_".join(table.by_number[number].name for number in key.columns)
        own = f"{table.name}_{names}_index"
        if [(i.name, i.columns, i.unique) for i in others] == [(own, key.columns, False)]:
            found[key.name] = own
    return found


def _column_text(column: Column) -> str:
    text = f"{quoted(column.name)} {column.type.sql}"
    if not column.nullable:
        text += " NOT NULL"
    if column.default:
        text += f" DEFAULT {column.default}"
    return f"{text} AUTO_INCREMENT" if column.auto else text


def _names(table: Table, numbers: Sequence[int]) -> str:
    return f"({', '.join(quoted(table.by_number[number].name) for number in numbers)})"


def _foreign_key_text(table: Table, key: ForeignKey, catalog: Catalog) -> str:
    parent = table if key.parent == table.id else catalog.tables[key.parent]
    text = (
        f"CONSTRAINT {quoted(key.name)} FOREIGN KEY {_names(table, key.columns)} "
        f"REFERENCES {quoted(parent.name)} {_names(parent, key.parent_columns)}"
    )
    for word, rule in (("DELETE", key.on_delete), ("UPDATE", key.on_update)):
        if rule is not OnDelete.RESTRICT:
            text += f" ON {word} {rule.value}"
    return text


# EXPLAIN


async def explain(session: "Session", parsed: Parsed, parameters: Parameters) -> Result:
    """How a statement would run. Raises as `Session.planned`, and `NotSupportedError`."""
    planned = await session.planned(parsed.rest(1))
    inner, statement = planned.parsed, planned.statement
    if inner.tree is None:
        raise NotSupportedError(f"EXPLAIN {inner.word}")
    if isinstance(statement, SelectByKey | UpdateByKey | DeleteByKey):
        verb = {"SELECT": "reads", "UPDATE": "changes", "DELETE": "removes"}[statement.kind]
        text = f"{verb} one row of {statement.table.name} by its primary key"
    elif inner.word in ("SELECT", "WITH", "VALUES", "FROM"):
        given = bind(inner, parameters)
        text = await session.query.explain(inner.tree, given, session.transaction)
    else:
        kind = statement.kind if statement else inner.word
        text = f"{kind} in rows found by a query, one by one locked"
    if isinstance(statement, Update | Delete):
        make = partial(statement.target.query, bind(inner, parameters))
        query = await session.query.built(make, long=is_long(inner.tree))
        text += f"\n{await session.query.explain(query, (), session.transaction)}"
    return _texts("EXPLAIN", ["plan"], [(line,) for line in text.splitlines()])

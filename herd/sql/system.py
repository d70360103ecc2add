"""The tables that describe a tablespace, made when somebody asks.

    systables, syscolumns, sysindexes, sysindexcolumns, sysforeignkeys    definitions
    systablestats, systransactions, sysstatements, sysclients            what goes on
    sysconfig                                                            what it was set to
    systablespaces, systablespacereplicastate, sysnodes                  the cluster, or this alone
    syslogstatus                                                         what this replica knows
    information_schema.tables, .columns                                  the standard's names
    dual                                                                 one row

Invariants:
- What they say of definitions is what the asking transaction's catalog says.
- Nothing is kept for them: a system table is a function of the moment, and of who asks. Of other
  users' sessions only administrators hear, of tablespaces only those who may read them.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from engine.log.position import Position
from herd.catalog import Catalog
from herd.columns import ColumnCache
from herd.permits import may_see_session, may_see_space
from herd.schema import Column, Table
from herd.sql.clients import clients_of
from herd.tablespace import Tablespace
from herd.types import INTEGER_BITS, Kind

_TEXT: Final = pa.string()
_NUMBER: Final = pa.int64()
_TRUTH: Final = pa.bool_()
_TEXT_CHARACTERS: Final = 1_000
"""So much of a statement is shown."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Where the rows come from."""

    space: Tablespace
    catalog: Catalog
    columns: ColumnCache

    @property
    def tables(self) -> list[Table]:
        """All tables, by name."""
        return sorted(self.catalog.tables.values(), key=lambda table: table.name.lower())


Rows = Iterable[tuple[Any, ...]]
Shape = dict[str, pa.DataType]


def is_system(name: str) -> bool:
    """Whether a name, in lower case, is that of a system table."""
    return name in _TABLES


def system_table(name: str, space: Tablespace, catalog: Catalog, columns: ColumnCache) -> pa.Table:
    """A system table as it is now."""
    shape, make = _TABLES[name]
    rows = list(make(_Asked(space, catalog, columns)))
    arrays = [
        pa.array([row[place] for row in rows], kind) for place, kind in enumerate(shape.values())
    ]
    return pa.Table.from_arrays(arrays, names=list(shape))


def _tables(asked: _Asked) -> Rows:
    space = asked.space.name
    for table in asked.tables:
        yield space, table.name, str(table.id), False, table.hidden_key, table.full_changes
    for view in sorted(asked.catalog.views.values(), key=lambda view: view.name.lower()):
        yield space, view.name, None, True, False, False


def _columns(asked: _Asked) -> Rows:
    for table in asked.tables:
        for place, column in enumerate(table.visible):
            yield (
                asked.space.name,
                table.name,
                column.name,
                place,
                column.type.sql,
                column.nullable,
                column.auto,
                column.default or None,
                table.primary.index(column.number) if column.number in table.primary else None,
            )


def _indexes(asked: _Asked) -> Rows:
    space = asked.space.name
    for table in asked.tables:
        yield space, table.name, f"{table.name}_primary", "primary", True, "ready"
        for index in table.indexes:
            kind = "constraint" if index.constraint else "index"
            yield space, table.name, index.name, kind, index.unique, index.state.value


def _index_columns(asked: _Asked) -> Rows:
    space = asked.space.name
    for table in asked.tables:
        keys = [(f"{table.name}_primary", True, table.primary)]
        keys += [(index.name, index.unique, index.columns) for index in table.indexes]
        for name, unique, numbers in keys:
            for place, number in enumerate(numbers):
                yield space, table.name, name, unique, place, table.by_number[number].name


def _foreign_keys(asked: _Asked) -> Rows:
    for table in asked.tables:
        for key in table.foreign_keys:
            parent = asked.catalog.tables[key.parent]
            for place, number in enumerate(key.columns):
                yield (
                    asked.space.name,
                    table.name,
                    key.name,
                    place,
                    table.by_number[number].name,
                    parent.name,
                    parent.by_number[key.parent_columns[place]].name,
                    key.on_delete.value,
                    key.on_update.value,
                )


def _statistics(asked: _Asked) -> Rows:
    for table in asked.tables:
        rows, pages, changed, size_bytes = asked.columns.statistics(table) or (None,) * 4
        yield asked.space.name, table.name, rows, pages, changed, size_bytes


def _transactions(asked: _Asked) -> Rows:
    now_s = asked.space.clock.monotonic()
    for transaction in asked.space.transactions:
        yield (
            asked.space.name,
            transaction.number,
            transaction.isolation.value,
            len(transaction.locks),
            transaction.size_bytes,
            transaction.waiting is not None,
            round((now_s - transaction.used_s) * 1000),
        )


def _statements(asked: _Asked) -> Rows:
    now_s = asked.space.clock.monotonic()
    for number, session in clients_of(asked.space).sessions():
        running = session.running
        if running is not None and may_see_session(session.permits):
            open_one = session.transaction
            yield (
                asked.space.name,
                number,
                open_one.number if open_one is not None else None,
                running.text[:_TEXT_CHARACTERS],
                round((now_s - running.began_s) * 1000),
            )


def _clients(asked: _Asked) -> Rows:
    now_s = asked.space.clock.monotonic()
    for number, session in clients_of(asked.space).sessions():
        if not may_see_session(session.permits):
            continue
        yield (
            asked.space.name,
            number,
            session.client or None,
            session.autocommit,
            session.transaction.number if session.transaction is not None else None,
            session.running is not None,
            round((now_s - session.opened_s) * 1000),
        )


def _config(asked: _Asked) -> Rows:
    for name, value in sorted(asdict(asked.space.settings).items()):
        yield asked.space.name, name, str(value)


def _spaces(asked: _Asked) -> Rows:
    space, count = asked.space, len(asked.catalog.tables)
    if space.cluster is None:
        yield space.name, None, space.replica.leader or None, None, None, None, None, count
        return
    for row in space.cluster.space_rows():
        if not may_see_space(str(row[0])):
            continue
        yield *row, count if row[0] == space.name else None


def _replicas(asked: _Asked) -> Rows:
    space, position = asked.space, _position(asked)
    own = (space.replica.role.value, space.term or None, position.ledger, position.entry)
    if space.cluster is None:
        yield space.name, None, *own
        return
    for row in space.cluster.replica_rows():
        if not may_see_space(str(row[0])):
            continue
        is_own = row[0] == space.name and row[1] == space.cluster.node_id
        yield (*row[:2], *own) if is_own else row


def _nodes(asked: _Asked) -> Rows:
    space = asked.space
    if space.cluster is not None:
        yield from space.cluster.node_rows()
    elif space.replica.leader:
        yield None, space.replica.leader, None, 1, 1, True


def _log(asked: _Asked) -> Rows:
    position = _position(asked)
    yield asked.space.name, position.ledger, position.entry, asked.space.replica.role.value


def _position(asked: _Asked) -> Position:
    return asked.space.stale_read(lambda rows: None)[1]


def _standard_tables(asked: _Asked) -> Rows:
    for table in asked.tables:
        yield asked.space.name, asked.space.name, table.name, "BASE TABLE"
    for view in sorted(asked.catalog.views.values(), key=lambda view: view.name.lower()):
        yield asked.space.name, asked.space.name, view.name, "VIEW"


def _standard_columns(asked: _Asked) -> Rows:
    for table in asked.tables:
        for place, column in enumerate(table.visible, 1):
            yield (
                asked.space.name,
                asked.space.name,
                table.name,
                column.name,
                place,
                column.default or None,
                "YES" if column.nullable else "NO",
                column.type.sql,
                column.type.size if column.type.kind is Kind.VARCHAR and column.type.size else None,
                *_precision(column),
            )


def _precision(column: Column) -> tuple[int | None, int | None]:
    if column.type.kind is Kind.DECIMAL:
        return column.type.size, column.type.scale
    return INTEGER_BITS.get(column.type.kind), None


def _dual(asked: _Asked) -> Rows:
    yield ("X",)


def _texts(*names: str) -> Shape:
    return dict.fromkeys(names, _TEXT)


_NAMED: Final = _texts("tablespace", "table_name")
_STANDARD: Final = _texts("table_catalog", "table_schema", "table_name")
_TABLES: Final[dict[str, tuple[Shape, Callable[[_Asked], Rows]]]] = {
    "systables": (
        {
            **_NAMED,
            "table_uuid": _TEXT,
            "is_view": _TRUTH,
            "hidden_key": _TRUTH,
            "full_changes": _TRUTH,
        },
        _tables,
    ),
    "syscolumns": (
        {
            **_NAMED,
            "column_name": _TEXT,
            "ordinal_position": _NUMBER,
            "data_type": _TEXT,
            "is_nullable": _TRUTH,
            "auto_increment": _TRUTH,
            "default_value": _TEXT,
            "primary_position": _NUMBER,
        },
        _columns,
    ),
    "sysindexes": (
        {**_NAMED, **_texts("index_name", "index_type"), "unique": _TRUTH, "state": _TEXT},
        _indexes,
    ),
    "sysindexcolumns": (
        {
            **_NAMED,
            "index_name": _TEXT,
            "unique": _TRUTH,
            "ordinal_position": _NUMBER,
            "column_name": _TEXT,
        },
        _index_columns,
    ),
    "sysforeignkeys": (
        {
            **_NAMED,
            "foreign_key_name": _TEXT,
            "ordinal_position": _NUMBER,
            **_texts("column_name", "parent_table_name", "parent_column_name"),
            **_texts("on_delete", "on_update"),
        },
        _foreign_keys,
    ),
    "systablestats": (
        {
            **_NAMED,
            **dict.fromkeys(("row_count", "pages", "changed_rows", "memory_bytes"), _NUMBER),
        },
        _statistics,
    ),
    "systransactions": (
        {
            "tablespace": _TEXT,
            "transaction_id": _NUMBER,
            "isolation": _TEXT,
            "locks": _NUMBER,
            "changed_bytes": _NUMBER,
            "waiting": _TRUTH,
            "idle_ms": _NUMBER,
        },
        _transactions,
    ),
    "sysstatements": (
        {
            "tablespace": _TEXT,
            **dict.fromkeys(("client_id", "transaction_id"), _NUMBER),
            "query": _TEXT,
            "running_ms": _NUMBER,
        },
        _statements,
    ),
    "sysclients": (
        {
            "tablespace": _TEXT,
            "client_id": _NUMBER,
            "process": _TEXT,
            "autocommit": _TRUTH,
            "transaction_id": _NUMBER,
            "running": _TRUTH,
            "open_ms": _NUMBER,
        },
        _clients,
    ),
    "sysconfig": (_texts("tablespace", "config_name", "config_value"), _config),
    "systablespaces": (
        {
            **_texts("tablespace_name", "tablespace_uuid", "leader", "leader_node"),
            **_texts("designated_leader", "replicas"),
            **dict.fromkeys(("expected_replicas", "table_count"), _NUMBER),
        },
        _spaces,
    ),
    "systablespacereplicastate": (
        {
            **_texts("tablespace_name", "node_id", "mode"),
            **dict.fromkeys(("term", "ledger", "entry"), _NUMBER),
        },
        _replicas,
    ),
    "sysnodes": (
        {
            **_texts("node_id", "address"),
            "started": pa.timestamp("ms"),
            **dict.fromkeys(("replicas", "leads"), _NUMBER),
            "leader": _TRUTH,
        },
        _nodes,
    ),
    "syslogstatus": (
        {"tablespace_name": _TEXT, "ledger": _NUMBER, "entry": _NUMBER, "status": _TEXT},
        _log,
    ),
    "information_schema.tables": ({**_STANDARD, "table_type": _TEXT}, _standard_tables),
    "information_schema.columns": (
        {
            **_STANDARD,
            "column_name": _TEXT,
            "ordinal_position": _NUMBER,
            **_texts("column_default", "is_nullable", "data_type"),
            "character_maximum_length": _NUMBER,
            "numeric_precision": _NUMBER,
            "numeric_scale": _NUMBER,
        },
        _standard_columns,
    ),
    "dual": ({"dummy": _TEXT}, _dual),
}

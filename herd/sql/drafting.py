"""The definition of a new table, from what CREATE TABLE says.

Invariants:
- A table without a primary key gets a column `_pk` that counts by itself and that `*` leaves out.
- What cannot be kept as it is written is refused: nothing of a definition is left out in silence.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from herd.catalog import Catalog
from herd.errors import (
    NameTaken,
    NotSupportedError,
    ProgrammingError,
    TooLarge,
    TypeMismatch,
)
from herd.schema import COLUMNS_MAX, Column, Table
from herd.sequences import beginning_of
from herd.sql.constraints import (
    changed,
    check_ordered,
    numbers_of,
    with_check,
    with_foreign_key,
    with_index,
)
from herd.sql.expressions import DEFINED, storing
from herd.sql.parsing import check_parts, expression_text, place_of
from herd.sql.scalars import CannotEvaluate
from herd.sql.type_names import column_type
from herd.types import BIGINT, INTEGER_BITS, ColumnType, Kind

HIDDEN_KEY: Final = "_pk"
_SERIALS: Final = {
    "SERIAL": ColumnType(Kind.INTEGER),
    "BIGSERIAL": BIGINT,
    "SMALLSERIAL": ColumnType(Kind.SMALLINT),
}
_COUNTING: Final = (exp.AutoIncrementColumnConstraint, exp.GeneratedAsIdentityColumnConstraint)
_COLUMN_PARTS: Final = frozenset({"this", "kind", "constraints", "exists"})
_IGNORED: Final = (exp.CommentColumnConstraint,)


@dataclass(slots=True)
class ColumnDraft:
    """A column as a statement defines it, with the constraints that stand beside it."""

    column: Column
    primary: bool = False
    nullable_said: bool = False
    unique: list[str] = field(default_factory=list)
    """Names of UNIQUE constraints; "" for one without a name."""
    checks: list[tuple[exp.Expr, str]] = field(default_factory=list)
    references: list[tuple[exp.Expr, str]] = field(default_factory=list)


def draft_column(table: Table, node: exp.ColumnDef, number: int) -> ColumnDraft:
    """A column of that number. Raises what is wrong with its definition."""
    check_parts(node, _COLUMN_PARTS)
    kind_node = node.args.get("kind")
    serial = _SERIALS.get(str(kind_node.args.get("kind") or "").upper()) if kind_node else None
    kind = serial or column_type(kind_node)
    name = node.name
    if name.lower() in (HIDDEN_KEY, "_key", "_position"):
        raise NameTaken(f"{name} is a name of the database's own", place=place_of(node))
    column = Column(number, name, kind, nullable=serial is None, auto=serial is not None)
    draft = ColumnDraft(column)
    for constraint in node.args.get("constraints") or ():
        named = constraint.this.name if isinstance(constraint.this, exp.Identifier) else ""
        _add_to_column(draft, constraint.args["kind"], named, table)
    if draft.column.auto and draft.column.type.kind not in INTEGER_BITS:
        raise TypeMismatch(f"AUTO_INCREMENT of {kind.sql}", place=place_of(node))
    return draft


def _add_to_column(draft: ColumnDraft, kind: exp.Expr, name: str, table: Table) -> None:
    if isinstance(kind, exp.PrimaryKeyColumnConstraint):
        draft.primary = True
    elif isinstance(kind, exp.NotNullColumnConstraint):
        draft.nullable_said = bool(kind.args.get("allow_null"))
        _set(draft, nullable=draft.nullable_said)
    elif isinstance(kind, exp.DefaultColumnConstraint):
        _set(draft, default=default_text(table, draft.column, kind.this))
    elif isinstance(kind, _COUNTING):
        _set(draft, auto=True)
    elif isinstance(kind, exp.UniqueColumnConstraint):
        draft.unique.append(name)
    elif isinstance(kind, exp.CheckColumnConstraint):
        draft.checks.append((kind.this, name))
    elif isinstance(kind, exp.Reference):
        draft.references.append((kind, name))
    elif not isinstance(kind, _IGNORED):
        raise NotSupportedError(f"a column with {kind.sql('duckdb')}", place=place_of(kind))


def _set(draft: ColumnDraft, **fields: Any) -> None:
    import msgspec

    draft.column = msgspec.structs.replace(draft.column, **fields)


def default_text(table: Table, column: Column, node: exp.Expr) -> str:
    """A default as a definition keeps it. Raises `NotSupportedError` and what it is wrong with."""
    if isinstance(node.unnest(), exp.Null):
        return ""
    try:
        store = storing(node, DEFINED, table, column)
        if node.find(exp.CurrentTimestamp, exp.CurrentDate, exp.Anonymous) is None:
            store([], ())
    except (CannotEvaluate, IndexError):
        raise NotSupportedError(
            "a DEFAULT is a constant or CURRENT_TIMESTAMP", place=place_of(node)
        ) from None
    return expression_text(node)


def draft_table(catalog: Catalog, table_id: int, name: str, nodes: list[exp.Expr]) -> Table:
    """A table as CREATE TABLE defines it; its store has the table's number."""
    table = Table(table_id, name, table_id, (), ())
    drafts: list[ColumnDraft] = []
    for node in nodes:
        if isinstance(node, exp.ColumnDef):
            drafts.append(draft_column(table, node, len(drafts)))
    others = [node for node in nodes if not isinstance(node, exp.ColumnDef)]
    if not drafts:
        raise ProgrammingError("a table needs a column")
    primary = _primary_nodes(others)
    table = _with_key(table, drafts, primary)
    for draft in drafts:
        table = with_constraints_of(catalog, table, draft)
    for node in others:
        if not isinstance(_inner(node)[0], exp.PrimaryKey):
            table = with_constraint(catalog, table, node)
    check_auto(table)
    return table


def _primary_nodes(others: list[exp.Expr]) -> list[exp.Expr] | None:
    found = [node for node, _ in map(_inner, others) if isinstance(node, exp.PrimaryKey)]
    if len(found) > 1:
        raise ProgrammingError("a table has one primary key", place=place_of(found[1]))
    return found[0].expressions if found else None


def _with_key(table: Table, drafts: list[ColumnDraft], primary: list[exp.Expr] | None) -> Table:
    """The columns and the primary key, which may be a hidden one."""
    inline = [draft for draft in drafts if draft.primary]
    if len(inline) > 1 or (inline and primary is not None):
        raise ProgrammingError(
            "a table has one primary key", hint="name its columns in PRIMARY KEY (…)"
        )
    if not inline and primary is None:
        hidden = Column(0, HIDDEN_KEY, BIGINT, nullable=False, auto=True)
        for draft in drafts:
            _set(draft, number=draft.column.number + 1)
            if draft.column.auto:
                raise NotSupportedError(
                    f"AUTO_INCREMENT of {draft.column.name}", hint="make it the primary key"
                )
        columns = (hidden, *(draft.column for draft in drafts))
        key: tuple[int, ...] = (0,)
    else:
        columns = tuple(draft.column for draft in drafts)
        plain = changed(table, columns=columns)
        key = numbers_of(plain, primary) if primary else (inline[0].column.number,)
        for draft in drafts:
            if draft.column.number in key:
                _set(draft, nullable=False)
        columns = tuple(draft.column for draft in drafts)
    _check_columns(columns)
    table = changed(
        table,
        columns=columns,
        primary=key,
        next_column=len(columns),
        hidden_key=columns[0].name == HIDDEN_KEY,
    )
    check_ordered(table, key)
    return table


def _check_columns(columns: tuple[Column, ...]) -> None:
    if len(columns) > COLUMNS_MAX:
        raise TooLarge(f"a table has at most {COLUMNS_MAX} columns")
    seen: set[str] = set()
    for column in columns:
        if column.name.lower() in seen:
            raise NameTaken(f"there are two columns {column.name}")
        seen.add(column.name.lower())


def check_auto(table: Table) -> None:
    """Raise unless at most one column counts, and it leads a key."""
    counting = [column for column in table.columns if column.auto]
    if len(counting) > 1:
        raise NotSupportedError("two AUTO_INCREMENT columns in one table")
    for column in counting:
        if beginning_of(table, column) is None:
            raise NotSupportedError(
                f"AUTO_INCREMENT of {column.name}, which no key begins with",
                hint="make it the primary key, or UNIQUE",
            )


def with_constraints_of(catalog: Catalog, table: Table, draft: ColumnDraft) -> Table:
    """A table, which has the column already, with what stands beside it."""
    numbers = (draft.column.number,)
    for name in draft.unique:
        if numbers != table.primary:
            table = with_index(table, numbers, name=name, unique=True, constraint=True)
    for condition, name in draft.checks:
        table = with_check(table, condition, name)
    for reference, name in draft.references:
        table = with_foreign_key(catalog, table, numbers, reference, name)
    return table


def with_constraint(catalog: Catalog, table: Table, node: exp.Expr) -> Table:
    """A table with a constraint that stands by itself. Raises `NotSupportedError`."""
    inner, name = _inner(node)
    if isinstance(inner, exp.UniqueColumnConstraint) and isinstance(inner.this, exp.Schema):
        numbers = numbers_of(table, inner.this.expressions)
        name = name or inner.this.name
        return with_index(table, numbers, name=name, unique=True, constraint=True)
    if isinstance(inner, exp.IndexColumnConstraint):
        return with_index(table, numbers_of(table, inner.expressions), name=inner.name)
    if isinstance(inner, exp.CheckColumnConstraint):
        return with_check(table, inner.this, name)
    if isinstance(inner, exp.ForeignKey):
        numbers = numbers_of(table, inner.expressions)
        reference = inner.args.get("reference")
        assert reference is not None
        return with_foreign_key(catalog, table, numbers, reference, name)
    raise NotSupportedError(f"{node.sql('duckdb')[:60]} in a table", place=place_of(node))


def _inner(node: exp.Expr) -> tuple[exp.Expr, str]:
    """A constraint without the name that it may have been given, and the name."""
    if isinstance(node, exp.Constraint):
        return node.expressions[0], node.name
    return node, ""

"""The option `where`: conditions as SQL writes them, which are told before anything is planned.

    id >= 1000 AND id < 2000 AND name LIKE 'Ber%' AND day = '2026-11-22' AND note IS NOT NULL

Columns are compared with literals by = <> < <= > >= <=> [NOT] IN, BETWEEN, IS [NOT] NULL and LIKE
with % at its ends; conditions are joined by AND. A literal may be text for every type; that of a
TIMESTAMPTZ names its zone, as '2026-11-22 08:00:00Z' does: no session's zone is known here.

Invariants:
- What cannot be told exactly is an error; nothing is passed over.
"""

import datetime
from collections.abc import Iterator
from typing import Any, Final

import sqlglot
from sqlglot import expressions as exp

from herd.errors import DataError, NotSupportedError, SqlSyntaxError
from herd.schema import Column, Table
from herd.snapshot.conditions import Condition, Operator, condition_on
from herd.types import Kind, accepting, returning

_COMPARED: Final[dict[type[exp.Expr], tuple[Operator, bool]]] = {
    exp.EQ: (Operator.EQUAL, False),
    exp.NEQ: (Operator.EQUAL, True),
    exp.NullSafeEQ: (Operator.SAME, False),
    exp.LT: (Operator.BELOW, False),
    exp.LTE: (Operator.AT_MOST, False),
    exp.GT: (Operator.ABOVE, False),
    exp.GTE: (Operator.AT_LEAST, False),
}
_TURNED: Final = {
    Operator.BELOW: Operator.ABOVE,
    Operator.AT_MOST: Operator.AT_LEAST,
    Operator.ABOVE: Operator.BELOW,
    Operator.AT_LEAST: Operator.AT_MOST,
}
_AS_STORED: Final = (Kind.TIME, Kind.UUID)
"""Of these a snapshot shows what is stored."""
_OF_TIME: Final = (
    exp.DType.DATE,
    exp.DType.TIMESTAMP,
    exp.DType.TIMESTAMPTZ,
    exp.DType.TIMESTAMPNTZ,
)
"""What a literal may be marked as: it means the same without."""
_FORM: Final = "compare columns with literals, and join that by AND"


def parse_where(text: str, table: Table) -> tuple[Condition, ...]:
    """The conditions of a text, on a table's columns.

    Raises `SqlSyntaxError`, `NotSupportedError` for what is no such condition, `NoSuchColumn`,
    `DataError` for a literal that is no value of its column.
    """
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        said = str(error).partition("\n")[0].replace("\x1b[4m", "").replace("\x1b[0m", "")
        raise SqlSyntaxError(f"where={text!r}: {said}", hint=_FORM) from None
    return tuple(_conditions(tree, table, negated=False))


def _conditions(tree: exp.Expr, table: Table, *, negated: bool) -> Iterator[Condition]:
    if isinstance(tree, exp.Paren):
        yield from _conditions(tree.this, table, negated=negated)
    elif isinstance(tree, exp.And) and not negated:
        yield from _conditions(tree.left, table, negated=False)
        yield from _conditions(tree.right, table, negated=False)
    elif isinstance(tree, exp.Not):
        yield from _conditions(tree.this, table, negated=not negated)
    elif isinstance(tree, exp.Between) and not (negated or tree.args.get("symmetric")):
        for operator, bound in ((Operator.AT_LEAST, "low"), (Operator.AT_MOST, "high")):
            yield _one(table, tree.this, operator, [tree.args[bound]], negated=False)
    elif type(tree) in _COMPARED:
        operator, apart = _COMPARED[type(tree)]
        left, right = tree.this, tree.expression
        if isinstance(right, exp.Column):
            left, right, operator = right, left, _TURNED.get(operator, operator)
        yield _one(table, left, operator, [right], negated=negated ^ apart)
    elif isinstance(tree, exp.In) and tree.expressions:
        yield _one(table, tree.this, Operator.IN, tree.expressions, negated=negated)
    elif isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null):
        yield _one(table, tree.this, Operator.NULL, [], negated=negated)
    elif isinstance(tree, exp.Like) and isinstance(tree.expression, exp.Literal):
        yield _like(table, tree, negated=negated)
    else:
        raise NotSupportedError(f"where: {tree.sql(dialect='spark')}", hint=_FORM)


def _one(
    table: Table,
    column: exp.Expr,
    operator: Operator,
    literals: list[exp.Expr],
    *,
    negated: bool,
) -> Condition:
    found = _column(table, column)
    try:
        values = [_value(found, literal) for literal in literals]
    except DataError as error:
        told = f"where: column {found.name} is compared with what it cannot have: {error.message}"
        raise type(error)(told, hint=error.hint) from None
    condition = condition_on(found, operator, values, negated=negated)
    if condition is None:
        what = f"{found.name} {operator.value} {', '.join(one.sql() for one in literals)}"
        raise NotSupportedError(f"where: {what} is nothing that {found.type.sql} can be asked")
    return condition


def _like(table: Table, tree: exp.Like, *, negated: bool) -> Condition:
    pattern: str = tree.expression.this
    inner = pattern.strip("%")
    if any(sign in inner for sign in "%_\\"):
        raise NotSupportedError(f"where: LIKE {pattern!r}", hint="put % at the ends alone")
    operator = {
        (False, False): Operator.EQUAL,
        (False, True): Operator.STARTS,
        (True, False): Operator.ENDS,
        (True, True): Operator.CONTAINS,
    }[pattern.startswith("%"), pattern.endswith("%")]
    literal = exp.Literal.string(inner)
    return _one(table, tree.this, operator, [literal], negated=negated)


def _column(table: Table, tree: exp.Expr) -> Column:
    if not isinstance(tree, exp.Column) or tree.table:
        raise NotSupportedError(f"where: {tree.sql(dialect='spark')} is no column", hint=_FORM)
    return table.column(tree.name)


def _value(column: Column, tree: exp.Expr) -> Any:
    """What a literal means for a column, as a row of Python values has it."""
    value: Any
    sign = ""
    if isinstance(tree, exp.Neg):
        tree, sign = tree.this, "-"
    if isinstance(tree, exp.Cast) and tree.to.this in _OF_TIME:
        tree = tree.this
    if isinstance(tree, exp.Boolean):
        value = bool(tree.this)
    elif isinstance(tree, exp.HexString):
        value = bytes.fromhex(tree.this)
    elif isinstance(tree, exp.Literal):
        value = sign + str(tree.this)
        if column.type.kind is Kind.BLOB:
            value = value.encode()
    else:
        raise NotSupportedError(f"where: {tree.sql(dialect='spark')} is no literal", hint=_FORM)
    kind = column.type.kind
    if kind is Kind.JSON:
        return value
    if kind is Kind.TIMESTAMPTZ and not _names_zone(value):
        raise NotSupportedError(
            f"where: {column.name} is a moment, {value!r} names no zone",
            hint="say which, as '2026-11-22 08:00:00Z' does",
        )
    stored, convert = accepting(column.type)(value), returning(column.type)
    if convert is None or kind in _AS_STORED:
        return stored
    return convert(stored)


def _names_zone(value: Any) -> bool:
    """False only of a text that is a moment without a zone; others are judged by their type."""
    try:
        return datetime.datetime.fromisoformat(str(value).strip()).tzinfo is not None
    except ValueError:
        return True

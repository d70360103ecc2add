"""Values as parts of a tree.

Invariants:
- A literal has the value's type: a text is no number, a decimal is exact.
"""

import datetime
import uuid
from decimal import Decimal
from typing import Any

from sqlglot import exp

from herd.errors import InterfaceError
from herd.sql.statement import Given


def with_values(tree: exp.Expr, given: Given) -> exp.Expr:
    """A copy of a tree with the parameters' values in their places."""
    if tree.find(exp.Placeholder) is None:
        return tree

    def step(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Placeholder) and node.name.isdigit():
            return literal(given[int(node.name) - 1])
        return node

    changed: exp.Expr = tree.copy().transform(step)
    return changed


def literal(value: Any) -> exp.Expr:
    """A value. Raises `InterfaceError` for one of a type that SQL does not have."""
    if value is None:
        return exp.null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, int):
        number = exp.Literal.number(str(abs(value)))
        return exp.Neg(this=number) if value < 0 else number
    if isinstance(value, float):
        return exp.cast(exp.Literal.string(repr(value)), "DOUBLE")
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, bytes | bytearray | memoryview):
        text = exp.Literal.string(bytes(value).hex())
        return exp.Anonymous(this="unhex", expressions=[text])
    return _of_time(value)


def _decimal(value: Decimal) -> exp.Expr:
    text = f"{value:f}"
    whole, _, part = text.lstrip("-").partition(".")
    size = max(len(whole.lstrip("0")) + len(part), 1)
    return exp.cast(exp.Literal.string(text), f"DECIMAL({size},{len(part)})")


def _of_time(value: Any) -> exp.Expr:
    if isinstance(value, datetime.datetime):
        kind = "TIMESTAMP" if value.tzinfo is None else "TIMESTAMPTZ"
        return exp.cast(exp.Literal.string(str(value)), kind)
    if isinstance(value, datetime.date):
        return exp.cast(exp.Literal.string(str(value)), "DATE")
    if isinstance(value, datetime.time):
        return exp.cast(exp.Literal.string(str(value)), "TIME")
    if isinstance(value, uuid.UUID):
        return exp.cast(exp.Literal.string(str(value)), "UUID")
    if isinstance(value, list | tuple):
        return exp.Array(expressions=[literal(item) for item in value])
    raise InterfaceError(f"a parameter of type {type(value).__name__} has no type of SQL")

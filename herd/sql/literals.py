"""Values as parts of a tree.

Invariants:
- Values that are written into a statement's text have a bound, each counted where it is used: a
  parameter may be used thousands of times.
- A literal has the value's type: a text is no number, a decimal is exact.
"""

import datetime
import uuid
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from engine import limits
from herd.errors import InterfaceError, TooLarge
from herd.sql.statement import Given

_VALUES_BYTES_MAX: Final = 16 * limits.MIB


def with_values(tree: exp.Expr, given: Given) -> exp.Expr:
    """A copy of a tree with the parameters' values in their places. Raises `TooLarge`."""
    used = [int(node.name) - 1 for node in tree.find_all(exp.Placeholder) if node.name.isdigit()]
    if not used:
        return tree
    if sum(_size_bytes(given[place]) for place in used) > _VALUES_BYTES_MAX:
        raise TooLarge(
            f"the parameters here have over {_VALUES_BYTES_MAX} bytes, each where it is used",
            hint="use a long value once",
        )

    def step(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Placeholder) and node.name.isdigit():
            return literal(given[int(node.name) - 1])
        return node

    changed: exp.Expr = tree.copy().transform(step)
    return changed


def _size_bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_size_bytes, value))
    return len(value) if isinstance(value, str | bytes | bytearray | memoryview) else 0


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

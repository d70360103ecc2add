"""What is asked of objects, as conditions on the rows of their names.

Objects are asked by name, size, etag and created. Rows keep moments in milliseconds, and readers
see microseconds: what is asked of the one is asked of the other exactly.

Invariants:
- An object that meets what is asked is never left out, and no other one is let through.
"""

import datetime
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from herd.schema import Column, Table
from herd.snapshot.conditions import Condition, Operator, condition_on
from herd.types import ColumnType, Kind

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_MS: Final = 1_000
_ADDED: Final = {
    Operator.ABOVE: 0,
    Operator.AT_MOST: 0,
    Operator.AT_LEAST: _MS - 1,
    Operator.BELOW: _MS - 1,
}
"""What is added to microseconds before they are cut off."""
_CREATED: Final = "created"
_BEFORE_ALL: Final = -(2**62)


def shown_columns(names: Table) -> tuple[Column, ...]:
    """What readers may ask of the table of names, as they call it."""
    length, created = names.column("length"), names.column("created_ms")
    return (
        names.column("name"),
        names.column("etag"),
        msgspec.structs.replace(length, name="size"),
        msgspec.structs.replace(created, name=_CREATED, type=ColumnType(Kind.TIMESTAMPTZ)),
    )


def where_conditions(text: str, names: Table) -> Iterator[Condition]:
    """The conditions of the option `where`. Raises as `herd.snapshot.where.parse_where` does."""
    if not text:
        return
    # The parser of SQL loads when there is some.
    from herd.snapshot.where import parse_where

    shown = Table(names.id, "objects", names.store, shown_columns(names), names.primary)
    for condition in parse_where(text, shown):
        yield on_rows(condition, names)


def on_rows(condition: Condition, names: Table) -> Condition:
    """A condition on what readers see as one on what rows keep."""
    if condition.column.name != _CREATED:
        return condition
    column, operator = names.column("created_ms"), condition.operator
    moments_us = [(value - _EPOCH) // _MICROSECOND for value in condition.values]
    if operator in _ADDED:
        moment_ms = (moments_us[0] + _ADDED[operator]) // _MS
        return _found(column, operator, [moment_ms], negated=condition.negated)
    # No row has any other moment, and none has NULL.
    whole = [moment_us // _MS for moment_us in moments_us if moment_us % _MS == 0]
    if not whole:
        return _found(column, Operator.BELOW, [_BEFORE_ALL], negated=condition.negated)
    return _found(column, Operator.IN, whole, negated=condition.negated)


def _found(
    column: Column, operator: Operator, values: Sequence[int], *, negated: bool
) -> Condition:
    found = condition_on(column, operator, values, negated=negated)
    assert found is not None, "a number is compared with numbers"
    return found

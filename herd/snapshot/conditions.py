"""Conditions on single columns: which pages may have rows that meet them, and which rows do.

Comparisons are Spark's: a comparison with NULL is unknown, texts and bytes are compared byte by
byte, NaN is greater than every number and equals itself.

Invariants:
- A page that has a row that meets all conditions is never left out; a row that meets a condition is
  never dropped.
- What cannot be decided exactly is no condition: it is left to the caller, whole.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from herd.checkpoint.manifest import ColumnRange, Page
from herd.errors import DataError
from herd.schema import Column
from herd.snapshot.arrays import plain_type
from herd.types import Kind, accepting

_ANY_VALUE: Final = (Kind.FLOATS,)
_REALS: Final = (Kind.REAL, Kind.DOUBLE)
_STORED_AS_THEY_ARE: Final = {str: (Kind.VARCHAR, Kind.JSON), int: (Kind.TIME,)}


class Operator(enum.Enum):
    """What is asked of a value."""

    EQUAL = "="
    SAME = "<=>"
    """As `EQUAL`, but NULL is the same as NULL, and nothing is unknown."""
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="
    IN = "in"
    NULL = "is null"
    STARTS = "starts with"
    ENDS = "ends with"
    CONTAINS = "contains"


_TEXTUAL: Final = (Operator.STARTS, Operator.ENDS, Operator.CONTAINS)
_NEGATED: Final = {
    Operator.BELOW: Operator.AT_LEAST,
    Operator.AT_MOST: Operator.ABOVE,
    Operator.ABOVE: Operator.AT_MOST,
    Operator.AT_LEAST: Operator.BELOW,
}


class Condition(msgspec.Struct, frozen=True):
    """An operator and a value, or several with `IN`, on one column. Made by `condition_on`."""

    column: Column
    operator: Operator
    values: tuple[Any, ...]
    """As a row of Python values has them."""
    stored: tuple[Any, ...]
    negated: bool = False

    def may_match(self, page: Page) -> bool:
        """Whether a page may have rows that meet it."""
        for found in page.ranges:
            if found.column == self.column.number:
                return _may_match(self, found, page.rows)
        # Too long, without an order, or of a column that came after the page.
        return True

    def mask(self, array: pa.Array) -> pa.Array:
        """Which values of a plain array meet it; null where that is unknown."""
        found = _MASKS[self.operator](array, self.values)
        return pc.invert(found) if self.negated else found


def condition_on(
    column: Column, operator: Operator, values: Sequence[Any] = (), *, negated: bool = False
) -> Condition | None:
    """A condition, or None for one that only the caller can decide."""
    kind = column.type.kind
    if operator is not Operator.NULL:
        if kind in _ANY_VALUE or any(value is None or value != value for value in values):
            return None
        if operator in _TEXTUAL and kind not in (Kind.VARCHAR, Kind.JSON):
            return None
    if kind in _REALS:
        # One zero is stored; Arrow tells two apart where it looks among values.
        values = [0.0 if value == 0 else value for value in values]
    try:
        stored = tuple(_stored(column, value) for value in values)
        pa.array(list(values), plain_type(column.type))
    except (DataError, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    if negated and operator in _NEGATED:
        operator, negated = _NEGATED[operator], False
    return Condition(column, operator, tuple(values), stored, negated)


def _stored(column: Column, value: Any) -> Any:
    """What a row keeps for a value; texts of any length, for conditions have no bound."""
    kind = column.type.kind
    for plain, kinds in _STORED_AS_THEY_ARE.items():
        if kind in kinds:
            if type(value) is not plain:
                raise pa.ArrowTypeError(f"{value!r} is no {plain.__name__}")
            return value
    return accepting(column.type)(value)


def selected(
    batch: pa.RecordBatch, conditions: Sequence[Condition], places: Mapping[int, int]
) -> pa.RecordBatch:
    """The rows that meet all conditions; `places` tells a column's place by its number."""
    whole: pa.Array | None = None
    for condition in conditions:
        mask = condition.mask(batch.column(places[condition.column.number]))
        whole = mask if whole is None else pc.and_(whole, mask)
    if whole is None or whole.true_count == batch.num_rows:
        return batch
    return batch.filter(whole)


# Pages


def _may_match(condition: Condition, found: ColumnRange, rows: int) -> bool:
    nulls = found.nulls
    if condition.operator is Operator.NULL:
        return nulls < rows if condition.negated else nulls > 0
    same = condition.operator is Operator.SAME
    if nulls == rows:
        return same and condition.negated
    if condition.negated and same and nulls:
        return True
    decide = _RANGES_NOT if condition.negated else _RANGES
    return decide[condition.operator](found.lowest, found.highest, condition.stored)


Decide = Callable[[Any, Any, tuple[Any, ...]], bool]


def _has_prefix(lowest: str, highest: str, values: tuple[Any, ...]) -> bool:
    prefix: str = values[0]
    return highest >= prefix and lowest[: len(prefix)] <= prefix


_RANGES: Final[dict[Operator, Decide]] = {
    Operator.EQUAL: lambda low, high, values: low <= values[0] <= high,
    Operator.SAME: lambda low, high, values: low <= values[0] <= high,
    Operator.BELOW: lambda low, high, values: low < values[0],
    Operator.AT_MOST: lambda low, high, values: low <= values[0],
    Operator.ABOVE: lambda low, high, values: high > values[0],
    Operator.AT_LEAST: lambda low, high, values: high >= values[0],
    Operator.IN: lambda low, high, values: any(low <= value <= high for value in values),
    Operator.STARTS: _has_prefix,
    Operator.ENDS: lambda low, high, values: True,
    Operator.CONTAINS: lambda low, high, values: True,
}
_RANGES_NOT: Final[dict[Operator, Decide]] = {
    Operator.EQUAL: lambda low, high, values: not low == high == values[0],
    Operator.SAME: lambda low, high, values: not low == high == values[0],
    Operator.IN: lambda low, high, values: low != high or low not in values,
    Operator.STARTS: lambda low, high, values: (
        not (low.startswith(values[0]) and high.startswith(values[0]))
    ),
    Operator.ENDS: lambda low, high, values: True,
    Operator.CONTAINS: lambda low, high, values: True,
}


# Rows


Mask = Callable[[pa.Array, tuple[Any, ...]], pa.Array]


def _compared(compare: Callable[[pa.Array, pa.Scalar], pa.Array]) -> Mask:
    return lambda array, values: compare(array, pa.scalar(values[0], array.type))


def _compared_or_nan(compare: Callable[[pa.Array, pa.Scalar], pa.Array]) -> Mask:
    def mask(array: pa.Array, values: tuple[Any, ...]) -> pa.Array:
        found = compare(array, pa.scalar(values[0], array.type))
        return pc.or_(found, pc.is_nan(array)) if pa.types.is_floating(array.type) else found

    return mask


def _is_in(array: pa.Array, values: tuple[Any, ...]) -> pa.Array:
    found = pc.is_in(array, pa.array(list(values), array.type))
    # Arrow says of NULL that it is not among them; that is unknown.
    return pc.if_else(pc.is_valid(array), found, pa.scalar(None, pa.bool_()))


_MASKS: Final[dict[Operator, Mask]] = {
    Operator.EQUAL: _compared(pc.equal),
    Operator.SAME: lambda array, values: pc.fill_null(
        pc.equal(array, pa.scalar(values[0], array.type)), False
    ),
    Operator.BELOW: _compared(pc.less),
    Operator.AT_MOST: _compared(pc.less_equal),
    Operator.ABOVE: _compared_or_nan(pc.greater),
    Operator.AT_LEAST: _compared_or_nan(pc.greater_equal),
    Operator.IN: _is_in,
    Operator.NULL: lambda array, values: pc.is_null(array),
    Operator.STARTS: lambda array, values: pc.starts_with(array, values[0]),
    Operator.ENDS: lambda array, values: pc.ends_with(array, values[0]),
    Operator.CONTAINS: lambda array, values: pc.match_substring(array, values[0]),
}

"""Record batches as rows with their keys, as a tablespace stores them: where the batches are.

    encoder = Encoder(table, batch.schema, moment)
    pairs = encoder.pairs(batch)

Invariants:
- What a row has to be in itself is checked here: its columns, NOT NULL, defaults, conditions. What
  it has to be among others (keys, other tables' rows) the leader checks.
- A row made here has the bytes that the same row has when SQL inserts it.
"""

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from herd.errors import DataError, NoSuchColumn, NotNullViolation, ProgrammingError
from herd.keys import key_encoder
from herd.rows import encode_row
from herd.schema import Column, Table
from herd.staging.columns import Convert, Values, converter
from herd.staging.layout import Pair

if TYPE_CHECKING:
    from herd.changing import Verify

Defaults = Callable[[int], Values]
"""As many values of a column's default as are asked for."""


class Encoder:
    """Makes rows of one table of batches with one schema."""

    def __init__(self, table: Table, schema: pa.Schema, moment: datetime.datetime) -> None:
        """`moment` is what CURRENT_TIMESTAMP is in defaults.

        Raises `NoSuchColumn`, `ProgrammingError`, `TypeMismatch`, `NotNullViolation` for a schema
        that has too much, too little or the wrong types.
        """
        self.table = table
        self._given = _given(table, schema)
        given = {column.number for column, _, _ in self._given}
        auto = table.auto_column
        self.numbered = auto is not None and auto.number not in given
        """Whether the AUTO_INCREMENT column is left to the leader."""
        self.keyed = not (self.numbered and auto is not None and auto.number in table.primary)
        """Whether keys are known here."""
        self.highest = 0
        """The highest value of the AUTO_INCREMENT column so far."""
        self._auto = None if self.numbered else auto
        self._filled = _filled(table, given, moment)
        self._verify = _verifier(table)
        self._encode_key = _key_encoder(table) if self.keyed else None

    def pairs(self, batch: pa.RecordBatch) -> list[Pair]:
        """The rows of a batch, in its order. Keys that are not known are b"".

        Raises `DataError`, `IntegrityError`: each names its column.
        """
        count = batch.num_rows
        if not count:
            return []
        columns: list[Values] = [[]] * self.table.width
        for number in range(self.table.width):
            columns[number] = self._filled[number](count)
        for column, place, convert in self._given:
            array = batch.column(place)
            if array.null_count and not column.nullable:
                raise _null(self.table, column)
            columns[column.number] = convert(array)
        rows = list(zip(*columns, strict=True))
        if self._verify is not None:
            for row in rows:
                self._verify(list(row))
        if self._auto is not None:
            highest = max([value for value in columns[self._auto.number] if value is not None])
            self.highest = max(self.highest, highest)
        keys = [b""] * count if self._encode_key is None else self._keys(columns)
        return list(zip(keys, map(encode_row, rows), strict=True))

    def _keys(self, columns: list[Values]) -> list[bytes]:
        encode, primary = self._encode_key, self.table.primary
        assert encode is not None
        try:
            return list(map(encode, zip(*[columns[number] for number in primary], strict=True)))
        except DataError as error:
            raise type(error)(
                f"the primary key of {self.table.name}: {error.message}", hint=error.hint
            ) from None


def _given(table: Table, schema: pa.Schema) -> list[tuple[Column, int, Convert]]:
    """The columns that a schema has, where, and what makes stored values of them."""
    by_name = {column.name.lower(): column for column in table.visible}
    found: list[tuple[Column, int, Convert]] = []
    numbers: set[int] = set()
    for place, field in enumerate(schema):
        column = by_name.get(field.name.lower())
        if column is None:
            names = ", ".join(column.name for column in table.visible)
            raise NoSuchColumn(
                f"table {table.name} has no column {field.name}",
                hint=f"it has {names}: drop or rename the column first",
            )
        if column.number in numbers:
            raise ProgrammingError(
                f"{table.name}.{column.name} is given twice", hint="select each column once"
            )
        numbers.add(column.number)
        found.append((column, place, converter(table, column, field.type)))
    return found


def _filled(table: Table, given: set[int], moment: datetime.datetime) -> list[Defaults]:
    """What is in the columns that are not given."""
    filled: list[Defaults] = [_nulls] * table.width
    for column in table.columns:
        if column.number in given or column.auto:
            continue
        if column.default:
            filled[column.number] = _default(table, column, moment)
        elif not column.nullable:
            raise NotNullViolation(
                f"{table.name}.{column.name} may not be NULL, and is not given",
                hint="add the column",
            )
    return filled


def _nulls(count: int) -> Values:
    return [None] * count


def _default(table: Table, column: Column, moment: datetime.datetime) -> Defaults:
    # Only tables with defaults load what SQL needs.
    from herd.sql.defaults import default_store

    make = default_store(table, column)
    if make is None:
        return _nulls
    none: list[Any] = [None] * table.width
    return lambda count: [make(none, (moment,)) for _ in range(count)]


def _verifier(table: Table) -> "Verify | None":
    if not table.checks:
        return None
    from herd.sql.statement import verifier

    return verifier(table)


def _key_encoder(table: Table) -> Callable[[Any], bytes]:
    types = tuple(table.by_number[number].type for number in table.primary)
    return key_encoder(types, (False,) * len(types))


def _null(table: Table, column: Column) -> NotNullViolation:
    if column.auto:
        return NotNullViolation(
            f"{table.name}.{column.name} is NULL in some rows",
            hint="leave the column out, and all rows get a number, or give each row one",
        )
    return NotNullViolation(
        f"{table.name}.{column.name} may not be NULL, and is in some rows: nothing was written",
        hint="fill it in or leave those rows out",
    )

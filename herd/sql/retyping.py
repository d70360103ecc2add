"""Which types a column may change to without a row being rewritten.

Invariants:
- The stored form, and the bytes in keys, of every value stay as they are.
"""

from typing import Final, Literal

from herd.catalog import Catalog
from herd.errors import ProgrammingError
from herd.schema import Column, Table
from herd.types import DECIMAL_DIGITS_MAX, INTEGER_BITS, ColumnType, Kind

# What every BIGINT needs; a DECIMAL of more than 18 is stored in another way.
_DIGITS: Final = {Kind.TINYINT: 3, Kind.SMALLINT: 5, Kind.INTEGER: 10}


def stays_stored(old: ColumnType, wanted: ColumnType) -> Literal["all", "some"] | None:
    """Whether all values of a type, or only some, are stored the same in another one."""
    both = {old.kind, wanted.kind}
    if both <= set(INTEGER_BITS):
        return _all_if(INTEGER_BITS[old.kind] <= INTEGER_BITS[wanted.kind])
    if old.kind is Kind.DECIMAL and wanted.kind is Kind.DECIMAL:
        if old.scale != wanted.scale or old.wide != wanted.wide:
            return None
        return _all_if(old.size <= wanted.size)
    if old.kind in INTEGER_BITS and wanted.kind is Kind.DECIMAL:
        if wanted.scale or wanted.wide:
            return None
        return _all_if(_DIGITS.get(old.kind, DECIMAL_DIGITS_MAX) <= wanted.size)
    if old.kind is Kind.DECIMAL and wanted.kind in INTEGER_BITS:
        return None if old.scale or old.wide else "some"
    if both == {Kind.VARCHAR}:
        return _all_if(not wanted.size or 0 < old.size <= wanted.size)
    if both == {Kind.REAL, Kind.DOUBLE}:
        return _all_if(wanted.kind is Kind.DOUBLE)
    if old.kind is Kind.JSON and wanted.kind is Kind.VARCHAR:
        return _all_if(not wanted.size)
    return None


def _all_if(true: bool) -> Literal["all", "some"]:
    return "all" if true else "some"


def check_references_keep(
    catalog: Catalog, table: Table, column: Column, wanted: ColumnType
) -> None:
    """Raise `ProgrammingError` if a foreign key would join columns of different kinds."""
    if column.type.kind is wanted.kind or {column.type.kind, wanted.kind} <= set(INTEGER_BITS):
        return
    for child in {table.id: table, **{t.id: t for t in catalog.children_of(table)}}.values():
        for key in child.foreign_keys:
            own = child.id == table.id and column.number in key.columns
            if own or (key.parent == table.id and column.number in key.parent_columns):
                raise ProgrammingError(
                    f"the foreign key {key.name} needs {column.name} as {column.type.sql}",
                    hint="drop it first",
                )

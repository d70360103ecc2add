"""All rows of a table looked at before its definition changes, and its indexes made anew.

Invariants:
- Who calls this has locked the table alone: what holds for all rows holds to the end of the
  transaction.
- Rows are looked at as they are committed now, with the transaction's own changes over them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from herd.catalog import erasing, rows_of
from herd.changing import Changer
from herd.errors import (
    CheckViolation,
    DataError,
    ForeignKeyViolation,
    NotNullViolation,
    OperationalError,
    ValueInvalid,
)
from herd.foreign_keys import find_parents
from herd.rows import Row
from herd.schema import Building, Check, Column, ForeignKey, Table
from herd.sql.constraints import changed
from herd.sql.indexing import PAGE_ROWS, fill
from herd.sql.statement import verifier
from herd.transaction import Transaction
from herd.types import ColumnType, Stored, accepting, returning


async def all_rows(transaction: Transaction, table: Table) -> AsyncIterator[Row]:
    """The rows of a table, in the order of their keys."""
    decode = transaction.catalog.plan(table).decode
    first, end = rows_of(table)
    while page := transaction.scan_newest(first, end, PAGE_ROWS):
        for _, value in page:
            yield decode(value)
        first = page[-1][0] + b"\x00"
        # Long tables let others have their turn.
        await asyncio.sleep(0)


def is_empty(transaction: Transaction, table: Table) -> bool:
    """Whether a table has no rows."""
    return not transaction.scan_newest(*rows_of(table), 1)


async def check_not_null(transaction: Transaction, table: Table, column: Column) -> None:
    """Raise `NotNullViolation` if a row has NULL there."""
    async for row in all_rows(transaction, table):
        if row[column.number] is None:
            raise NotNullViolation(
                f"{table.name}.{column.name} is NULL in some rows",
                hint=f"UPDATE {table.name} SET {column.name} = … WHERE {column.name} IS NULL",
            )


async def check_condition(transaction: Transaction, table: Table, check: Check) -> None:
    """Raise `CheckViolation` if a row makes a CHECK false."""
    verify = verifier(changed(table, checks=(check,)))
    assert verify is not None
    try:
        async for row in all_rows(transaction, table):
            verify(row)
    except CheckViolation:
        raise CheckViolation(
            f"{table.name}: {check.name} is false for some rows", hint="change those first"
        ) from None


async def check_parents(transaction: Transaction, table: Table, key: ForeignKey) -> None:
    """Raise `ForeignKeyViolation` if a row names none. The table's definition has the key."""
    parent = transaction.catalog.tables[key.parent]
    await transaction.lock_table(parent, exclusive=True)
    changer = Changer(transaction, table)
    try:
        async for row in all_rows(transaction, table):
            await find_parents(changer, None, row)
    except ForeignKeyViolation as error:
        raise ForeignKeyViolation(error.message, hint="mend the rows first") from None


async def check_fits(
    transaction: Transaction, table: Table, column: Column, wanted: ColumnType
) -> None:
    """Raise `DataError` if the value of some row is none of another type."""
    keeps = keeping(column.type, wanted)
    keeps(column.fill)
    async for row in all_rows(transaction, table):
        keeps(row[column.number])


def keeping(old: ColumnType, wanted: ColumnType) -> Callable[[Stored], None]:
    """What raises `DataError` for a stored value of one type that would be another in another."""
    convert, accept = returning(old), accepting(wanted)

    def keeps(stored: Stored) -> None:
        if stored is None:
            return
        value = stored if convert is None else convert(stored)
        try:
            again = accept(value)
        except DataError as error:
            raise type(error)(error.message, hint="change those rows first") from None
        if again != stored:
            raise ValueInvalid(f"{value!r} would change in {wanted.sql}")

    return keeps


async def make_indexes_anew(transaction: Transaction, table: Table, column: Column) -> Table:
    """Give all indexes over a column other entries, of the definition that the table has now.

    Raises `OperationalError` while one of them is being built.
    """
    old = [index for index in table.indexes if column.number in index.columns]
    if not old:
        return table
    for index in old:
        if index.state is Building.BUILDING:
            raise OperationalError(
                f"index {index.name} is being built", hint="try again when it is ready"
            )
    indexes, number = list(table.indexes), table.next_index
    for place, index in enumerate(indexes):
        if index in old:
            indexes[place] = msgspec.structs.replace(index, number=number)
            number += 1
    table = changed(table, indexes=tuple(indexes), next_index=number)
    catalog, changes = transaction.catalog.with_table(table)
    marks = [erasing(table.store, index.number) for index in old]
    transaction.set_catalog(catalog, [*changes, *marks])
    await fill(transaction, table, [i for i in indexes if i.number >= number - len(old)])
    return table

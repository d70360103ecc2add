"""What staged rows need of their tablespace: numbers for those that have none, rows that they name.

Invariants:
- A number is given to one row, and later ones are higher.
- A row that is named is there, and stays: its table is locked.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from engine.ports.workers import Workers
from herd.changing import Changer
from herd.foreign_keys import find_parents
from herd.keys import PREFIX_BYTES
from herd.plan import Plan
from herd.rows import Row, encode_row
from herd.schema import Table
from herd.sequences import sequences_of
from herd.staging.layout import Order, Pair
from herd.staging.merging import StagedRows
from herd.transaction import FRESH, Transaction
from herd.types import Stored

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

Named = set[tuple[Stored, ...]]
"""The values of all foreign keys of some rows."""


async def new_rows(
    space: "Tablespace",
    workers: Workers,
    transaction: Transaction,
    plan: Plan,
    order: Order,
    staged: StagedRows,
) -> AsyncGenerator[list[Pair], None]:
    """The staged rows with their numbers, in the order of their keys.

    Raises `UniqueViolation` for a key that comes twice, `ValueOutOfRange`, `CannotRead`.
    """
    auto, sequences = plan.table.auto_column, sequences_of(space)
    async with aclosing(staged.lists(ordered=order.keyed)) as lists:
        async for pairs in lists:
            if auto is None or not order.numbered:
                yield pairs
                continue
            numbers = [sequences.take(transaction, plan.table, auto) for _ in pairs]
            work = partial(_numbered, plan, pairs, numbers, auto.number, keyed=order.keyed)
            yield await workers.run(work)


class Parents:
    """The rows that rows name by foreign keys: they are there, and stay."""

    def __init__(self, transaction: Transaction, table: Table) -> None:
        self._transaction = transaction
        self._changer = Changer(transaction, table)
        self._width = table.width
        plan = self._changer.plan
        self.columns = [number for _, key in plan.parents for number in key.columns]
        self._found: Named = set()

    def named(self, pairs: Sequence[Pair]) -> Named:
        """Whom rows name. May run in a thread."""
        decode, columns = self._changer.plan.decode, self.columns
        rows = [decode(FRESH + row) for _, row in pairs]
        return {tuple([row[number] for number in columns]) for row in rows}

    async def find(self, named: Named) -> None:
        """See that they are there. Raises `ForeignKeyViolation`."""
        for values in named - self._found:
            if not self._found:
                for _, key in self._changer.plan.parents:
                    parent = self._transaction.catalog.tables[key.parent]
                    await self._transaction.lock_table(parent, exclusive=True)
            row: Row = [None] * self._width
            for number, value in zip(self.columns, values, strict=True):
                row[number] = value
            await find_parents(self._changer, None, row)
            self._found.add(values)


def _numbered(
    plan: Plan, pairs: Sequence[Pair], numbers: Sequence[int], column: int, *, keyed: bool
) -> list[Pair]:
    numbered: list[Pair] = []
    for (key, encoded), number in zip(pairs, numbers, strict=True):
        row = plan.decode(FRESH + encoded)
        row[column] = number
        whole = key if keyed else plan.key_of(row)[PREFIX_BYTES:]
        numbered.append((whole, encode_row(row)))
    return numbered

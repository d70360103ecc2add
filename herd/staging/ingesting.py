"""Staged rows into a table, all at once, where its tablespace is led.

    written = await ingest(space, workers, identity, locator)

What fits into one transaction is one, with every lock and constraint of its own: who follows
changes sees it row by row. What is larger goes into rows of its own first, which nobody sees, and
becomes the table's by one small command: see `herd.staging.bulk`.

Invariants:
- A job is written once: it is marked by the very command that makes its rows visible, and who asks
  again is answered.
- Rows are taken only for the definition of which they were made.
- Nothing is read but what was staged for this tablespace, whatever ledgers the order names.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from engine.ports.workers import Workers
from herd.catalog import erasing
from herd.changing import Changer
from herd.checkpoint.blobs import read_from
from herd.checkpoint.manifest import Locator
from herd.errors import ForeignKeyViolation, ProgrammingError, TooLarge
from herd.locks import SCHEMA
from herd.plan import Plan
from herd.rows import Row, row_decoder
from herd.schema import Table
from herd.sequences import sequences_of
from herd.staging.bulk import Bulk
from herd.staging.layout import (
    Mode,
    Order,
    Pair,
    Staged,
    decode_order,
    decode_staged,
    digest,
)
from herd.staging.marks import JobMark
from herd.staging.merging import StagedRows, taken
from herd.staging.numbering import Parents, new_rows
from herd.staging.registry import open_staged
from herd.transaction import FRESH, Transaction
from herd.translating import translating
from herd.turns import ROWS_AT_ONCE

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

_ROWS_TOGETHER_MAX: Final = 200_000
"""More of them in one command would keep a leader busy for too long to stay one."""
_SET_AT_ONCE: Final = 2_000
_ROWS_ALONE_MAX: Final = 10_000
"""With more of them the table is locked as a whole: so many locks cost more than others' waits."""


class Written(NamedTuple):
    """What became of a job. `repeated`: it had been written before, and nothing was done now."""

    rows: int
    repeated: bool


async def ingest(
    space: "Tablespace", workers: Workers, identity: bytes, locator: Locator
) -> Written:
    """Put the rows of an order into its table, unless its job was written before.

    Raises `ProgrammingError` for a table that is another one by now, `IntegrityError`, `DataError`,
    `StorageFailed` for staged rows that cannot be read, `LockTimeout`, `LeaderUnavailable` and
    `CommitUnknown`: ask again.
    """
    with translating():
        order = decode_order(await _read(space, locator))
        mark = JobMark(space, order.table_id, identity)
        if await mark.is_written(order.former):
            return Written(0, True)
        parts = [decode_staged(await _read(space, part)) for part in order.parts]
        ingesting = _Ingesting(space, workers, mark, order, parts)
        if ingesting.fits:
            try:
                return await ingesting.as_one_transaction()
            except TooLarge:
                # With entries of indexes it is more than the rows alone.
                pass
        return await ingesting.in_bulk()


async def _read(space: "Tablespace", locator: Locator) -> bytes:
    return await read_from(await open_staged(space.client, space.name, locator.ledger_id), locator)


class _Ingesting:
    def __init__(
        self,
        space: "Tablespace",
        workers: Workers,
        mark: JobMark,
        order: Order,
        parts: Sequence[Staged],
    ) -> None:
        self._space = space
        self._workers = workers
        self._mark = mark
        self._order = order
        self._parts = parts
        self._rows = sum(part.rows for part in parts)
        size_bytes = sum(part.size_bytes for part in parts)
        limit = space.settings.transaction_bytes_max
        self.fits = size_bytes <= limit and self._rows <= _ROWS_TOGETHER_MAX
        """Whether it may be one transaction."""

    async def as_one_transaction(self) -> Written:
        """Change the table row by row, under locks. Raises `TooLarge` if that is too much."""
        overwrite = self._order.mode is Mode.OVERWRITE
        transaction = self._space.begin()
        try:
            with transaction.in_use():
                if overwrite:
                    await transaction.lock_name(SCHEMA)
                alone = overwrite or self._rows > _ROWS_ALONE_MAX
                table = await self._locked(transaction, alone=alone)
                if await self._mark.is_written(self._order.former):
                    return Written(0, True)
                with transaction.statement():
                    if overwrite:
                        table = self._emptied(transaction, table)
                    if alone and _is_plain(transaction, table):
                        await self._set(transaction, table, empty=overwrite)
                    else:
                        await self._change(transaction, table)
                sequences_of(self._space).write(transaction)
                self._mark.write(transaction)
                await transaction.commit()
        finally:
            transaction.rollback()
        return Written(self._rows, False)

    async def in_bulk(self) -> Written:
        """Give the table rows of its own, made aside."""
        bulk = Bulk(self._space, self._workers)
        async with bulk.begun() as transaction:
            table = await self._locked(transaction, alone=True)
            if await self._mark.is_written(self._order.former):
                return Written(0, True)
            if self._order.mode is Mode.OVERWRITE:
                _check_unreferred(transaction, table)
            staged = StagedRows(
                self._space.client, self._workers, self._space.name, table, self._parts
            )
            highest = max((part.highest for part in self._parts), default=0)
            await bulk.fill(transaction, table, self._order, staged)
            self._mark.write(transaction)
            await bulk.end(transaction, table, highest)
        return Written(self._rows, False)

    async def _locked(self, transaction: Transaction, *, alone: bool) -> Table:
        """The table, as it stays. Raises `ProgrammingError` if it is another one by now."""
        # The same job, or one before it, may be under way already: it is waited for.
        await transaction.lock_name(self._mark.name)
        table_id = self._order.table_id
        while (table := transaction.catalog.tables.get(table_id)) is not None:
            await transaction.lock_table(table, exclusive=alone)
            if transaction.catalog.tables.get(table_id) is table:
                break
        if table is None:
            raise ProgrammingError("the table was dropped while rows for it were made")
        if digest(table) != self._order.definition:
            raise ProgrammingError(
                f"the definition of {table.name} was changed while rows for it were made",
                hint="write them again",
            )
        return table

    def _emptied(self, transaction: Transaction, table: Table) -> Table:
        """Give the table another store, as TRUNCATE does."""
        _check_unreferred(transaction, table)
        if table.auto_column is not None:
            sequences_of(self._space).pass_over(transaction, table, table.auto_column, 0)
        catalog, [store] = transaction.catalog.new_ids(1)
        emptied = structs.replace(table, store=store)
        catalog, changes = catalog.with_table(emptied)
        transaction.set_catalog(catalog, [*changes, erasing(table.store)])
        return emptied

    async def _set(self, transaction: Transaction, table: Table, *, empty: bool) -> None:
        """Set rows of a table that is locked alone, where nothing else hangs on them."""
        replace, prefix, plan = self._order.mode is Mode.UPSERT, table.prefix, Plan(table, [])
        set_row, get = transaction.set_row, self._space.get_applied
        parents = Parents(transaction, table)
        staged = StagedRows(self._space.client, self._workers, self._space.name, table, self._parts)
        lists = new_rows(self._space, self._workers, transaction, plan, self._order, staged)
        async with aclosing(lists) as found:
            async for pairs in found:
                if parents.columns:
                    await parents.find(await self._workers.run(partial(parents.named, pairs)))
                for start in range(0, len(pairs), _SET_AT_ONCE):
                    for key, row in pairs[start : start + _SET_AT_ONCE]:
                        whole = prefix + key
                        # The table's lock keeps what is applied as it is.
                        if not (replace or empty) and get(whole) is not None:
                            raise taken(table, row)
                        set_row(whole, row)
                    await asyncio.sleep(0)

    async def _change(self, transaction: Transaction, table: Table) -> None:
        changer = Changer(transaction, table)
        change = changer.put_all if self._order.mode is Mode.UPSERT else changer.insert_all
        async with aclosing(self._row_lists(transaction, table)) as lists:
            async for rows in lists:
                await change(rows)

    async def _row_lists(
        self, transaction: Transaction, table: Table
    ) -> AsyncGenerator[list[Row], None]:
        staged = StagedRows(self._space.client, self._workers, self._space.name, table, self._parts)
        auto, sequences = table.auto_column, sequences_of(self._space)
        async with aclosing(staged.lists(ordered=self._order.keyed)) as lists:
            async for pairs in lists:
                rows = await self._workers.run(partial(_decoded, table, pairs))
                if auto is not None and self._order.numbered:
                    for row in rows:
                        row[auto.number] = sequences.take(transaction, table, auto)
                elif auto is not None and rows:
                    highest = max(row[auto.number] for row in rows)  # type: ignore[type-var]
                    assert isinstance(highest, int)
                    sequences.pass_over(transaction, table, auto, highest)
                for start in range(0, len(rows), ROWS_AT_ONCE):
                    yield rows[start : start + ROWS_AT_ONCE]


def _is_plain(transaction: Transaction, table: Table) -> bool:
    """Whether a row may be set without a look at indexes, other tables' rows or itself before."""
    children = transaction.catalog.plan(table).children
    named = all(key.parent_columns == table.primary for _, key in children)
    own = any(key.parent == table.id for key in table.foreign_keys)
    return named and not (own or table.indexes or table.full_changes)


def _decoded(table: Table, pairs: Sequence[Pair]) -> list[Row]:
    decode = row_decoder(table)
    return [decode(FRESH + row) for _, row in pairs]


def _check_unreferred(transaction: Transaction, table: Table) -> None:
    """Raise `ForeignKeyViolation` if other tables refer to one that is to be emptied."""
    for child in transaction.catalog.children_of(table):
        if child.id != table.id:
            raise ForeignKeyViolation(
                f"table {child.name} refers to {table.name}, which is to be overwritten",
                hint=f"write with upsert, or drop the foreign key of {child.name} first",
            )

"""More rows than a transaction holds: into a store of their own, which becomes a table's at once.

The store is marked to be erased before the first row is in it. The last command gives it to the
table, takes the mark away, marks the old store, and names the job. Rows that the table keeps are
copied along.

Invariants:
- Nobody sees the new store before the last command, and the old one after it.
- The table is locked from the first row that is copied to the last command.
- What was cut short is erased by whoever leads then: the mark is in the log before the rows.
- Others define tables meanwhile; only the last command waits for them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from engine.ports.workers import Workers
from engine.state.contract import Snapshot
from herd.catalog import erasing, rows_of
from herd.commands import Change, Write, encode_command
from herd.errors import LockTimeout, NotSupportedError, UniqueViolation
from herd.keys import PREFIX_BYTES
from herd.locks import SCHEMA
from herd.plan import Plan
from herd.rows import POSITION_BYTES, Row
from herd.schema import Table
from herd.sequences import sequences_of
from herd.staging.layout import Mode, Order, Pair
from herd.staging.merging import StagedRows, among
from herd.staging.numbering import Named, Parents, new_rows
from herd.transaction import FRESH, Transaction

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

_COMMAND_BYTES: Final = 1024 * 1024
_AT_ONCE: Final = 4
_PAGE_BYTES: Final = 2 * 1024 * 1024
_LOOK_S: Final = 0.05


class Bulk:
    """One such write. Use `begun`, then `fill`, then `end`."""

    def __init__(self, space: "Tablespace", workers: Workers) -> None:
        self._space = space
        self._workers = workers
        self._store = 0
        self._proposed: list[asyncio.Task[bytes]] = []

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Transaction]:
        """A transaction to end it with, and a store to fill; without an end the store is erased.

        Raises `LeaderUnavailable`, `LockTimeout`.
        """
        beginning = self._space.begin()
        try:
            await beginning.lock_name(SCHEMA)
            catalog, self._store, changes = beginning.catalog.with_store()
            beginning.set_catalog(catalog, changes)
            release = self._space.keep_store(self._store)
            ending = beginning
            try:
                await beginning.commit()
                ending = self._space.begin()
                with ending.in_use():
                    yield ending
            finally:
                ending.rollback()
                # It goes on although nobody waits for it any more.
                await asyncio.shield(asyncio.ensure_future(self._let_go(ending, release)))
        finally:
            beginning.rollback()

    async def fill(
        self, transaction: Transaction, table: Table, order: Order, staged: StagedRows
    ) -> None:
        """Write all rows that the table will have.

        Raises `IntegrityError`, `NotSupportedError` for tables that cannot be written so.
        """
        _check_possible(transaction, table, order)
        plan = Plan(structs.replace(table, store=self._store), [])
        parents = Parents(transaction, table)
        lists = new_rows(self._space, self._workers, transaction, plan, order, staged)
        async with aclosing(lists) as new:
            if order.mode is Mode.OVERWRITE:
                await self._write_all(transaction, plan, parents, new)
                return
            snapshot = self._space.view()
            try:
                replace = order.mode is Mode.UPSERT
                async with (
                    aclosing(self._old_rows(snapshot, table)) as old,
                    aclosing(among(old, new, table, replace=replace)) as both,
                ):
                    await self._write_all(transaction, plan, parents, both)
            finally:
                snapshot.close()

    async def end(self, transaction: Transaction, table: Table, highest: int) -> None:
        """Give the rows to the table. Raises `CommitUnknown`, `LockTimeout`."""
        await self._settle(0)
        await self._alone_in_defining(transaction)
        sequences = sequences_of(self._space)
        if table.auto_column is not None:
            sequences.pass_over(transaction, table, table.auto_column, highest)
        changed = structs.replace(transaction.catalog.tables[table.id], store=self._store)
        catalog, changes = transaction.catalog.with_table(changed)
        unmarked = (erasing(self._store)[0], None)
        transaction.set_catalog(catalog, [*changes, erasing(table.store), unmarked])
        sequences.write(transaction)
        await transaction.commit()

    # Rows

    async def _old_rows(self, snapshot: Snapshot, table: Table) -> AsyncGenerator[list[Pair], None]:
        above, end = rows_of(table)
        while True:
            page, last = await self._workers.run(partial(_page, snapshot, above, end))
            if page:
                yield page
            if last is None:
                return
            above = last

    async def _write_all(
        self,
        transaction: Transaction,
        plan: Plan,
        parents: Parents,
        lists: AsyncIterator[list[Pair]],
    ) -> None:
        unique = any(index.definition.unique for index in plan.indexes)
        prepare = _Preparing(plan, parents.columns, self._space.get_applied)
        async for pairs in lists:
            if unique:
                # Whether an entry is there already is looked up, so it has to be there by then.
                await self._settle(0)
            writes, named = await self._workers.run(partial(prepare.commands, pairs))
            await parents.find(named)
            for command in writes:
                await self._settle(_AT_ONCE - 1)
                proposing = self._space.propose(command, transaction.term)
                self._proposed.append(asyncio.create_task(proposing))

    async def _settle(self, left: int) -> None:
        """Wait until no more than so many commands are under way. Raises what one of them did."""
        while len(self._proposed) > left:
            # A wait that is cancelled must not take what is in the log for gone.
            await asyncio.wait(self._proposed[:1])
            self._proposed.pop(0).result()

    async def _let_go(self, ending: Transaction, release: Callable[[], None]) -> None:
        """Let the store be erased, if it is marked still, once nothing of it is under way.

        The mark's end may be in the log and not applied: who erased by it now would empty a table.
        """
        try:
            await asyncio.gather(*self._proposed, return_exceptions=True)
            if ending.logged is not None:
                await asyncio.wait([ending.logged])
        finally:
            release()

    async def _alone_in_defining(self, transaction: Transaction) -> None:
        """Be the only one who defines. It waits in no queue, where it could be in a circle.

        Somebody who defines may wait for this very table; he gives up first. Raises `LockTimeout`.
        """
        looks = int(3 * self._space.lock_timeout_ms / 1000 / _LOOK_S) + 1
        for _ in range(looks):
            transaction.check()
            if self._space.locks.try_lock(transaction, ("name", SCHEMA)):
                return
            await asyncio.sleep(_LOOK_S)
        raise LockTimeout("others define tables all the time", hint="try it again")


class _Preparing:
    """Makes commands of rows, in a thread."""

    def __init__(self, plan: Plan, named: Sequence[int], get: Any) -> None:
        self._plan = plan
        self._named = named
        self._get = get

    def commands(self, pairs: list[Pair]) -> tuple[list[bytes], Named]:
        """Commands that write these rows with their entries, and whom they name.

        Raises `UniqueViolation`, `DataError`.
        """
        plan, prefix = self._plan, self._plan.prefix
        rows: list[Change] = [(prefix + key, row) for key, row in pairs]
        plain: list[Change] = []
        named: Named = set()
        if plan.indexes or self._named:
            decode, numbers = plan.decode, self._named
            taken: set[bytes] = set()
            for key, encoded in rows:
                assert encoded is not None
                row = decode(FRESH + encoded)
                if numbers:
                    named.add(tuple([row[number] for number in numbers]))
                if plan.indexes:
                    plain += self._entries(key, row, taken)
        return list(_cut(rows, plain)), named

    def _entries(self, key: bytes, row: Row, taken: set[bytes]) -> Iterable[Change]:
        primary, found = key[PREFIX_BYTES:], []
        for index in self._plan.indexes:
            entry, unique = index.entry(row, primary)
            if unique:
                if entry in taken or self._get(entry) is not None:
                    values = ", ".join([repr(row[number]) for number in index.definition.columns])
                    raise UniqueViolation(
                        f"two rows of {self._plan.table.name} would have the unique "
                        f"{index.definition.name} {values}"
                    )
                taken.add(entry)
            found.append((entry, primary))
        return found


def _check_possible(transaction: Transaction, table: Table, order: Order) -> None:
    """Raise `NotSupportedError` for what only a transaction can check."""
    hint = "write it in parts that are smaller than a transaction"
    if any(key.parent == table.id for key in table.foreign_keys):
        raise NotSupportedError(f"so many rows of {table.name}, which name each other", hint=hint)
    if not order.keyed and table.primary != (table.auto_column.number,):  # type: ignore[union-attr]
        raise NotSupportedError(
            f"so many rows of {table.name} whose keys are numbered in part", hint=hint
        )
    if order.mode is Mode.UPSERT:
        for _, key in transaction.catalog.plan(table).children:
            if key.parent_columns != table.primary:
                raise NotSupportedError(
                    f"so many rows of {table.name}, to which others refer by {key.name}", hint=hint
                )


def _page(snapshot: Snapshot, above: bytes, end: bytes) -> tuple[list[Pair], bytes | None]:
    """Rows over a key, and the last key if there may be more."""
    found = snapshot.page(above, _PAGE_BYTES)
    page = [(key[PREFIX_BYTES:], value[POSITION_BYTES:]) for key, value in found if key < end]
    whole = len(page) < len(found) or not found
    return page, None if whole else found[-1][0]


def _cut(rows: list[Change], plain: list[Change]) -> Iterable[bytes]:
    """Commands of a useful size."""
    size_bytes = sum([len(key) + len(row or b"") for key, row in rows])
    size_bytes += sum([len(key) + len(value or b"") for key, value in plain])
    count = max(1, min(len(rows), -(-size_bytes // _COMMAND_BYTES)))
    for number in range(count):
        some = rows[number * len(rows) // count : (number + 1) * len(rows) // count]
        entries = plain[number * len(plain) // count : (number + 1) * len(plain) // count]
        yield encode_command(Write(some, entries))

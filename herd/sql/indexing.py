"""CREATE INDEX and DROP INDEX.

By itself, CREATE INDEX builds beside writers, in steps that are transactions of their own:

    1. the definition, BUILDING: from here on every change maintains the index
    2. page by page: each row is locked, read, and its entry added if it is not there; a page ends
       early at a row that somebody else has locked, and only a page's first row is waited for
    3. the definition, READY

Inside a transaction it builds all at once, with the table locked.

Invariants:
- No index is READY before every row has its entry. A duplicate ends the build; the index goes.
- A build that its leader did not end is ended by whoever leads next: the definition tells.
- Whoever defines holds the lock on the list of names, one at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from sqlglot import exp

from herd.catalog import Catalog, erasing, rows_of
from herd.errors import (
    Deadlock,
    LockTimeout,
    NameTaken,
    NoSuchIndex,
    NotSupportedError,
    ProgrammingError,
    UniqueViolation,
)
from herd.plan import IndexPlan
from herd.rows import Row
from herd.schema import Building, Index, Table
from herd.sql.constraints import changed, has_index_over, numbers_of, with_index
from herd.sql.defining import lock_definitions, set_table
from herd.sql.parsing import Parsed, place_of
from herd.sql.result import Result
from herd.sql.statement import Given, Work
from herd.transaction import Transaction

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

PAGE_ROWS: Final = 1_000
T = TypeVar("T")


class CreateIndex:
    """CREATE [UNIQUE] INDEX."""

    kind = "CREATE INDEX"
    needs_transaction = False

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Create)
        definition = tree.this
        self.table_name = definition.args["table"].name
        self.name = definition.this.name if definition.this is not None else ""
        self.unique = bool(tree.args.get("unique"))
        self.unless_there = bool(tree.args.get("exists"))
        parameters = definition.args.get("params")
        self.columns: list[exp.Expr] = []
        if parameters is not None:
            self.columns = parameters.args.get("columns") or []
        if not self.columns:
            raise ProgrammingError("an index needs columns", place=place_of(tree))
        if parameters.args.get("where") is not None:
            raise NotSupportedError("an index of some rows", place=place_of(tree))

    async def run(self, work: Work, given: Given) -> Result:
        """Build the index; it is READY when this returns. Raises `UniqueViolation`."""
        if work.own is not None:
            await self._run_within(work.own)
            return Result(count=0, kind=self.kind)
        transaction = work.space.begin()
        try:
            await lock_definitions(transaction)
            found = self.define(transaction, Building.BUILDING)
            if found is not None:
                table, index = found
                # Whoever changes rows now has to be done: the next ones know of the index.
                await transaction.lock_table(table, exclusive=True)
                set_table(transaction, table)
                await self._commit(transaction, work.space, (table.id, index.number))
        finally:
            transaction.rollback()
        if found is not None:
            # Who gives up the wait does not end the build.
            await asyncio.shield(builds_of(work.space).start(work.space, table.id, index.number))
        return Result(count=0, kind=self.kind)

    async def _commit(
        self, transaction: Transaction, space: "Tablespace", name: tuple[int, int]
    ) -> None:
        """Nobody else begins to build it when its definition is seen."""
        running = builds_of(space).running
        running.add(name)
        try:
            await transaction.commit()
        except BaseException:
            running.discard(name)
            raise

    async def _run_within(self, transaction: Transaction) -> None:
        await lock_definitions(transaction)
        found = self.define(transaction, Building.READY)
        if found is not None:
            table, index = found
            await transaction.lock_table(table, exclusive=True)
            set_table(transaction, table)
            await fill(transaction, table, [index])

    def define(self, transaction: Transaction, state: Building) -> tuple[Table, Index] | None:
        """The table with the index; None if it is there and may be."""
        table = transaction.catalog.table(self.table_name)
        if self.name and find_index(transaction.catalog, self.name) is not None:
            if self.unless_there:
                return None
            raise NameTaken(f"there is an index {self.name} already")
        numbers = numbers_of(table, self.columns)
        table = with_index(table, numbers, name=self.name, unique=self.unique, state=state)
        return table, table.indexes[-1]


def find_index(catalog: Catalog, name: str) -> tuple[Table, Index] | None:
    """An index of whatever table, by its name in any case of letters."""
    wanted = name.lower()
    for table in catalog.tables.values():
        for index in table.indexes:
            if index.name.lower() == wanted:
                return table, index
    return None


class DropIndex:
    """DROP INDEX."""

    kind = "DROP INDEX"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Drop)
        self.nodes = tree.args.get("tables") or []
        self.if_there = bool(tree.args.get("exists"))

    async def run(self, work: Work, given: Given) -> Result:
        """Drop the indexes; their entries are erased later."""
        transaction = work.transaction
        await lock_definitions(transaction)
        for node in self.nodes:
            found = find_index(transaction.catalog, node.name)
            if found is None:
                if self.if_there:
                    continue
                raise NoSuchIndex(f"there is no index {node.name}", place=place_of(node))
            table, index = found
            if index.constraint:
                raise ProgrammingError(
                    f"{index.name} belongs to a UNIQUE of {table.name}",
                    hint=f"ALTER TABLE {table.name} DROP CONSTRAINT {index.name}",
                )
            await transaction.lock_table(table, exclusive=True)
            drop_index(transaction, table, index)
        return Result(count=0, kind=self.kind)


def drop_index(transaction: Transaction, table: Table, index: Index) -> Table:
    """Take an index out of a table that is locked. Raises `ProgrammingError` if it is needed."""
    for key in table.foreign_keys:
        if index.columns[: len(key.columns)] == key.columns:
            if not has_index_over(table, key.columns, index.number):
                raise ProgrammingError(
                    f"the foreign key {key.name} needs {index.name}", hint="drop it first"
                )
    _check_unreferred(transaction.catalog, table, index)
    rest = tuple(other for other in table.indexes if other.number != index.number)
    table = changed(table, indexes=rest)
    catalog, changes = transaction.catalog.with_table(table)
    transaction.set_catalog(catalog, [*changes, erasing(table.store, index.number)])
    return table


def _check_unreferred(catalog: Catalog, table: Table, index: Index) -> None:
    for child in (*catalog.children_of(table), table):
        for key in child.foreign_keys:
            if key.parent == table.id and key.parent_columns == index.columns and index.unique:
                if key.parent_columns != table.primary:
                    raise ProgrammingError(
                        f"{key.name} of {child.name} refers to {index.name}",
                        hint="drop the foreign key first",
                    )


# Building


async def fill(transaction: Transaction, table: Table, indexes: list[Index]) -> None:
    """Add the entries of all rows of a table that is locked alone. Raises `UniqueViolation`."""
    plan = transaction.catalog.plan(table)
    numbers = {index.number for index in indexes}
    plans = [one for one in plan.indexes if one.definition.number in numbers]
    first, end = rows_of(table)
    while page := transaction.scan_newest(first, end, PAGE_ROWS):
        for key, value in page:
            _add_entries(transaction, table, plans, plan.decode(value), key[len(plan.prefix) :])
        first = page[-1][0] + b"\x00"
        # Long tables let others have their turn.
        await asyncio.sleep(0)


def _add_entries(
    transaction: Transaction, table: Table, plans: list[IndexPlan], row: Row, primary: bytes
) -> None:
    for one in plans:
        entry, unique = one.entry(row, primary)
        found = transaction.get_newest_plain(entry)
        if unique and found is not None and found != primary:
            shown = ", ".join(repr(row[number]) for number in one.definition.columns)
            raise UniqueViolation(
                f"{table.name} has two rows with {shown}: {one.definition.name} cannot be unique"
            )
        if found is None:
            transaction.set_plain(entry, primary)


class Builds:
    """The builds that run on this replica."""

    def __init__(self) -> None:
        self.running: set[tuple[int, int]] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, space: "Tablespace", table_id: int, number: int) -> "asyncio.Task[None]":
        """Build an index beside all other work."""
        self.running.add((table_id, number))
        task = asyncio.ensure_future(build(space, table_id, number))
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            # A duplicate took the index away, or this leader is none any more: whoever waits for it
            # is told, and the next leader goes on.
            task.exception()


def builds_of(space: "Tablespace") -> Builds:
    """Those of a tablespace."""

    def make() -> Builds:
        builds = Builds()
        space.watch_terms(partial(_continue_all, space, builds))
        return builds

    return space.attached(Builds, make)


def _continue_all(space: "Tablespace", builds: Builds) -> None:
    """Continue what another leader began, in the background and without reporting to anybody."""
    for table in space.catalog.tables.values():
        for index in table.indexes:
            name = (table.id, index.number)
            if index.state is Building.BUILDING and name not in builds.running:
                builds.start(space, *name)


async def build(space: "Tablespace", table_id: int, number: int) -> None:
    """Add the entries of all rows, beside writers, and make an index READY.

    Raises `UniqueViolation`, after which the index is gone, `LeaderUnavailable`, after which
    another leader goes on, `NoSuchIndex` if somebody dropped it.
    """
    try:
        first: bytes | None = b""
        while first is not None:
            first = await _patiently(partial(_build_page, space, table_id, number, first))
        await _patiently(partial(_change_state, space, table_id, number, keep=True))
    except UniqueViolation:
        await _patiently(partial(_change_state, space, table_id, number, keep=False))
        raise
    finally:
        builds_of(space).running.discard((table_id, number))


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Others' locks make it wait as long as they are held: a build gives way and tries again."""
    while True:
        try:
            return await work()
        except (LockTimeout, Deadlock):
            await asyncio.sleep(0)


async def _build_page(
    space: "Tablespace", table_id: int, number: int, first: bytes
) -> bytes | None:
    """Add the entries of one page of rows; answers where the next one begins, None at the end."""
    transaction = space.begin()
    try:
        table, one = await _locked(transaction, table_id, number)
        plan = transaction.catalog.plan(table)
        start, end = rows_of(table)
        page = space.rows_scan(max(first, start), end, PAGE_ROWS)
        next_first = page[-1][0] + b"\x00" if len(page) == PAGE_ROWS else None
        for place, (key, _) in enumerate(page):
            if place and space.locks.held_by_others(transaction, key):
                # It waits for nobody while it keeps others waiting.
                next_first = key
                break
            await transaction.lock_row(table, key)
            value = transaction.get_newest(key)
            if value is None:
                continue
            row, primary = plan.decode(value), key[len(plan.prefix) :]
            entry, unique = one.entry(row, primary)
            if unique:
                if place and space.locks.held_by_others(transaction, entry):
                    next_first = key
                    break
                await transaction.lock_row(table, entry)
            _add_entries(transaction, table, [one], row, primary)
        await transaction.commit()
        return next_first
    finally:
        transaction.rollback()


async def _locked(transaction: Transaction, table_id: int, number: int) -> tuple[Table, IndexPlan]:
    """The table and the index as they are now, kept so. Raises `NoSuchIndex`."""
    table = await transaction.lock_definition(table_id)
    if table is not None:
        for one in transaction.catalog.plan(table).indexes:
            if one.definition.number == number:
                return table, one
    raise NoSuchIndex("the index was dropped while it was built")


async def _change_state(space: "Tablespace", table_id: int, number: int, *, keep: bool) -> None:
    """Make an index READY, or take it away."""
    transaction = space.begin()
    try:
        await lock_definitions(transaction)
        table, one = await _locked(transaction, table_id, number)
        if keep:
            ready = msgspec.structs.replace(one.definition, state=Building.READY)
            indexes = tuple(ready if i.number == number else i for i in table.indexes)
            set_table(transaction, changed(table, indexes=indexes))
        else:
            await transaction.lock_table(table, exclusive=True)
            drop_index(transaction, table, one.definition)
        await transaction.commit()
    finally:
        transaction.rollback()

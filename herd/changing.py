"""Changing rows of one table: every constraint checked under locks before anything is kept.

    with transaction.statement():
        await Changer(transaction, table).update_all(changes)

Rows that are changed together are one change: keys may be swapped or shifted among them, and a
row may go together with those that refer to it.

Invariants:
- A row's key, its unique keys (absent ones, too) and the parents that it names are locked before
  they are looked at, and stay locked to the end of the transaction.
- Constraints are checked against what is committed now, whatever the transaction's snapshot shows.
- What a change removes from the indexes is what the row before put there, and its own.
- Children are looked for when the parent has gone and its keys are locked: refused, removed,
  detached or taken along. Parents are looked for last of all.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from herd.errors import NotNullViolation, UniqueViolation
from herd.foreign_keys import Consequences, find_parents
from herd.plan import Plan
from herd.rows import Row, encode_row
from herd.schema import Table
from herd.transaction import Transaction
from herd.turns import ROWS_AT_ONCE, in_parts, in_turns
from herd.types import Stored

Verify = Callable[[Row], None]
"""Raises `CheckViolation` for a row that a CHECK of the table refuses."""

VerifyOf = Callable[[Table], Verify | None]
"""What verifies the rows of a table, for the rows that a change takes along."""

Change = tuple[bytes, Row, Row | None]
"""The key of a row that is locked, the row as it is and as it will be; None removes it."""

_NONE: Final[dict[bytes, bool]] = {}


class Changer:
    """Changes rows of one table in one transaction; call it within a `statement()`."""

    def __init__(
        self,
        transaction: Transaction,
        table: Table,
        verify: Verify | None = None,
        verify_of: VerifyOf | None = None,
    ) -> None:
        self.table = table
        self.plan: Plan = transaction.catalog.plan(table)
        self.transaction = transaction
        self._verify = verify
        self._verify_of = verify_of

    def of(self, table: Table) -> "Changer":
        """One like this, of another table."""
        verify = self._verify_of(table) if self._verify_of is not None else None
        return Changer(self.transaction, table, verify, self._verify_of)

    async def insert(self, row: Row) -> None:
        """Add a row.

        Raises `UniqueViolation`, `NotNullViolation`, `ForeignKeyViolation`, `CheckViolation`,
        `SerializationFailure`, `ValueTooLong` and what waiting for locks raises.
        """
        await self._add(row)
        if self.plan.parents:
            await find_parents(self, None, row)

    async def insert_all(self, rows: Sequence[Row]) -> None:
        """Add rows, which may refer to each other. Raises as `insert`."""
        plain = not self.plan.indexes
        for number, row in enumerate(rows, 1):
            if not (plain and self._add_now(row)):
                await self._add(row)
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._find_parents(rows)

    async def put_all(self, rows: Sequence[Row]) -> None:
        """Add rows, in place of those with their keys, of which each is given once.

        Raises as `insert`.
        """
        plain = not self.plan.indexes
        added: list[Row] = []
        replaced: list[Change] = []
        for number, row in enumerate(rows, 1):
            if plain and self._add_now(row):
                added.append(row)
            else:
                key = self.plan.key_of(row)
                await self.transaction.lock_row(self.table, key)
                value = self.transaction.get_newest(key)
                self.transaction.check_unchanged(self.table, value, key)
                if value is None:
                    await self._add(row)
                    added.append(row)
                else:
                    replaced.append((key, self.plan.decode(value), row))
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._find_parents(added)
        if replaced:
            await self.change_all(replaced)

    async def put_locked(self, rows: Sequence[tuple[bytes, Row | None, Row]]) -> None:
        """Set rows whose keys this transaction has locked, and has looked at since.

        Each with its whole key, as it is (None: there is none) and as it will be. Raises as
        `insert`.
        """
        plain = not self.plan.indexes
        added: list[Row] = []
        replaced: list[Change] = []
        for number, (key, before, after) in enumerate(rows, 1):
            if before is not None:
                replaced.append((key, before, after))
            else:
                if plain:
                    self._check(after)
                    self._set(key, None, after)
                else:
                    await self._add(after)
                added.append(after)
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._find_parents(added)
        if replaced:
            await self.change_all(replaced)

    async def _find_parents(self, rows: Sequence[Row]) -> None:
        if not self.plan.parents:
            return
        # A parent that was found is locked: it is there for all rows that name it.
        columns = [number for _, key in self.plan.parents for number in key.columns]
        found: set[tuple[Stored, ...]] = set()
        async for some in in_parts(rows):
            for row in some:
                named = tuple([row[number] for number in columns])
                if named not in found:
                    found.add(named)
                    await find_parents(self, None, row)

    async def update(self, key: bytes, before: Row, after: Row) -> None:
        """Change a row that is locked. Its primary key may change. Raises as `insert`."""
        await self.change_all([(key, before, after)])

    async def update_all(self, changes: Sequence[tuple[bytes, Row, Row]]) -> None:
        """Change rows that are locked, as one change. Raises as `insert`."""
        await self.change_all(changes)

    async def delete(self, key: bytes, row: Row) -> None:
        """Remove a row that is locked, and what goes with it. Raises `ForeignKeyViolation`."""
        await self.change_all([(key, row, None)])

    async def delete_all(self, rows: Iterable[tuple[bytes, Row]]) -> None:
        """Remove rows that are locked, as one change. Raises `ForeignKeyViolation`."""
        await self.change_all([(key, row, None) for key, row in rows])

    async def change_all(self, changes: Sequence[Change]) -> None:
        """Change and remove rows that are locked, as one change. Raises as `insert`."""
        consequences = Consequences()
        await self.apply(changes, consequences)
        await consequences.settle()

    async def apply(self, changes: Sequence[Change], consequences: Consequences) -> None:
        """Make the changes to these rows themselves, and note what they ask of others."""
        placed: list[tuple[bytes, bytes, Row, Row, dict[bytes, bool]]] = []
        async for key, before, after in in_turns(changes):
            old = self.plan.entries(before, key) if self.plan.indexes else _NONE
            if after is None:
                await self._remove_entries(key, old, _NONE)
                self._set(key, before, None)
            else:
                self._check(after)
                new_key = self.plan.key_of(after)
                new = self.plan.entries(after, new_key) if self.plan.indexes else _NONE
                await self._remove_entries(key, old, new if new_key == key else _NONE)
                if new_key != key:
                    self._set(key, before, None)
                    old = _NONE
                placed.append((key, new_key, before, after, old))
            if self.plan.children:
                consequences.parent_changed(self, before, after)
        async for key, new_key, before, after, old in in_turns(placed):
            if new_key != key:
                await self._lock_free(new_key, after)
            await self._add_entries(new_key, after, old)
            self._set(new_key, before if new_key == key else None, after)
            if self.plan.parents:
                consequences.child_changed(self, new_key, before if new_key == key else None)

    def _add_now(self, row: Row) -> bool:
        """Add a row without entries whose key is free; False where that may take a wait."""
        self._check(row)
        key = self.plan.key_of(row)
        if not self.transaction.try_free(self.table, key):
            return False
        self._set(key, None, row)
        return True

    async def _add(self, row: Row) -> None:
        self._check(row)
        key = self.plan.key_of(row)
        await self._lock_free(key, row)
        if self.plan.indexes:
            await self._add_entries(key, row, _NONE)
        self._set(key, None, row)

    async def _lock_free(self, key: bytes, row: Row) -> None:
        """Lock a key that no row may have."""
        transaction = self.transaction
        await transaction.lock_row(self.table, key)
        newest = transaction.get_newest(key)
        transaction.check_unchanged(self.table, newest, key)
        if newest is not None:
            raise self._taken("primary key", [row[number] for number in self.table.primary])

    def _set(self, key: bytes, before: Row | None, after: Row | None) -> None:
        if self.table.full_changes:
            self.transaction.set_before(key, None if before is None else encode_row(before))
        self.transaction.set_row(key, None if after is None else encode_row(after))

    async def _remove_entries(
        self, key: bytes, old: dict[bytes, bool], new: dict[bytes, bool]
    ) -> None:
        transaction, primary = self.transaction, key[len(self.plan.prefix) :]
        for entry, unique in old.items():
            if entry in new:
                continue
            if unique:
                await transaction.lock_row(self.table, entry)
                if transaction.get_newest_plain(entry) != primary:
                    # An index that is being built has not come to this row: the entry is another's.
                    continue
            transaction.set_plain(entry, None)

    async def _add_entries(self, key: bytes, row: Row, old: dict[bytes, bool]) -> None:
        transaction, plan = self.transaction, self.plan
        primary = key[len(plan.prefix) :]
        for entry, unique in plan.entries(row, key).items():
            if entry in old:
                continue
            if unique:
                await transaction.lock_row(self.table, entry)
                if transaction.get_newest_plain(entry) is not None:
                    raise self._taken_entry(entry, row)
            transaction.set_plain(entry, primary)

    def _check(self, row: Row) -> None:
        if None in row:
            for column in self.plan.required:
                if row[column.number] is None:
                    raise NotNullViolation(f"{self.table.name}.{column.name} may not be NULL")
        if self._verify is not None:
            self._verify(row)

    # Words

    def _taken(self, what: str, values: Row) -> UniqueViolation:
        shown = ", ".join(repr(value) for value in values)
        return UniqueViolation(f"{self.table.name} has a row with the {what} {shown} already")

    def _taken_entry(self, entry: bytes, row: Row) -> UniqueViolation:
        for index in self.plan.indexes:
            if entry.startswith(index.prefix):
                values = [row[number] for number in index.definition.columns]
                return self._taken(f"unique {index.definition.name}", values)
        raise AssertionError("an entry is of an index of its table")

"""Changing rows of one table: every constraint checked under locks before anything is kept.

Invariants:
- A row's key, its unique keys (absent ones, too) and the parents that it names are locked before
  they are looked at, and stay locked to the end of the transaction.
- What a change removes from the indexes is what the row before put there.
- Children are seen to before a parent goes: refused, removed, or set to NULL.
"""

from collections.abc import Callable, Sequence
from typing import Final

from herd.errors import (
    ForeignKeyViolation,
    NotNullViolation,
    UniqueViolation,
)
from herd.keys import key_encoder, successor
from herd.plan import Plan, Reference
from herd.rows import Row, encode_row
from herd.schema import OnDelete, Table
from herd.transaction import Transaction

Verify = Callable[[Row], None]
"""Raises `CheckViolation` for a row that a CHECK of the table refuses."""

_DEPTH_MAX: Final = 64
_PAGE_ROWS: Final = 1_000


class Changer:
    """Changes rows of one table in one transaction."""

    def __init__(self, transaction: Transaction, table: Table, verify: Verify | None = None):
        self.table = table
        self.plan: Plan = transaction.catalog.plan(table)
        self._transaction = transaction
        self._verify = verify

    async def insert(self, row: Row) -> None:
        """Add a row. Raises `UniqueViolation`, `NotNullViolation` and what checks raise."""
        self._check(row)
        key = self.plan.key_of(row)
        transaction = self._transaction
        await transaction.lock_row(self.table, key)
        newest = transaction.get_newest(key)
        if newest is not None:
            transaction.check_unchanged(self.table, newest)
            raise self._taken("primary key", [row[number] for number in self.table.primary])
        await self._put(key, None, row)

    async def update(self, key: bytes, before: Row, after: Row) -> None:
        """Change a row that is locked. Its primary key may change."""
        self._check(after)
        new_key = self.plan.key_of(after)
        if new_key != key:
            await self._move(key, before, new_key, after)
            return
        if self.plan.children:
            await self._leave_children(before, after)
        await self._put(key, before, after)

    async def delete(self, key: bytes, row: Row, depth: int = 0) -> None:
        """Remove a row that is locked, and what goes with it."""
        if self.plan.children:
            await self._leave_children(row, None, depth)
        transaction = self._transaction
        for entry, unique in self.plan.entries(row, key).items():
            if unique:
                await transaction.lock_row(self.table, entry)
            transaction.set_plain(entry, None)
        self._note_before(key, row)
        transaction.set_row(key, None)

    async def _move(self, key: bytes, before: Row, new_key: bytes, after: Row) -> None:
        transaction = self._transaction
        await transaction.lock_row(self.table, new_key)
        if transaction.get_newest(new_key) is not None:
            raise self._taken("primary key", [after[number] for number in self.table.primary])
        await self.delete_for_move(key, before, after)
        await self._put(new_key, None, after)

    async def delete_for_move(self, key: bytes, before: Row, after: Row) -> None:
        """Remove a row that comes back under another key."""
        if self.plan.children:
            await self._leave_children(before, after)
        transaction = self._transaction
        for entry, unique in self.plan.entries(before, key).items():
            if unique:
                await transaction.lock_row(self.table, entry)
            transaction.set_plain(entry, None)
        self._note_before(key, before)
        transaction.set_row(key, None)

    async def _put(self, key: bytes, before: Row | None, after: Row) -> None:
        if self.plan.indexes:
            await self._put_entries(key, before, after)
        if self.plan.parents:
            await self._find_parents(before, after)
        self._note_before(key, before)
        self._transaction.set_row(key, encode_row(after))

    def _note_before(self, key: bytes, before: Row | None) -> None:
        if self.table.full_changes:
            self._transaction.set_before(key, None if before is None else encode_row(before))

    async def _put_entries(self, key: bytes, before: Row | None, after: Row) -> None:
        transaction, plan = self._transaction, self.plan
        old = plan.entries(before, key) if before is not None else {}
        new = plan.entries(after, key)
        for entry, unique in old.items():
            if entry not in new:
                if unique:
                    await transaction.lock_row(self.table, entry)
                transaction.set_plain(entry, None)
        primary = key[len(plan.prefix) :]
        for entry, unique in new.items():
            if entry in old:
                continue
            if unique:
                await transaction.lock_row(self.table, entry)
                if transaction.get_plain(entry) is not None:
                    raise self._taken_entry(entry, after)
            transaction.set_plain(entry, primary)

    def _check(self, row: Row) -> None:
        for column in self.plan.required:
            if row[column.number] is None:
                raise NotNullViolation(f"{self.table.name}.{column.name} may not be NULL")
        if self._verify is not None:
            self._verify(row)

    # Foreign keys

    async def _find_parents(self, before: Row | None, after: Row) -> None:
        for _, key in self.plan.parents:
            values = [after[number] for number in key.columns]
            if None in values:
                continue
            if before is not None and values == [before[number] for number in key.columns]:
                continue
            if not await self._parent_is_there(key.parent, key.parent_columns, values, after):
                raise ForeignKeyViolation(
                    f"{self.table.name}: {key.name} refers to a row that is not there"
                )

    async def _parent_is_there(
        self, parent_id: int, columns: Sequence[int], values: Row, after: Row
    ) -> bool:
        transaction = self._transaction
        parent = transaction.catalog.tables[parent_id]
        plan = transaction.catalog.plan(parent)
        if tuple(columns) == parent.primary:
            key = plan.prefix + plan.encode_primary(values)
            if parent.id == self.table.id and key == self.plan.key_of(after):
                return True
            await transaction.lock_row(parent, key, exclusive=False)
            return transaction.get_newest(key) is not None
        index = plan.index_over(tuple(columns))
        assert index is not None, "a foreign key names a primary or a unique key"
        entry = index.beginning(values)
        if parent.id == self.table.id and values == [after[number] for number in columns]:
            return True
        await transaction.lock_row(parent, entry, exclusive=False)
        return transaction.get_plain(entry) is not None

    async def _leave_children(self, before: Row, after: Row | None, depth: int = 0) -> None:
        """Refuse, remove or detach rows that name what goes."""
        if depth > _DEPTH_MAX:
            raise ForeignKeyViolation(f"{self.table.name}: rows refer to each other too deeply")
        for reference in self.plan.children:
            columns = reference.key.parent_columns
            values = [before[number] for number in columns]
            if None in values:
                continue
            if after is not None and values == [after[number] for number in columns]:
                continue
            rule = reference.key.on_delete if after is None else reference.key.on_update
            await self._leave(reference, values, rule, after, depth)

    async def _leave(
        self, reference: Reference, values: Row, rule: OnDelete, after: Row | None, depth: int
    ) -> None:
        transaction = self._transaction
        child = transaction.catalog.tables[reference.child.id]
        changer = Changer(transaction, child)
        await transaction.lock_table(child)
        for key, row in await self._children(changer, reference, values):
            if rule is OnDelete.RESTRICT:
                raise ForeignKeyViolation(
                    f"{child.name}: {reference.key.name} still refers to this row of "
                    f"{self.table.name}"
                )
            if rule is OnDelete.CASCADE and after is None:
                await changer.delete(key, row, depth + 1)
                continue
            changed = list(row)
            for place, number in enumerate(reference.key.columns):
                cascaded = rule is OnDelete.CASCADE and after is not None
                changed[number] = (
                    after[reference.key.parent_columns[place]]
                    if cascaded and after is not None
                    else None
                )
            if rule is OnDelete.CASCADE:
                await changer.put_cascaded(key, row, changed)
            else:
                await changer.update(key, row, changed)

    async def put_cascaded(self, key: bytes, before: Row, after: Row) -> None:
        """Change a child whose parent is about to have the new key."""
        self._check(after)
        await self._put_entries(key, before, after)
        self._note_before(key, before)
        self._transaction.set_row(key, encode_row(after))

    async def _children(
        self, changer: "Changer", reference: Reference, values: Row
    ) -> list[tuple[bytes, Row]]:
        """The children that name these values, locked."""
        transaction, plan = self._transaction, changer.plan
        columns = reference.key.columns
        found: list[tuple[bytes, Row]] = []
        for key in self._child_keys(changer, columns, values):
            await transaction.lock_row(changer.table, key)
            value = transaction.get_newest(key)
            if value is None:
                continue
            row = plan.decode(value)
            if [row[number] for number in columns] == values:
                transaction.check_unchanged(changer.table, value)
                found.append((key, row))
        return found

    def _child_keys(self, changer: "Changer", columns: tuple[int, ...], values: Row) -> list[bytes]:
        plan, table = changer.plan, changer.table
        if table.primary[: len(columns)] == columns:
            types = tuple(table.by_number[number].type for number in columns)
            beginning = plan.prefix + key_encoder(types, (False,) * len(types))(values)
            return [key for key, _ in self._all(self._transaction.scan, beginning)]
        for index in plan.indexes:
            if index.definition.columns[: len(columns)] == columns:
                some = [table.by_number[number] for number in columns]
                encode = key_encoder(tuple(c.type for c in some), tuple(c.nullable for c in some))
                beginning = index.prefix + encode(values)
                entries = self._all(self._transaction.scan_plain, beginning)
                return [plan.prefix + primary for _, primary in entries]
        raise AssertionError("a foreign key has an index of its own")

    def _all(
        self, scan: Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]], beginning: bytes
    ) -> list[tuple[bytes, bytes]]:
        first, end = beginning, successor(beginning)
        found: list[tuple[bytes, bytes]] = []
        while page := scan(first, end, _PAGE_ROWS):
            found += page
            if len(page) < _PAGE_ROWS:
                break
            first = page[-1][0] + b"\x00"
        return found

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

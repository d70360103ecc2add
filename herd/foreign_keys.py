"""What a change of some rows asks of those that they name, and of those that name them.

Invariants:
- A row that is named is locked, shared, before it is looked at; so nobody takes it away, and who
  took it away, or its key, is waited for.
- Children are changed in rounds: all that one round asks of a row is one change of it.
- A table's definition is what it is once its lock is held, never what it was before the wait.
- A parent that is missed by somebody is only missed in the end: another row may have taken its key,
  and children may have gone by other ways.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from herd.errors import ForeignKeyViolation, NotSupportedError
from herd.keys import key_encoder, successor
from herd.plan import Plan, Reference
from herd.rows import Row
from herd.schema import OnDelete
from herd.transaction import Transaction
from herd.types import Stored, returning

if TYPE_CHECKING:
    from herd.changing import Changer

_PAGE_ROWS: Final = 1_000


class _Parent(NamedTuple):
    changer: "Changer"
    before: Row
    after: Row | None


class _Missed(NamedTuple):
    changer: "Changer"
    child: "Changer"
    reference: Reference
    values: Row


class _Child:
    """A row that has to change because of another one."""

    def __init__(self, changer: "Changer", row: Row) -> None:
        self.changer = changer
        self.row = row
        self.after: Row | None = list(row)


class Consequences:
    """All that one change asks of other rows."""

    def __init__(self) -> None:
        self._parents: list[_Parent] = []
        self._missed: list[_Missed] = []
        self._children: dict[bytes, tuple[Changer, Row | None]] = {}

    def parent_changed(self, changer: "Changer", before: Row, after: Row | None) -> None:
        """A row that others may name is not what it was."""
        self._parents.append(_Parent(changer, before, after))

    def child_changed(self, changer: "Changer", key: bytes, before: Row | None) -> None:
        """A row may name others than before; None: it was not there under this key."""
        self._children.setdefault(key, (changer, before))

    async def settle(self) -> None:
        """Do all of it. Raises `ForeignKeyViolation` and what changing rows raises."""
        while self._parents:
            parents, self._parents = self._parents, []
            found: dict[bytes, _Child] = {}
            for parent in parents:
                await self._gather(parent, found)
            by_table: dict[int, list[tuple[bytes, _Child]]] = {}
            for key, child in found.items():
                by_table.setdefault(child.changer.table.id, []).append((key, child))
            for children in by_table.values():
                changes = [(key, child.row, child.after) for key, child in children]
                await children[0][1].changer.apply(changes, self)
        for missed in self._missed:
            await _check_missed(missed)
        for key, (changer, before) in self._children.items():
            value = changer.transaction.get_newest(key)
            if value is not None:
                await find_parents(changer, before, changer.plan.decode(value))

    async def _gather(self, parent: _Parent, found: dict[bytes, _Child]) -> None:
        """What a parent's change makes of its children."""
        changer, before, after = parent
        for reference in changer.plan.children:
            columns = reference.key.parent_columns
            values = [before[number] for number in columns]
            now = None if after is None else [after[number] for number in columns]
            if None in values or values == now:
                continue
            table = await changer.transaction.lock_definition(reference.child.id)
            if table is None or reference.key not in table.foreign_keys:
                # Its table, or the key, went while this one waited for its lock.
                continue
            child = changer.of(table)
            rule = reference.key.on_delete if now is None else reference.key.on_update
            if rule is OnDelete.RESTRICT:
                self._missed.append(_Missed(changer, child, reference, values))
                continue
            if rule is OnDelete.SET_DEFAULT:
                raise NotSupportedError(
                    f"{reference.key.name}: SET DEFAULT is not supported", hint="use SET NULL"
                )
            taken_along = rule is OnDelete.CASCADE
            async for key, row in _children(child, reference, values):
                one = found.setdefault(key, _Child(child, row))
                if taken_along and now is None:
                    one.after = None
                elif one.after is not None:
                    new_values = _taken(changer, child, reference, now if taken_along else None)
                    for number, value in zip(reference.key.columns, new_values, strict=True):
                        one.after[number] = value


def _taken(parent: "Changer", child: "Changer", reference: Reference, values: Row | None) -> Row:
    """A parent's values as its children's columns have them; None: none. Raises `DataError`."""
    key = reference.key
    if values is None:
        return [None] * len(key.columns)
    taken: Row = []
    for number, of, value in zip(key.columns, key.parent_columns, values, strict=True):
        convert = returning(parent.table.by_number[of].type)
        given = value if value is None or convert is None else convert(value)
        taken.append(None if given is None else child.plan.accept[number](given))
    return taken


async def find_parents(changer: "Changer", before: Row | None, after: Row) -> None:
    """See that the rows that a row names are there, and stay. Raises `ForeignKeyViolation`."""
    transaction = changer.transaction
    for _, key in changer.plan.parents:
        values = [after[number] for number in key.columns]
        if None in values:
            continue
        if before is not None and values == [before[number] for number in key.columns]:
            continue
        if not await _is_there(transaction, key.parent, key.parent_columns, values):
            raise ForeignKeyViolation(
                f"{changer.table.name}: {key.name} refers to a row that is not there"
            )


async def _check_missed(missed: _Missed) -> None:
    changer, child, reference, values = missed
    columns = reference.key.parent_columns
    if await _is_there(changer.transaction, changer.table.id, columns, values):
        return
    async for _ in _children(child, reference, values):
        raise ForeignKeyViolation(
            f"{child.table.name}: {reference.key.name} still refers to this row of "
            f"{changer.table.name}"
        )


async def _is_there(
    transaction: Transaction, parent_id: int, columns: tuple[int, ...], values: Row
) -> bool:
    """Whether a row has these values of a key, looked at under a lock of that key."""
    parent = await transaction.lock_definition(parent_id)
    assert parent is not None, "a table that others name is not dropped"
    plan = transaction.catalog.plan(parent)
    if set(columns) == set(parent.primary):
        key = plan.prefix + plan.encode_primary(_in_order(parent.primary, columns, values))
        await transaction.lock_row(parent, key, exclusive=False)
        return transaction.get_newest(key) is not None
    index = plan.unique_over(columns)
    assert index is not None, "a foreign key names a primary or a unique key"
    entry = index.beginning(_in_order(index.definition.columns, columns, values))
    await transaction.lock_row(parent, entry, exclusive=False)
    return transaction.get_newest_plain(entry) is not None


async def _children(
    changer: "Changer", reference: Reference, values: Row
) -> AsyncIterator[tuple[bytes, Row]]:
    """The rows that name these values, locked."""
    transaction, plan = changer.transaction, changer.plan
    columns = reference.key.columns
    for key in _child_keys(transaction, plan, columns, values):
        await transaction.lock_row(changer.table, key)
        value = transaction.get_newest(key)
        if value is None:
            continue
        row = plan.decode(value)
        if [row[number] for number in columns] == values:
            transaction.check_unchanged(changer.table, value)
            yield key, row


def _child_keys(
    transaction: Transaction, plan: Plan, columns: tuple[int, ...], values: Row
) -> Iterator[bytes]:
    """Keys of rows that may name these values: by an index, or all of them where there is none."""
    table, count = plan.table, len(columns)
    if set(table.primary[:count]) == set(columns):
        ordered = _in_order(table.primary[:count], columns, values)
        types = tuple(table.by_number[number].type for number in table.primary[:count])
        beginning = plan.prefix + key_encoder(types, (False,) * count)(ordered)
        for page in _pages(transaction, beginning, plain=False):
            yield from (key for key, _ in page)
        return
    index = plan.index_over(columns)
    if index is None:
        for page in _pages(transaction, plan.prefix, plain=False):
            yield from (key for key, _ in page)
        return
    named = index.definition.columns[:count]
    some = [table.by_number[number] for number in named]
    encode = key_encoder(tuple(c.type for c in some), tuple(c.nullable for c in some))
    beginning = index.prefix + encode(_in_order(named, columns, values))
    for page in _pages(transaction, beginning, plain=True):
        yield from (plan.prefix + primary for _, primary in page)


def _pages(
    transaction: Transaction, beginning: bytes, *, plain: bool
) -> Iterator[list[tuple[bytes, bytes]]]:
    scan = transaction.scan_newest_plain if plain else transaction.scan_newest
    first, end = beginning, successor(beginning)
    while page := scan(first, end, _PAGE_ROWS):
        yield page
        if len(page) < _PAGE_ROWS:
            return
        first = page[-1][0] + b"\x00"


def _in_order(
    wanted: Sequence[int], columns: Sequence[int], values: Sequence[Stored]
) -> list[Stored]:
    """Values of columns in another order of these columns."""
    found = dict(zip(columns, values, strict=True))
    return [found[number] for number in wanted]

"""What an INSERT does about a row that has its key already: UPSERT, INSERT … ON CONFLICT.

Invariants:
- The key is locked before it is looked at, the row in its way before it is read.
- Only the key that the clause names is forgiven; another unique key is refused as ever.
"""

from dataclasses import dataclass

from sqlglot import exp

from herd.changing import Changer
from herd.errors import NoSuchIndex, NotSupportedError, SqlSyntaxError
from herd.plan import IndexPlan
from herd.rows import Row
from herd.schema import Building, Table
from herd.sql.expressions import Evaluate, Names, Store, compile_expression
from herd.sql.fast import assignments
from herd.sql.parsing import place_of
from herd.sql.scalars import CannotEvaluate, truth
from herd.sql.statement import Given, newest
from herd.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Conflict:
    """What to do. `keys` are the unique keys looked at, as columns; of `sets` see `put`."""

    keys: tuple[tuple[int, ...], ...]
    replace: bool = False
    """UPSERT: the new row takes the old one's place."""
    sets: tuple[tuple[int, Store], ...] = ()
    """DO UPDATE SET: computed of the old row with the new one behind it. None: DO NOTHING."""
    where: Evaluate | None = None

    @classmethod
    def of(cls, tree: exp.Insert, upsert: bool, table: Table, names: Names) -> "Conflict | None":
        """What a statement says. Raises `NoSuchIndex`, `NotSupportedError`."""
        clause = tree.args.get("conflict")
        alternative = str(tree.args.get("alternative") or "").upper()
        if upsert or alternative == "REPLACE":
            return cls((table.primary,), replace=True)
        if clause is None:
            ignored = alternative == "IGNORE" or tree.args.get("ignore")
            return cls(_all_keys(table)) if ignored else None
        return cls._of_clause(clause, table, names)

    @classmethod
    def _of_clause(cls, clause: exp.Expr, table: Table, names: Names) -> "Conflict":
        if clause.args.get("duplicate"):
            raise NotSupportedError(
                "ON DUPLICATE KEY", hint="use ON CONFLICT (…) DO UPDATE SET", place=place_of(clause)
            )
        keys = _keys_of(clause, table)
        if "NOTHING" in str(clause.args.get("action") or "").upper():
            return cls(keys)
        if len(keys) > 1:
            raise SqlSyntaxError("DO UPDATE needs the columns of the key: ON CONFLICT (…)")
        both = Names({**names.tables, "excluded": (table, table.width)})
        where = clause.args.get("where")
        try:
            sets, hard = assignments(clause, table, both)
            condition = None if where is None else compile_expression(where.this, both)
        except CannotEvaluate:
            hard, sets, condition = [], [], None
        if hard or not sets:
            raise NotSupportedError(
                "DO UPDATE SET cannot do that", hint="UPDATE it in a transaction"
            )
        return cls(keys, sets=tuple(sets), where=condition)

    async def put(
        self, changer: Changer, transaction: Transaction, row: Row, given: Given
    ) -> Row | None:
        """Add a row or do what is said; answers what stands there now, None if nothing changed."""
        found = await self._in_the_way(changer, transaction, row)
        if found is None:
            await changer.insert(row)
            return row
        key, before = found
        if self.replace:
            await changer.update(key, before, row)
            return row
        if not self.sets:
            return None
        both = before + row
        if self.where is not None and not truth(self.where(both, given)):
            return None
        changed = before.copy()
        for number, store in self.sets:
            changed[number] = store(both, given)
        await changer.update(key, before, changed)
        return changed

    async def _in_the_way(
        self, changer: Changer, transaction: Transaction, row: Row
    ) -> tuple[bytes, Row] | None:
        table, plan = changer.table, changer.plan
        for columns in self.keys:
            if columns == table.primary:
                if None in [row[number] for number in columns]:
                    continue
                key = plan.key_of(row)
            else:
                index = next(i for i in plan.indexes if i.definition.columns == columns)
                primary = await self._holder(transaction, table, index, row)
                if primary is None:
                    continue
                key = plan.prefix + primary
            await transaction.lock_row(table, key)
            value = newest(transaction, table, key)
            if value is not None:
                return key, plan.decode(value)
        return None

    async def _holder(
        self, transaction: Transaction, table: Table, index: IndexPlan, row: Row
    ) -> bytes | None:
        entry, unique = index.entry(row, b"")
        if not unique:
            return None
        await transaction.lock_row(table, entry)
        return transaction.get_newest_plain(entry)


def _all_keys(table: Table) -> tuple[tuple[int, ...], ...]:
    unique = [i.columns for i in table.indexes if i.unique and i.state is Building.READY]
    return (table.primary, *unique)


def _keys_of(clause: exp.Expr, table: Table) -> tuple[tuple[int, ...], ...]:
    named = clause.args.get("conflict_keys") or ()
    if clause.args.get("constraint"):
        name = clause.args["constraint"].name.lower()
        for index in table.indexes:
            if index.unique and index.name.lower() == name:
                return (index.columns,)
        raise NoSuchIndex(f"table {table.name} has no unique key {name}", place=place_of(clause))
    if not named:
        return _all_keys(table)
    wanted = []
    for item in named:
        column = item.this if isinstance(item, exp.Ordered) else item
        wanted.append(table.column(column.name).number)
    for columns in _all_keys(table):
        if set(columns) == set(wanted):
            return (columns,)
    names = ", ".join(item.this.name for item in named)
    raise NoSuchIndex(
        f"table {table.name} has no unique key over ({names})",
        hint="name the columns of its primary key or of a unique index",
        place=place_of(clause),
    )

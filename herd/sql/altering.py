"""ALTER TABLE: columns, constraints and names, changed without rewriting a row.

Invariants:
- The table is locked alone from the first action to the end of the transaction; all actions of a
  statement happen or none does.
- A constraint that is added holds for every row that is there.
- What is about a column alone goes with it; what is about others, too, has to be dropped first.
- A column changes its type only where the stored form of every value stays as it is.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from sqlglot import exp

from herd.catalog import Catalog
from herd.errors import (
    NameTaken,
    NoSuchColumn,
    NoSuchIndex,
    NoSuchTable,
    NotNullViolation,
    NotSupportedError,
    ProgrammingError,
    TooLarge,
)
from herd.schema import COLUMNS_MAX, Column, Index, Table
from herd.sql.checking import (
    check_condition,
    check_fits,
    check_not_null,
    check_parents,
    is_empty,
    make_indexes_anew,
)
from herd.sql.constraints import changed
from herd.sql.defaults import default_store, default_tree
from herd.sql.defining import (
    known_table,
    lock_definitions,
    new_table_name,
    set_table,
    wants_full_changes,
)
from herd.sql.drafting import (
    check_auto,
    default_text,
    draft_column,
    with_constraint,
    with_constraints_of,
)
from herd.sql.expressions import missing_column
from herd.sql.indexing import drop_index, fill
from herd.sql.parsing import (
    Parsed,
    expression_text,
    parse_expression,
    parse_tree,
    place_of,
)
from herd.sql.result import Result
from herd.sql.retyping import check_references_keep, stays_stored
from herd.sql.statement import Given, Work
from herd.sql.type_names import column_type


class Alter:
    """ALTER TABLE, and ALTER VIEW … RENAME TO."""

    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Alter)
        self.of_view = str(tree.args.get("kind")).upper() == "VIEW"
        self.kind = "ALTER VIEW" if self.of_view else "ALTER TABLE"
        self.node = tree.this
        self.if_there = bool(tree.args.get("exists"))
        self.actions: list[exp.Expr] = tree.args.get("actions") or []

    async def run(self, work: Work, given: Given) -> Result:
        """Do all actions. Raises what is wrong with one of them, or with a row."""
        transaction = work.transaction
        await lock_definitions(transaction)
        name = new_table_name(self.node)
        if self.if_there and transaction.catalog.find(name) is None:
            return Result(count=0, kind=self.kind)
        if self.of_view:
            self._rename_view(work, name)
            return Result(count=0, kind=self.kind)
        table = known_table(transaction.catalog, self.node)
        await transaction.lock_table(table, exclusive=True)
        alteration = Alteration(work, table, given)
        for action in self.actions:
            await alteration.do(action)
        check_auto(alteration.table)
        return Result(count=0, kind=self.kind)

    def _rename_view(self, work: Work, name: str) -> None:
        transaction = work.transaction
        view = transaction.catalog.views.get(name.lower())
        if view is None:
            raise NoSuchTable(f"there is no view {name}", place=place_of(self.node))
        for action in self.actions:
            if not isinstance(action, exp.AlterRename):
                raise NotSupportedError("of a view, the name can be altered", hint="DROP VIEW it")
            transaction.set_catalog(*transaction.catalog.without_view(view))
            view = msgspec.structs.replace(view, name=new_table_name(action.this))
            transaction.set_catalog(*transaction.catalog.with_view(view, replace=False))


class Alteration:
    """The actions of one ALTER TABLE, one after the other, each on what the last one left."""

    def __init__(self, work: Work, table: Table, given: Given) -> None:
        self.transaction = work.transaction
        self.table = table
        self.given = given

    async def do(self, action: exp.Expr) -> None:
        """Do one action."""
        do = _ACTIONS.get(type(action))
        if do is None:
            raise NotSupportedError(f"ALTER TABLE … {action.sql('duckdb')[:60]}")
        await do(self, action)

    def _keep(self, **fields: Any) -> Table:
        """Change some fields of the definition."""
        self.table = set_table(self.transaction, changed(self.table, **fields))
        return self.table

    def _column(self, node: exp.Expr) -> Column:
        column = self.table.by_name.get(node.name.lower())
        if column is None:
            raise missing_column(self.table, node)
        return column

    def _keep_column(self, column: Column) -> None:
        columns = tuple(column if c.number == column.number else c for c in self.table.columns)
        self._keep(columns=columns)

    # Columns

    async def _add_column(self, node: exp.Expr) -> None:
        assert isinstance(node, exp.ColumnDef)
        if node.name.lower() in self.table.by_name:
            if node.args.get("exists"):
                return
            raise NameTaken(
                f"table {self.table.name} has a column {node.name} already",
                hint="ADD COLUMN IF NOT EXISTS",
                place=place_of(node),
            )
        if len(self.table.columns) >= COLUMNS_MAX:
            raise TooLarge(f"a table has at most {COLUMNS_MAX} columns")
        draft = draft_column(self.table, node, self.table.next_column)
        if draft.primary or draft.column.auto:
            raise _no_key(node)
        column, before = draft.column, self.table
        store = default_store(before, column)
        if store is not None:
            column = msgspec.structs.replace(column, fill=store([], self.given))
        if not column.nullable and column.fill is None and not is_empty(self.transaction, before):
            raise NotNullViolation(
                f"{before.name}.{column.name} would be NULL in the rows that are there",
                hint="give it a DEFAULT",
                place=place_of(node),
            )
        draft.column = column
        self._keep(columns=(*before.columns, column), next_column=before.next_column + 1)
        after = with_constraints_of(self.transaction.catalog, self.table, draft)
        await self._keep_constraints(after)

    async def _drop(self, node: exp.Expr) -> None:
        assert isinstance(node, exp.Drop)
        kind = str(node.args.get("kind"))
        if kind == "PRIMARY KEY":
            raise _no_key(node)
        [name] = node.args["tables"]
        if kind != "COLUMN":
            self._drop_constraint(name, kind, if_there=bool(node.args.get("exists")))
            return
        if node.args.get("exists") and name.name.lower() not in self.table.by_name:
            return
        column = self._column(name)
        if column.number in self.table.primary:
            raise ProgrammingError(
                f"{column.name} is part of the primary key of {self.table.name}",
                place=place_of(name),
            )
        _check_views(self.transaction.catalog, self.table, column.name)
        self._drop_what_is_about(column, name)
        left = tuple(c for c in self.table.columns if c.number != column.number)
        if len(left) == int(self.table.hidden_key):
            raise ProgrammingError(
                f"{column.name} is the only column", hint=f"DROP TABLE {self.table.name}"
            )
        self._keep(columns=left)

    def _drop_what_is_about(self, column: Column, node: exp.Expr) -> None:
        number, table = column.number, self.table
        for key in table.foreign_keys:
            if number in key.columns:
                self._check_alone(key.name, key.columns, column, node)
        checks = []
        for check in table.checks:
            used = _columns_of(table, check.condition)
            if number in used:
                self._check_alone(check.name, tuple(used), column, node)
            else:
                checks.append(check)
        left = tuple(key for key in table.foreign_keys if number not in key.columns)
        self._keep(foreign_keys=left, checks=tuple(checks))
        for index in table.indexes:
            if number in index.columns:
                self._check_alone(index.name, index.columns, column, node)
                self.table = drop_index(self.transaction, self.table, index)

    def _check_alone(
        self, name: str, numbers: tuple[int, ...], column: Column, node: exp.Expr
    ) -> None:
        if set(numbers) != {column.number}:
            raise ProgrammingError(
                f"{name} is about {column.name} and other columns",
                hint="drop it first",
                place=place_of(node),
            )

    async def _rename_column(self, node: exp.Expr) -> None:
        if node.args.get("exists") and node.name.lower() not in self.table.by_name:
            return
        self._rename(self._column(node.this), node.args["to"])

    def _rename(self, column: Column, node: exp.Expr) -> None:
        new, old = node.name, column.name
        found = self.table.by_name.get(new.lower())
        if found is not None and found.number != column.number:
            raise NameTaken(
                f"table {self.table.name} has a column {found.name} already", place=place_of(node)
            )
        _check_views(self.transaction.catalog, self.table, old)
        # The rules for names are those of new columns.
        draft_column(self.table, exp.ColumnDef(this=node.copy(), kind=_ANY_TYPE.copy()), 0)

        def rename(tree: exp.Column) -> None:
            if tree.name.lower() == old.lower():
                tree.set("this", exp.to_identifier(new, quoted=True))

        checks = _renamed(self.table, rename)
        self._keep(checks=checks)
        self._keep_column(msgspec.structs.replace(column, name=new))

    async def _alter_column(self, node: exp.Expr) -> None:
        column = self._column(node.this)
        if node.args.get("dtype") is not None:
            if node.args.get("using") or node.args.get("collate"):
                raise NotSupportedError("TYPE … USING", hint=_BY_ANOTHER, place=place_of(node))
            await self._retype(column, node.args["dtype"], node)
        elif node.args.get("default") is not None:
            text = default_text(self.table, column, node.args["default"])
            self._keep_column(msgspec.structs.replace(column, default=text))
        elif node.args.get("allow_null") is not None:
            await self._set_nullable(column, bool(node.args["allow_null"]), node)
        elif node.args.get("drop"):
            self._keep_column(msgspec.structs.replace(column, default=""))
        else:
            raise NotSupportedError(f"ALTER COLUMN {column.name} so", place=place_of(node))

    async def _modify_column(self, node: exp.Expr) -> None:
        """MODIFY and CHANGE: the whole definition anew."""
        definition, old = node.this, node.args.get("rename_from")
        column = self._column(old if old is not None else definition)
        if old is not None:
            self._rename(column, definition.this)
            column = self.table.by_number[column.number]
        draft = draft_column(self.table, definition, column.number)
        if draft.primary or (draft.column.auto and not column.auto):
            raise _no_key(definition)
        if draft.unique or draft.checks or draft.references:
            raise NotSupportedError(
                "constraints in MODIFY", hint="ADD CONSTRAINT", place=place_of(definition)
            )
        if draft.column.type != column.type:
            await self._retype(column, definition.args["kind"], definition)
        nullable = draft.column.nullable and column.number not in self.table.primary
        column = self.table.by_number[column.number]
        if nullable != column.nullable:
            await self._set_nullable(column, nullable, definition)
        column = self.table.by_number[column.number]
        column = msgspec.structs.replace(
            column, default=draft.column.default, auto=draft.column.auto
        )
        self._keep_column(column)

    async def _retype(self, column: Column, kind: exp.Expr, node: exp.Expr) -> None:
        wanted = column_type(kind)
        if wanted == column.type:
            return
        said = stays_stored(column.type, wanted)
        if said is None:
            raise NotSupportedError(
                f"{column.name} from {column.type.sql} to {wanted.sql}",
                hint=_BY_ANOTHER,
                place=place_of(node),
            )
        retyped = msgspec.structs.replace(column, type=wanted)
        check_references_keep(self.transaction.catalog, self.table, column, wanted)
        if said == "some":
            await check_fits(self.transaction, self.table, column, wanted)
            default_text(self.table, retyped, default_tree(column))
        self._keep_column(retyped)

    async def _set_nullable(self, column: Column, nullable: bool, node: exp.Expr) -> None:
        if column.nullable == nullable:
            return
        if nullable and (column.number in self.table.primary or column.auto):
            raise ProgrammingError(
                f"{column.name} is part of the primary key, or counts by itself",
                place=place_of(node),
            )
        if not nullable:
            await check_not_null(self.transaction, self.table, column)
        self._keep_column(msgspec.structs.replace(column, nullable=nullable))
        # Keys of a column that may be NULL say whether it is.
        self.table = await make_indexes_anew(self.transaction, self.table, column)

    # Constraints and the rest

    async def _add_constraint(self, node: exp.Expr) -> None:
        for one in node.expressions:
            inner = one.expressions[0] if isinstance(one, exp.Constraint) else one
            if isinstance(inner, exp.PrimaryKey | exp.PrimaryKeyColumnConstraint):
                raise _no_key(node)
            after = with_constraint(self.transaction.catalog, self.table, one)
            await self._keep_constraints(after)

    async def _keep_constraints(self, after: Table) -> None:
        """Keep a definition with more constraints, if they hold for all rows."""
        before, transaction = self.table, self.transaction
        self.table = set_table(transaction, after)
        indexes: list[Index] = [i for i in after.indexes if i not in before.indexes]
        if indexes:
            try:
                await fill(transaction, after, indexes)
            except TooLarge as error:
                hint = "CREATE UNIQUE INDEX builds one in parts, beside writers"
                raise TooLarge(error.message, hint=hint) from None
        for check in after.checks:
            if check not in before.checks:
                await check_condition(transaction, after, check)
        for key in after.foreign_keys:
            if key not in before.foreign_keys:
                await check_parents(transaction, after, key)

    def _drop_constraint(self, node: exp.Expr, kind: str, *, if_there: bool) -> None:
        table, wanted = self.table, node.name.lower()
        checks = tuple(check for check in table.checks if check.name.lower() != wanted)
        keys = tuple(key for key in table.foreign_keys if key.name.lower() != wanted)
        if len(checks) < len(table.checks) or len(keys) < len(table.foreign_keys):
            self._keep(checks=checks, foreign_keys=keys)
            return
        for index in table.indexes:
            if index.name.lower() == wanted:
                if not index.constraint and kind == "CONSTRAINT":
                    raise ProgrammingError(
                        f"{index.name} is an index", hint=f"DROP INDEX {index.name}"
                    )
                self.table = drop_index(self.transaction, table, index)
                return
        if not if_there:
            raise NoSuchIndex(
                f"table {table.name} has no constraint {node.name}", place=place_of(node)
            )

    async def _rename_table(self, node: exp.Expr) -> None:
        new, old = new_table_name(node.this), self.table.name.lower()
        _check_views(self.transaction.catalog, self.table)

        def rename(tree: exp.Column) -> None:
            if tree.table.lower() == old:
                tree.set("table", exp.to_identifier(new, quoted=True))

        self._keep(name=new, checks=_renamed(self.table, rename))

    async def _set(self, node: exp.Expr) -> None:
        for item in node.expressions:
            if item.name.lower() != "changes":
                raise NotSupportedError(
                    f"a table has no setting {item.name}", hint="SET changes = 'full'"
                )
            self._keep(full_changes=wants_full_changes(item.args["value"]))


Do = Callable[[Alteration, exp.Expr], Awaitable[None]]
_ACTIONS: Final[dict[type[exp.Expr], Do]] = {
    exp.ColumnDef: Alteration._add_column,
    exp.Drop: Alteration._drop,
    exp.RenameColumn: Alteration._rename_column,
    exp.AlterColumn: Alteration._alter_column,
    exp.ModifyColumn: Alteration._modify_column,
    exp.AddConstraint: Alteration._add_constraint,
    exp.AlterRename: Alteration._rename_table,
    exp.AlterSet: Alteration._set,
}
_ANY_TYPE: Final = exp.DataType(this=exp.DType.INT)
_BY_ANOTHER: Final = "add a column of that type, UPDATE it from this one, drop this, rename that"


def _no_key(node: exp.Expr) -> NotSupportedError:
    return NotSupportedError(
        "a table's primary key is its rows' place, and stays",
        hint="CREATE TABLE with the other key, INSERT … SELECT, then ALTER TABLE … RENAME TO",
        place=place_of(node),
    )


def _check_views(catalog: Catalog, table: Table, column: str = "") -> None:
    """Raise `ProgrammingError` if a view names a table, or one of its columns."""
    for view in catalog.views.values():
        tree = parse_tree(view.query)
        if any(node.name.lower() == table.name.lower() for node in tree.find_all(exp.Table)):
            named = {node.name.lower() for node in tree.find_all(exp.Column)}
            if not column or column.lower() in named:
                raise ProgrammingError(
                    f"view {view.name} is made of {column or table.name}",
                    hint=f"DROP VIEW {view.name}, and CREATE it afterwards",
                )


def _columns_of(table: Table, condition: str) -> set[int]:
    """The numbers of the columns that a CHECK is about."""
    found = set()
    for node in parse_expression(condition).find_all(exp.Column):
        try:
            found.add(table.column(node.name).number)
        except NoSuchColumn:
            continue
    return found


def _renamed(table: Table, rename: Callable[[exp.Column], None]) -> tuple[Any, ...]:
    """The CHECKs of a table with other names in them."""
    checks = []
    for check in table.checks:
        tree = parse_expression(check.condition)
        for node in tree.find_all(exp.Column):
            rename(node)
        checks.append(msgspec.structs.replace(check, condition=expression_text(tree)))
    return tuple(checks)

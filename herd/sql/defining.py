"""CREATE and DROP of tables and views, TRUNCATE.

Invariants:
- Whoever defines holds the lock on the list of names to the end of the transaction, so definitions
  change one after the other; the table concerned is locked alone, so nobody changes rows meanwhile.
- Definitions are part of the transaction: it commits or rolls back rows and definitions together.
"""

from typing import Final

from sqlglot import exp

from herd.catalog import Catalog, erasing
from herd.changing import Changer
from herd.errors import (
    ForeignKeyViolation,
    NameTaken,
    NoSuchTable,
    NotSupportedError,
    ProgrammingError,
    TypeMismatch,
)
from herd.keys import AUTO, catalog_key
from herd.locks import SCHEMA
from herd.rows import Row
from herd.schema import Column, Table, View
from herd.sequences import sequences_of
from herd.sql.constraints import changed
from herd.sql.drafting import HIDDEN_KEY, draft_table
from herd.sql.parsing import Parsed, check_no_schema, check_parts, place_of
from herd.sql.result import Result
from herd.sql.statement import Given, Work
from herd.transaction import Transaction
from herd.turns import in_turns
from herd.types import BIGINT, accepting

NAME_CHARACTERS_MAX: Final = 255
_CREATE_PARTS: Final = frozenset(
    {"this", "kind", "expression", "exists", "properties", "replace", "indexes"}
)
_OF_MYSQL: Final = (
    exp.EngineProperty,
    exp.CharacterSetProperty,
    exp.CollateProperty,
    exp.AutoIncrementProperty,
    exp.SchemaCommentProperty,
    exp.RowFormatProperty,
)
"""What a dump of MySQL says of a table and what makes no difference here."""
_DROP_PARTS: Final = frozenset({"tables", "kind", "exists", "restrict"})
_DROP_HINTS: Final = {"cascade": "drop first what refers to it"}


async def lock_definitions(transaction: Transaction) -> None:
    """Be the only one who defines, to the end of the transaction."""
    await transaction.lock_name(SCHEMA)


def set_table(transaction: Transaction, table: Table) -> Table:
    """Add a table to the definitions, or change it."""
    transaction.set_catalog(*transaction.catalog.with_table(table))
    return table


def new_table_name(node: exp.Expr) -> str:
    """The name of a table in a definition. Raises `NotSupportedError`, `ProgrammingError`."""
    check_no_schema(node)
    name = str(node.name)
    if not name or len(name) > NAME_CHARACTERS_MAX:
        raise ProgrammingError(f"a name has 1 to {NAME_CHARACTERS_MAX} characters")
    return name


def known_table(catalog: Catalog, node: exp.Expr) -> Table:
    """A table that a definition names. Raises `NoSuchTable` with the place, as `new_table_name`."""
    name = new_table_name(node)
    try:
        return catalog.table(name)
    except NoSuchTable as error:
        raise NoSuchTable(error.message, hint=error.hint, place=place_of(node)) from None


class CreateTable:
    """CREATE TABLE, with columns or AS a query."""

    kind = "CREATE TABLE"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Create)
        target = tree.this
        self.nodes: list[exp.Expr] = []
        if isinstance(target, exp.Schema):
            self.nodes, target = target.expressions, target.this
        self.name = new_table_name(target)
        self.unless_there = bool(tree.args.get("exists"))
        self.query = tree.expression
        self.full_changes = False
        self.with_rows = True
        if tree.args.get("replace"):
            raise NotSupportedError("CREATE OR REPLACE TABLE", hint="DROP TABLE it first")
        if self.nodes and self.query is not None:
            raise NotSupportedError("CREATE TABLE (…) AS", hint="INSERT … SELECT afterwards")
        check_parts(tree, _CREATE_PARTS)
        self._read_properties(tree)

    async def run(self, work: Work, given: Given) -> Result:
        """Make the table."""
        transaction = work.transaction
        await lock_definitions(transaction)
        if transaction.catalog.find(self.name) is not None:
            if self.unless_there:
                return Result(count=0, kind=self.kind)
            raise NameTaken(f"there is {self.name} already", hint="CREATE TABLE IF NOT EXISTS")
        rows: list[Row] = []
        catalog, [table_id] = transaction.catalog.new_ids(1)
        if self.query is None:
            table = draft_table(catalog, table_id, self.name, self.nodes)
        else:
            table, rows = await self._of_query(work, table_id, given)
        table = changed(table, full_changes=self.full_changes)
        transaction.set_catalog(*catalog.with_table(table))
        await transaction.lock_table(table, exclusive=True)
        changer, auto = Changer(transaction, table), table.auto_column
        async for row in in_turns(rows):
            assert auto is not None, "a table of a query has a hidden key"
            row[0] = work.sequences.take(transaction, table, auto)
            await changer.insert(row)
        return Result(count=len(rows), kind=self.kind)

    def _read_properties(self, tree: exp.Create) -> None:
        properties = tree.args.get("properties")
        for item in properties.expressions if properties is not None else ():
            if isinstance(item, exp.TemporaryProperty):
                raise NotSupportedError("a temporary table", place=place_of(item))
            if isinstance(item, exp.WithDataProperty):
                self.with_rows = not item.args.get("no")
            elif type(item) is exp.Property and item.name.lower() == "changes":
                self.full_changes = wants_full_changes(item.args["value"])
            elif not isinstance(item, _OF_MYSQL):
                raise NotSupportedError(
                    f"{item.sql('duckdb') or item.key} of a table", place=place_of(item)
                )

    async def _of_query(self, work: Work, table_id: int, given: Given) -> tuple[Table, list[Row]]:
        from herd.arrow import column_type_of, python_rows

        assert self.query is not None
        found = await work.query.run(self.query, given[:-1], work.transaction)
        columns = [Column(0, HIDDEN_KEY, BIGINT, nullable=False, auto=True)]
        for field in found.schema:
            kind = column_type_of(field)
            if kind is None:
                raise TypeMismatch(f"{field.name} has no type of a column", hint="CAST it")
            columns.append(Column(len(columns), field.name, kind))
        if len({column.name.lower() for column in columns}) < len(columns):
            raise NameTaken("two columns of the query have one name", hint="name them by AS")
        table = Table(
            table_id,
            self.name,
            table_id,
            tuple(columns),
            (0,),
            next_column=len(columns),
            hidden_key=True,
        )
        accept = [accepting(column.type) for column in table.visible]

        def stored() -> list[Row]:
            return [
                [None, *[None if v is None else a(v) for a, v in zip(accept, values, strict=True)]]
                for values in (python_rows(found) if self.with_rows else ())
            ]

        return table, await work.query.off_loop(found.num_rows, stored)


def wants_full_changes(node: exp.Expr) -> bool:
    """What WITH (changes = …) says. Raises `NotSupportedError`."""
    if node.name.lower() not in ("full", "plain"):
        raise NotSupportedError("changes is 'full' or 'plain'", place=place_of(node))
    return bool(node.name.lower() == "full")


class DropTable:
    """DROP TABLE."""

    kind = "DROP TABLE"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        assert isinstance(parsed.tree, exp.Drop)
        self.tree = parsed.tree
        check_parts(self.tree, _DROP_PARTS, _DROP_HINTS)
        self.if_there = bool(self.tree.args.get("exists"))
        self.nodes = self.tree.args.get("tables") or []

    async def run(self, work: Work, given: Given) -> Result:
        """Drop the tables; their rows are erased later, beside all other work."""
        transaction = work.transaction
        await lock_definitions(transaction)
        going: list[Table] = []
        for node in self.nodes:
            name = new_table_name(node)
            if self.if_there and transaction.catalog.find(name) is None:
                continue
            going.append(known_table(transaction.catalog, node))
        for table in going:
            _check_unreferred(transaction.catalog, table, going)
            await transaction.lock_table(table, exclusive=True)
            transaction.set_catalog(*transaction.catalog.without_table(table))
            transaction.set_plain(catalog_key(AUTO, table.id), None)
        return Result(count=0, kind=self.kind)


def _check_unreferred(catalog: Catalog, table: Table, going: list[Table]) -> None:
    leaving = {other.id for other in going}
    for child in catalog.children_of(table):
        if child.id not in leaving:
            raise ForeignKeyViolation(
                f"table {child.name} refers to {table.name}",
                hint=f"drop {child.name} or its foreign key first",
            )


class Truncate:
    """TRUNCATE: the table gets another store, the rows of the old one are erased later."""

    kind = "TRUNCATE"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        assert isinstance(parsed.tree, exp.TruncateTable)
        check_parts(parsed.tree, frozenset({"expressions"}))
        self.nodes = parsed.tree.expressions

    async def run(self, work: Work, given: Given) -> Result:
        """Empty the tables."""
        transaction = work.transaction
        await lock_definitions(transaction)
        tables = [known_table(transaction.catalog, node) for node in self.nodes]
        for table in tables:
            _check_unreferred(transaction.catalog, table, tables)
            await transaction.lock_table(table, exclusive=True)
            if table.auto_column is not None:
                # The values go on after the rows that are about to go.
                sequences_of(work.space).pass_over(transaction, table, table.auto_column, 0)
            catalog, [store] = transaction.catalog.new_ids(1)
            catalog, changes = catalog.with_table(changed(table, store=store))
            transaction.set_catalog(catalog, [*changes, erasing(table.store)])
        return Result(count=0, kind=self.kind)


class CreateView:
    """CREATE [OR REPLACE] VIEW."""

    kind = "CREATE VIEW"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        assert isinstance(tree, exp.Create)
        target = tree.this
        self.columns: tuple[str, ...] = ()
        if isinstance(target, exp.Schema):
            self.columns = tuple(node.name for node in target.expressions)
            target = target.this
        self.name = new_table_name(target)
        self.replace = bool(tree.args.get("replace"))
        self.unless_there = bool(tree.args.get("exists"))
        if parsed.count:
            raise ProgrammingError("a view has no parameters")
        if not isinstance(tree.expression, exp.Query):
            raise ProgrammingError("a view is made of a SELECT", place=place_of(tree.expression))
        from herd.sql.parsing import expression_text

        self.text = expression_text(tree.expression)
        self.tree = tree.expression

    async def run(self, work: Work, given: Given) -> Result:
        """Make the view; its query must run."""
        transaction = work.transaction
        await lock_definitions(transaction)
        if self.unless_there and transaction.catalog.find(self.name) is not None:
            return Result(count=0, kind=self.kind)
        empty = exp.select("*").from_(self.tree.copy().subquery("v")).limit(0)
        found = await work.query.run(empty, (), transaction)
        if self.columns and len(self.columns) > found.num_columns:
            raise ProgrammingError(
                f"{len(self.columns)} names for {found.num_columns} columns of the view"
            )
        view = View(self.name, self.text, self.columns)
        catalog, changes = transaction.catalog.with_view(view, replace=self.replace)
        transaction.set_catalog(catalog, changes)
        return Result(count=0, kind=self.kind)


class DropView:
    """DROP VIEW."""

    kind = "DROP VIEW"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        assert isinstance(parsed.tree, exp.Drop)
        check_parts(parsed.tree, _DROP_PARTS, _DROP_HINTS)
        self.nodes = parsed.tree.args.get("tables") or []
        self.if_there = bool(parsed.tree.args.get("exists"))

    async def run(self, work: Work, given: Given) -> Result:
        """Drop the views."""
        transaction = work.transaction
        await lock_definitions(transaction)
        for node in self.nodes:
            found = transaction.catalog.views.get(node.name.lower())
            if found is not None:
                transaction.set_catalog(*transaction.catalog.without_view(found))
            elif not self.if_there:
                raise NoSuchTable(f"there is no view {node.name}", place=place_of(node))
        return Result(count=0, kind=self.kind)

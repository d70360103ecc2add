"""Queries, by the query engine, and SELECT … FOR UPDATE.

Invariants:
- Rows that FOR UPDATE returns are locked and read again under the lock: nobody changes them before
  the transaction ends.
"""

from typing import TYPE_CHECKING, Final

from sqlglot import exp

from herd.arrow import KEY, POSITION, column_type_of, python_rows
from herd.catalog import Catalog
from herd.errors import NotSupportedError
from herd.rows import Row
from herd.schema import Table
from herd.sql.expressions import Names
from herd.sql.fast import MakeKey, key_maker, named_table
from herd.sql.parsing import Parsed
from herd.sql.result import LazyRows, Result, ResultColumn
from herd.sql.returning import Returned
from herd.sql.scalars import CannotEvaluate
from herd.sql.statement import Given, Work, lock_for_change, newest
from herd.sql.targets import Target, without_alias

if TYPE_CHECKING:
    import pyarrow

_LOCKED_PARTS: Final = frozenset(
    {"expressions", "from_", "where", "order", "limit", "offset", "locks", "kind", "hint"}
)
_HINT: Final = "SELECT … FROM table WHERE … FOR UPDATE"


def query_result(table: "pyarrow.Table") -> Result:
    """The result of what the query engine answered."""
    columns = tuple(ResultColumn(field.name, column_type_of(field)) for field in table.schema)
    rows = LazyRows(table.num_rows, lambda: python_rows(table))
    return Result(columns, rows, table.num_rows, None, "SELECT", table)


class Select:
    """Any query."""

    kind = "SELECT"
    needs_transaction = False

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        assert parsed.tree is not None
        self.tree = parsed.tree
        lock = self.tree.find(exp.Lock)
        if lock is not None:
            raise NotSupportedError("FOR UPDATE in a subquery", hint=_HINT)

    async def run(self, work: Work, given: Given) -> Result:
        """Ask the query engine."""
        answer = await work.query.run(self.tree, given[:-1], work.own)
        return await work.query.off_loop(answer.num_columns, lambda: query_result(answer))


class SelectForUpdate:
    """SELECT … FROM table WHERE … [ORDER BY … LIMIT …] FOR UPDATE."""

    kind = "SELECT"
    needs_transaction = True

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        tree = parsed.tree
        if not isinstance(tree, exp.Select):
            raise _not_lockable()
        if any(value and part not in _LOCKED_PARTS for part, value in tree.args.items()):
            raise _not_lockable()
        _check_locks(tree)
        self.catalog = catalog
        source = tree.args.get("from_")
        try:
            if source is None:
                raise CannotEvaluate
            self.table, self.names = named_table(source.this, catalog)
        except CannotEvaluate:
            raise _not_lockable() from None
        self.shown = Returned.of_list(tree.expressions, self.table, self.names, _HINT)
        where = tree.args.get("where")
        self.key = _key_maker(self.table, where, self.names)
        if where is not None:
            where = without_alias(where, source.this.alias, self.table)
        self.target = Target(self.table, Names.of(self.table), where)
        self.ordered: exp.Select | None = None
        if tree.args.get("limit") or tree.args.get("offset") or tree.args.get("order"):
            self.key = None
            self.ordered = tree.copy()
            self.ordered.set("expressions", [exp.column(KEY), exp.column(POSITION)])
            self.ordered.set("locks", None)

    async def run(self, work: Work, given: Given) -> Result:
        """Lock the rows and answer them as they are then."""
        await lock_for_change(work, self.table, self.catalog)
        rows: list[Row] = []
        if self.key is not None:
            key = self.key(given)
            if key is not None:
                await work.transaction.lock_row(self.table, key)
                value = newest(work.transaction, self.table, key)
                if value is not None:
                    rows.append(self.catalog.plan(self.table).decode(value))
        elif self.ordered is not None:
            answer = await work.query.run(self.ordered, given[:-1], work.own)
            found = await work.query.off_loop(answer.num_rows, lambda: python_rows(answer))
            named = [(key, position, ()) for key, position in found]
            locked = {key: row async for key, row, _ in self.target.locked(work, given, named, [])}
            rows = [locked[key] for key, _ in found if key in locked]
        else:
            rows = [row async for _, row, _ in self.target.rows(work, given, [])]
        return await self.shown.result(work, "SELECT", rows, given)


def _check_locks(tree: exp.Select) -> None:
    for lock in tree.args["locks"]:
        if not lock.args.get("update"):
            raise NotSupportedError("FOR SHARE", hint="FOR UPDATE")
        wait = lock.args.get("wait")
        if wait is not None or lock.expressions:
            raise NotSupportedError(
                "FOR UPDATE with OF, NOWAIT, WAIT or SKIP LOCKED",
                hint="FOR UPDATE waits for ten seconds at most",
            )


def _key_maker(table: Table, where: exp.Expr | None, names: Names) -> MakeKey | None:
    try:
        return key_maker(table, where, names)
    except CannotEvaluate:
        return None


def _not_lockable() -> NotSupportedError:
    return NotSupportedError("FOR UPDATE of anything but rows of one table", hint=_HINT)

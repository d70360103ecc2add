"""Which tables a query means: its names, looked up in a catalog and replaced.

Invariants:
- The name of a CTE hides a table's name in the query that has the CTE and below, and nowhere else.
  Each CTE gets a new unique name. So if the query engine resolves a name differently from this
  module, it finds no table, and never one of its own system tables.
- A view's text is resolved by itself: no CTE of who uses it reaches into it.
- Each place where a table stands is a source of its own, with the columns that may be asked of it:
  perhaps more than needed, never fewer.
- Afterwards, all table names in the tree are those of sources and CTEs, and every function in it
  may be called.
- What is read of a checkpoint is as that checkpoint defines it, whatever became of it since.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from herd.arrow import KEY, POSITION
from herd.catalog import Catalog
from herd.errors import NoSuchTable, NotSupportedError, SqlSyntaxError, TooLarge
from herd.schema import Column, Table, View
from herd.sql.dialect import CHECKPOINT
from herd.sql.functions import check_function
from herd.sql.parsing import parse_tree, place_of
from herd.sql.rewriting import TABLE_FUNCTIONS, named_outputs

NEWEST: Final = 0
"""Stands for the number of the newest checkpoint."""
_AS_OF: Final = "FROM t AS OF CHECKPOINT 7, or 'newest'"
_VIEWS_DEEP_MAX: Final = 32
_NO_NAMES: Final[Mapping[str, str]] = {}
_IN_FROM: Final = (exp.From, exp.Join, exp.Lateral)
_AS_TABLES: Final = (exp.Table, exp.Query, exp.Lateral, *TABLE_FUNCTIONS)
_OPEN: Final = (exp.Columns, exp.Pivot)
"""Which may mean any column."""


@dataclass(slots=True)
class Source:
    """One place where a table stands. `name` is what it is called in the SQL for DuckDB."""

    name: str
    alias: str
    node: exp.Table
    table: Table | None = None
    """None: a system table."""
    system: str = ""
    checkpoint: int | None = None
    """Of which checkpoint `table` is, `NEWEST` for the newest; None: as it is now."""
    columns: tuple[Column, ...] = ()
    hidden: bool = False
    """Whether `_key` and `_position` are wanted, too."""


@dataclass(slots=True)
class Resolved:
    """A query whose tables are known."""

    tree: exp.Expr
    sources: list[Source]


IsSystem = Callable[[str], bool]
Past = Mapping[int, Catalog]
"""What checkpoints define, by their numbers."""


class CheckpointWanted(Exception):
    """A query asks for a checkpoint whose definitions it was not given."""

    def __init__(self, number: int) -> None:
        super().__init__(f"checkpoint {number} is wanted")
        self.number = number


def resolve(
    tree: exp.Expr, catalog: Catalog, past: Past, space: str, is_system: IsSystem
) -> Resolved:
    """Look up all tables of a query; `tree` is changed.

    Raises `NoSuchTable`, and `CheckpointWanted` for one that `past` does not have.
    """
    resolver = _Resolver(catalog, past, space, is_system)
    try:
        resolver.visit(tree, _NO_NAMES, 0)
    except RecursionError:
        raise TooLarge("the statement is nested too deeply") from None
    _choose_columns(tree, resolver.sources)
    return Resolved(tree, resolver.sources)


class _Resolver:
    def __init__(self, catalog: Catalog, past: Past, space: str, is_system: IsSystem) -> None:
        self.sources: list[Source] = []
        self._catalog = catalog
        self._past = past
        self._space = space.lower()
        self._is_system = is_system
        self._ctes = 0

    def visit(self, node: exp.Expr, hidden: Mapping[str, str], depth: int) -> None:
        """Resolve the tree below a node; `hidden` maps names to the CTEs that they mean.

        Raises `NotSupportedError` for functions that may not be called, and for changes.
        """
        ctes = node.args.get("with_")
        if isinstance(ctes, exp.With):
            for cte in ctes.expressions:
                hidden = self._cte(cte, bool(ctes.args.get("recursive")), hidden, depth)
        for child in list(node.iter_expressions()):
            if child is not ctes:
                self.visit(child, hidden, depth)
        if isinstance(node, exp.Table):
            self._table(node, hidden, depth)
        elif isinstance(node, exp.Column):
            self._column(node)
        elif isinstance(node, exp.Func):
            check_function(node)
        elif isinstance(node, _IN_FROM) and not isinstance(node.this, _AS_TABLES):
            raise _no_table(node.this)
        elif isinstance(node, exp.DML):
            raise NotSupportedError(f"{node.key.upper()} in a query", place=place_of(node))

    def _cte(
        self, cte: exp.CTE, recursive: bool, hidden: Mapping[str, str], depth: int
    ) -> Mapping[str, str]:
        """Resolve and rename a CTE; returns the names that are hidden after it."""
        after = {**hidden, cte.alias.lower(): f"c:{self._ctes}"}
        self._ctes += 1
        own = recursive and isinstance(cte.this, exp.Union)
        self.visit(cte.this, after if own else hidden, depth)
        alias = cte.args["alias"]
        alias.set("this", exp.to_identifier(after[cte.alias.lower()], quoted=True))
        return after

    def _table(self, node: exp.Table, hidden: Mapping[str, str], depth: int) -> None:
        if not isinstance(node.this, exp.Identifier):
            if not isinstance(node.this, TABLE_FUNCTIONS):
                raise _no_table(node.this)
            return
        name, schema = node.name, node.db.lower()
        if node.args.get("when") is not None:
            raise NotSupportedError("AT", hint=_AS_OF, place=place_of(node))
        if not schema and name.lower() in hidden:
            if node.args.get("version") is not None:
                raise _of_tables_only(node)
            _rename(node, hidden[name.lower()])
            return
        if node.catalog or (schema and schema not in (self._space, "information_schema")):
            raise NoSuchTable(
                f"there is no {node.sql(dialect='duckdb')}",
                place=place_of(node.this),
                hint=f"the tables here are those of tablespace {self._space}",
            )
        standard = schema == "information_schema"
        system = f"{schema}.{name}".lower() if standard else name.lower()
        found = self._catalog.find(name) if not standard else None
        of_then = node.args.get("version") is not None
        if of_then and not standard and (found is not None or not self._is_system(system)):
            self._kept(node, found)
        elif isinstance(found, View):
            self._view(node, found, depth)
        elif found is not None:
            self._source(node, found, "")
        elif self._is_system(system):
            if of_then:
                raise _of_tables_only(node)
            self._source(node, None, system)
        else:
            hint = _nearest(name, self._catalog)
            raise NoSuchTable(f"there is no table {name}", place=place_of(node.this), hint=hint)

    def _kept(self, node: exp.Table, now: Table | View | None) -> None:
        """A table of a checkpoint. `now` is what has its name today."""
        number = _checkpoint_of(node)
        catalog = self._past.get(number)
        if catalog is None:
            raise CheckpointWanted(number)
        found = catalog.find(node.name)
        if isinstance(found, Table):
            node.set("version", None)
            self._source(node, found, "", number)
        elif found is not None or isinstance(now, View):
            raise _of_tables_only(node)
        else:
            which = f"checkpoint {number}" if number != NEWEST else "the newest checkpoint"
            raise NoSuchTable(
                f"there was no table {node.name} at {which}",
                place=place_of(node.this),
                hint=_then(now, catalog) if now is not None else _nearest(node.name, catalog),
            )

    def _source(
        self, node: exp.Table, table: Table | None, system: str, checkpoint: int | None = None
    ) -> None:
        name = f"t:{len(self.sources)}"
        _rename(node, name)
        source = Source(name, node.alias.lower(), node, table, system, checkpoint)
        node.set("db", None)
        self.sources.append(source)

    def _view(self, node: exp.Table, view: View, depth: int) -> None:
        if depth >= _VIEWS_DEEP_MAX:
            raise TooLarge(f"view {view.name} is made of more than {_VIEWS_DEEP_MAX} views")
        query = parse_tree(view.query)
        named_outputs(query)
        self.visit(query, _NO_NAMES, depth + 1)
        alias = node.args.get("alias") or exp.TableAlias()
        if alias.this is None:
            alias.set("this", exp.to_identifier(node.name, quoted=True))
        if view.columns and not alias.columns:
            names = [exp.to_identifier(name, quoted=True) for name in view.columns]
            alias.set("columns", names)
        subquery = exp.Subquery(this=query, alias=alias)
        for part in ("joins", "laterals", "sample", "pivots"):
            subquery.set(part, node.args.get(part))
        node.replace(subquery)

    def _column(self, node: exp.Column) -> None:
        if node.db.lower() in (self._space, "information_schema") and not node.catalog:
            node.set("db", None)


def _rename(node: exp.Table, name: str) -> None:
    """Give a table another name in the SQL for DuckDB; it keeps its own as its alias."""
    if not node.alias:
        alias = exp.to_identifier(node.name, quoted=True)
        node.set("alias", exp.TableAlias(this=alias))
    node.set("this", exp.to_identifier(name, quoted=True))


def _no_table(node: exp.Expr) -> NotSupportedError:
    return NotSupportedError(
        f"{node.sql()[:60]} in the place of a table",
        hint="apart from tables, only generate_series, range, unnest and VALUES are allowed there",
        place=place_of(node),
    )


def _then(now: Table | View, then: Catalog) -> str:
    """What has been of a name of today at a checkpoint that does not have it."""
    before = then.tables.get(now.id) if isinstance(now, Table) else None
    return "it was made since" if before is None else f"it was called {before.name} then"


def _nearest(name: str, catalog: Catalog) -> str:
    near = difflib.get_close_matches(name, catalog.names, 1)
    return f"is it {near[0]}?" if near else ""


def _checkpoint_of(node: exp.Table) -> int:
    """The number of the checkpoint that a table is read of, `NEWEST` for the newest."""
    version = node.args["version"]
    number = version.args.get("expression")
    if version.name != CHECKPOINT or not isinstance(number, exp.Literal):
        raise SqlSyntaxError(
            "a table is read AS OF CHECKPOINT and a number", hint=_AS_OF, place=place_of(node)
        )
    if number.is_string and number.name.lower() == "newest":
        return NEWEST
    if number.is_string or not number.name.isdigit() or not int(number.name):
        raise SqlSyntaxError(
            f"there is no checkpoint {number.name}", hint=_AS_OF, place=place_of(node)
        )
    return int(number.name)


def _of_tables_only(node: exp.Table) -> NotSupportedError:
    return NotSupportedError(
        f"{node.name} AS OF CHECKPOINT: it is no table", hint="ask its tables", place=place_of(node)
    )


# Which columns


def _choose_columns(tree: exp.Expr, sources: list[Source]) -> None:
    mentioned: set[str] = set()
    alone: set[str] = set()
    wide: set[int] = set()
    for node in tree.walk():
        if isinstance(node, exp.Identifier):
            mentioned.add(node.name.lower())
        elif isinstance(node, exp.Column):
            if not node.table:
                alone.add(node.name.lower())
        elif _is_open(node):
            wide.add(id(node.parent_select))
    for source in sources:
        table = source.table
        if table is None:
            continue
        query = source.node.parent_select
        every = id(query) in wide or source.alias in alone
        source.columns = tuple(
            column
            for column in table.columns
            if column.name.lower() in mentioned or (every and column in table.visible)
        )
        source.hidden = KEY in mentioned or POSITION in mentioned
        if not source.columns and not source.hidden:
            # Rows have to be counted by something: the key's first column is a short one.
            source.columns = (table.by_number[table.primary[0]],)
        if every and table.hidden_key and table.columns[0] in source.columns:
            _hide(query, table.columns[0].name)


def _is_open(node: exp.Expr) -> bool:
    """Whether any column of the tables of the query where this stands may be asked."""
    if isinstance(node, exp.Star):
        return not isinstance(node.parent, exp.Count)
    if isinstance(node, exp.Join):
        return node.method.upper() == "NATURAL"
    if isinstance(node, exp.Table):
        return bool(node.args.get("pivots"))
    return isinstance(node, _OPEN)


def _hide(query: exp.Expr | None, name: str) -> None:
    """Leave a column out of `*`."""
    if query is None:
        return
    for node in query.expressions:
        if isinstance(node, exp.Star):
            left_out = list(node.args.get("except_") or [])
            if all(other.name.lower() != name.lower() for other in left_out):
                node.set("except_", [*left_out, exp.column(name)])

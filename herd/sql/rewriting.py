"""Expressions in the words of DuckDB, where these differ from what is written here.

Invariants:
- A division by zero is NULL, of whatever types.
- The time is one moment in all of a statement: a parameter, called `MOMENT`.
- Whatever stands in the text and not in the tree any more is still the name of its column.
"""

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from herd.errors import NotSupportedError

MOMENT: Final = "moment"
_VECTORS: Final = {
    "COSINE_SIMILARITY": "list_cosine_similarity",
    "DOT_PRODUCT": "list_inner_product",
    "EUCLIDEAN_DISTANCE": "list_distance",
    "LIST_DISTANCE": "list_distance",
}
_MOMENTS: Final = {"NOW", "GET_CURRENT_TIMESTAMP", "TRANSACTION_TIMESTAMP", "CURRENT_TIMESTAMP"}
_DAYS: Final = {"TODAY", "CURRENT_DATE"}
TABLE_FUNCTIONS: Final = (exp.GenerateSeries, exp.Unnest, exp.Values)
"""What may stand in the place of a table, beside tables: nothing that reads from elsewhere."""


def rewritten(tree: exp.Expr) -> exp.Expr:
    """A tree, which is changed, with each expression that DuckDB has other words for."""

    def step(node: exp.Expr) -> exp.Expr:
        change = _CHANGES.get(type(node))
        if change is not None:
            return change(node)
        return node

    changed: exp.Expr = tree.transform(step, copy=False)
    return changed


def named_outputs(tree: exp.Expr) -> None:
    """Give what a query answers the names that its text gives them."""
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    if not isinstance(tree, exp.Select):
        return
    for place, node in enumerate(tree.expressions):
        if isinstance(node, exp.Alias | exp.Aliases | exp.Star | exp.Column | exp.Columns):
            continue
        if any(isinstance(part, exp.Columns | exp.Star) for part in _outside_count(node)):
            continue
        name = node.sql(dialect="duckdb", comments=False, normalize_functions="lower")
        tree.expressions[place] = exp.alias_(node.copy(), name, quoted=True, copy=False)
        tree.expressions[place].parent = tree
    tree.set("expressions", tree.expressions)


def _outside_count(node: exp.Expr) -> list[exp.Expr]:
    return [
        part
        for part in node.walk()
        if not (isinstance(part, exp.Star) and isinstance(part.parent, exp.Count))
    ]


def _divided(node: exp.Expr) -> exp.Expr:
    divisor = node.expression
    known = isinstance(divisor, exp.Literal) and not divisor.is_string
    if not (known and float(divisor.this)) and not isinstance(divisor, exp.Nullif):
        zero = exp.Literal.number(0)
        node.set("expression", exp.Nullif(this=divisor, expression=zero))
    return node


def _vectors(name: str, one: exp.Expr, other: exp.Expr) -> exp.Expr:
    sides = [exp.cast(side, "DOUBLE[]", dialect="duckdb") for side in (one, other)]
    return exp.Anonymous(this=name, expressions=sides)


def _dot_product(node: exp.Expr) -> exp.Expr:
    return _vectors("list_inner_product", node.this, node.expression)


def _distance(node: exp.Expr) -> exp.Expr:
    return _vectors("list_distance", node.this, node.expression)


def _now(node: exp.Expr) -> exp.Expr:
    return exp.Placeholder(this=MOMENT)


def _today(node: exp.Expr) -> exp.Expr:
    return exp.cast(exp.Placeholder(this=MOMENT), "DATE")


def _time(node: exp.Expr) -> exp.Expr:
    return exp.cast(exp.Placeholder(this=MOMENT), "TIME")


def _named(node: exp.Expr) -> exp.Expr:
    name = node.name.upper()
    if name in _VECTORS and len(node.expressions) == 2:
        return _vectors(_VECTORS[name], *node.expressions)
    if name in _MOMENTS and not node.expressions:
        return _now(node)
    if name in _DAYS and not node.expressions:
        return _today(node)
    return node


def _floor(node: exp.Expr) -> exp.Expr:
    unit = node.args.get("to")
    if unit is None:
        return node
    name = exp.Literal.string(unit.name.lower())
    return exp.Anonymous(this="date_trunc", expressions=[name, node.this])


def _select(node: exp.Expr) -> exp.Expr:
    if node.args.get("into") is not None:
        raise NotSupportedError("SELECT INTO", hint="CREATE TABLE ... AS SELECT")
    # Locks are taken by who asked for them.
    node.set("locks", None)
    return node


_CHANGES: Final[dict[type[Any], Callable[[exp.Expr], exp.Expr]]] = {
    exp.Div: _divided,
    exp.DotProduct: _dot_product,
    exp.EuclideanDistance: _distance,
    exp.CurrentTimestamp: _now,
    exp.Localtimestamp: _now,
    exp.CurrentDate: _today,
    exp.CurrentTime: _time,
    exp.Anonymous: _named,
    exp.Floor: _floor,
    exp.Select: _select,
}

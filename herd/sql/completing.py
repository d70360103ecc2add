"""What the query engine's errors leave out: where in the text it is, and what may be meant.

Invariants:
- Only what is certain is said as such: a likeness is a question.
"""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final

from sqlglot import exp

from herd.errors import Error, NoSuchColumn
from herd.schema import Table
from herd.sql.parsing import place_of

_MISSING: Final = re.compile(r'(?:Referenced column|a column named) "([^"]*)"')
_SHOWN_MAX: Final = 12


def complete(error: Error, tree: exp.Expr, tables: Callable[[], Sequence[Table]]) -> None:
    """Add to an error of a query over some tables what it does not say itself."""
    found = _MISSING.search(error.message)
    name = found.group(1) if found is not None else ""
    node = _named(error.message, name, tree)
    if error.place is None and node is not None:
        error.place = place_of(node)
    if isinstance(error, NoSuchColumn) and name:
        error.message = f"there is no column {name}"
        if not error.hint:
            error.hint = _meant(name, node, [c.name for t in tables() for c in t.visible])


def _named(message: str, name: str, tree: exp.Expr) -> exp.Identifier | None:
    """The first part of the text that the message names; the column, if that is missing."""
    nodes = list(tree.find_all(exp.Identifier))
    for node in nodes:
        if name and node.name == name and isinstance(node.parent, exp.Column):
            return node
    for node in nodes:
        if f'"{node.name}"' in message or f" {node.name} " in message:
            return node
    return None


def _meant(name: str, node: exp.Identifier | None, columns: list[str]) -> str:
    by_lower = {column.lower(): column for column in columns}
    near = get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"is it {by_lower[near[0]]}?"
    if node is not None and node.args.get("quoted"):
        return "a text stands in single quotes"
    shown = list(dict.fromkeys(columns))
    more = ", …" if len(shown) > _SHOWN_MAX else ""
    return f"there are {', '.join(shown[:_SHOWN_MAX])}{more}" if shown else ""

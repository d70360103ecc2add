"""What a column gets when a statement gives it nothing.

Invariants:
- A default is text in the definition and a constant expression; CURRENT_TIMESTAMP is the
  statement's moment.
"""

from sqlglot import exp

from herd.schema import Column, Table
from herd.sql.expressions import DEFINED, Store, storing
from herd.sql.parsing import parse_expression


def default_tree(column: Column) -> exp.Expr:
    """A column's default; NULL where it has none."""
    return parse_expression(column.default) if column.default else exp.Null()


def default_store(table: Table, column: Column) -> Store | None:
    """What makes a column's default as it is stored; None where it is NULL."""
    if not column.default:
        return None
    return storing(default_tree(column), DEFINED, table, column)

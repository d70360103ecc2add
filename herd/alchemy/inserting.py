"""INSERT … ON CONFLICT for SQLAlchemy.

    statement = insert(cows).values(id=1, name="Alma")
    statement.on_conflict_do_update(index_elements=["id"], set_={"name": statement.excluded.name})

Invariants:
- The construct is the one that SQLAlchemy's own dialects with the same clause have, so a program
  that names `sqlalchemy.dialects.sqlite.insert` works here, too.
"""

from typing import Any

from sqlalchemy.dialects import sqlite


class Insert(sqlite.Insert):
    """An INSERT that may say what to do about rows that are there."""

    stringify_dialect = "herdbook"
    inherit_cache = True


def insert(table: Any) -> Insert:
    """An INSERT into a table or a mapped class."""
    return Insert(table)

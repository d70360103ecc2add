"""What a text would do, before it is run: for doors that send it on in nobody's name but their own.

Invariants:
- The right that a statement needs is the one that sessions ask for (`herd.permits`), or more.
- What shows or changes more than one tablespace is for administrators of the whole store.
"""

from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from engine.access.principal import Right
from herd.errors import NotSupportedError
from herd.permits import right_of
from herd.sql.parsing import Parsed, end_of, parse
from herd.sql.spaces import WORD as TABLESPACE
from herd.sql.system import is_system

_SESSION: Final = frozenset(
    {"ABORT", "BEGIN", "COMMIT", "END", "RELEASE", "ROLLBACK", "SAVEPOINT", "SET", "START"}
)
_OF_DEFINITIONS: Final = frozenset(
    {
        *("systables", "syscolumns", "sysindexes", "sysindexcolumns", "sysforeignkeys"),
        *("systablestats", "tables", "columns", "dual"),
    }
)
"""System tables that tell of their own tablespace's tables, and of nobody who uses them."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A statement, and the right to its tablespace that it needs; None: to the whole store."""

    right: Right | None
    parsed: Parsed
    reads: bool
    """Whether it changes nothing."""


def alone(text: str, rows: int) -> Alone:
    """What a text needs, and what it says: a query answers so many rows at most.

    Raises as `parse`, and `NotSupportedError` for what only a session can be told.

    >>> [alone(text, 1).right for text in ("SELECT 1", "DELETE FROM cow", "DROP TABLE cow")]
    ['read', 'write', 'admin']
    >>> alone("DROP TABLESPACE barn", 1).right, alone("SELECT * FROM sysnodes", 1).right
    (None, None)
    """
    parsed = parse(text)
    right = _right_of(parse(parsed.rest(1)) if parsed.word == "EXPLAIN" else parsed)
    return Alone(right, at_most(parsed, rows), right_of(parsed) == "read")


def _right_of(parsed: Parsed) -> Right | None:
    if parsed.word in _SESSION:
        raise NotSupportedError(
            f"{parsed.word} in a statement that stands alone",
            hint="each is a transaction of its own",
        )
    if parsed.word in (TABLESPACE, "RESTORE") or _shows_others(parsed):
        return None
    return right_of(parsed)


def _shows_others(parsed: Parsed) -> bool:
    if parsed.tree is None:
        return False
    names = {table.name.lower() for table in parsed.tree.find_all(exp.Table)}
    return any(is_system(name) and name not in _OF_DEFINITIONS for name in names)


def at_most(parsed: Parsed, rows: int) -> Parsed:
    """A query, which nobody else has yet, that answers so many rows at most, where it can say so.

    >>> at_most(parse("SELECT name FROM cows; -- all"), 10).text
    'SELECT name FROM cows\\nLIMIT 10'
    """
    tree = parsed.tree
    if not isinstance(tree, exp.Select | exp.SetOperation):
        return parsed
    if any(tree.args.get(part) for part in ("limit", "offset", "fetch", "into", "locks")):
        return parsed
    # What stands behind its end, a comment perhaps, does not go with it.
    end = end_of(tree)
    tree.set("limit", exp.Limit(expression=exp.Literal.number(rows)))
    return replace(parsed, text=f"{parsed.text[:end]}\nLIMIT {rows}")

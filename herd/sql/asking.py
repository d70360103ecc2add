"""What a text would do, before it is run: for doors that send it on in nobody's name but their own.

Invariants:
- The right that a statement needs is the one that sessions ask for (`herd.permits`), or more.
- What shows or changes more than one tablespace is for administrators of the whole store.
"""

from typing import Final

from sqlglot import exp

from engine.access.principal import Right
from herd.errors import Error, NotSupportedError
from herd.permits import right_of
from herd.sql.parsing import Parsed, parse
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


def right_alone(text: str) -> Right | None:
    """The right to its tablespace that a statement needs; None: to the whole store.

    Raises as `parse`, and `NotSupportedError` for what only a session can be told.

    >>> [right_alone(text) for text in ("SELECT 1", "DELETE FROM cow", "DROP TABLE cow")]
    ['read', 'write', 'admin']
    >>> right_alone("DROP TABLESPACE barn"), right_alone("SELECT * FROM sysnodes")
    (None, None)
    """
    parsed = parse(text)
    if parsed.word == "EXPLAIN":
        return right_alone(parsed.rest(1))
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


def at_most(text: str, rows: int) -> str:
    """The text of a query that answers so many rows at most, where it can be said in it.

    >>> at_most("SELECT name FROM cows -- all", 10)
    'SELECT name FROM cows -- all\\nLIMIT 10'
    """
    parsed = parse(text)
    tree = parsed.tree
    if not isinstance(tree, exp.Select | exp.SetOperation):
        return text
    if any(tree.args.get(part) for part in ("limit", "offset", "fetch", "into", "locks")):
        return text
    limited = f"{text.rstrip().rstrip(';')}\nLIMIT {rows}"
    try:
        parse(limited)
    except Error:
        # What stands behind its end, a comment perhaps, does not go with it.
        return text
    return limited

"""What a text would do, before it is run: for doors that let some people look and others change.

Invariants:
- What is not known to change nothing counts as a change.
"""

import enum
from typing import Final

from sqlglot import exp

from herd.errors import Error, NotSupportedError
from herd.sql.parsing import Parsed, parse
from herd.sql.spaces import WORD as TABLESPACE

_LOOKING: Final = frozenset({"DESC", "DESCRIBE", "EXPLAIN", "SHOW"})
_WHOLE: Final = frozenset({"CHECKPOINT", "RESTORE", TABLESPACE})
_SESSION: Final = frozenset(
    {"ABORT", "BEGIN", "COMMIT", "END", "RELEASE", "ROLLBACK", "SAVEPOINT", "SET", "START"}
)


class Does(enum.Enum):
    """What a statement does to its tablespace."""

    LOOKS = "looks"
    CHANGES = "changes"
    RULES = "rules"
    """It concerns the tablespace as a whole, or another one."""


def does(text: str) -> Does:
    """What a statement does. Raises as `parse`, and for what only a session can be told.

    >>> does("SELECT 1"), does("DELETE FROM cows"), does("DROP TABLESPACE barn")
    (<Does.LOOKS: 'looks'>, <Does.CHANGES: 'changes'>, <Does.RULES: 'rules'>)
    """
    parsed = parse(text)
    if parsed.word in _SESSION:
        raise NotSupportedError(
            f"{parsed.word} in a statement that stands alone",
            hint="each is a transaction of its own",
        )
    if parsed.word in _WHOLE:
        return Does.RULES
    if parsed.word in _LOOKING or _is_query(parsed):
        return Does.LOOKS
    return Does.CHANGES


def at_most(text: str, rows: int) -> str:
    """The text of a query that answers so many rows at most, where it can be said in it.

    >>> at_most("SELECT name FROM cows -- all", 10)
    'SELECT name FROM cows -- all\\nLIMIT 10'
    """
    parsed = parse(text)
    tree = parsed.tree
    if tree is None or not _is_query(parsed) or not isinstance(tree, exp.Select | exp.SetOperation):
        return text
    if any(tree.args.get(part) for part in ("limit", "offset", "fetch", "into")):
        return text
    limited = f"{text.rstrip().rstrip(';')}\nLIMIT {rows}"
    try:
        parse(limited)
    except Error:
        # What stands behind its end, a comment perhaps, does not go with it.
        return text
    return limited


def _is_query(parsed: Parsed) -> bool:
    tree = parsed.tree
    return isinstance(tree, exp.Query | exp.Values) and not tree.args.get("locks")

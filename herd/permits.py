"""What a session may do in its tablespace, and what system tables tell it.

A query reads. What changes rows, or locks them for that, writes. All else is for administrators of
the tablespace: definitions, restoring, the tablespace itself.

Invariants:
- Every text that a session runs passes `Permits.check` when it is planned, whatever comes of it.
- COMMIT is judged by what the transaction changed: a right that was taken back commits nothing.
- A statement about another tablespace is judged by that one's name.
- What is not known counts as an administrator's.
- Tables that say what buckets hold are changed by administrators of the store alone, wherever
  they are.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from engine.access.principal import Principal, Right
from engine.errors import AccessRefused
from herd.errors import AccessDenied

if TYPE_CHECKING:
    from herd.catalog import Catalog
    from herd.sql.parsing import Parsed
    from herd.sql.planning import Planned

OF_BUCKETS: Final = (
    *("buckets", "counts", "deleted_buckets", "dying", "expiries", "homes", "ledgers", "objects"),
    *("moves", "moving_buckets", "open_buckets", "pool_limits", "pool_tablespaces", "refs"),
    *("upload_parts", "uploads"),
)
"""The tables of a tablespace where buckets live, by these names."""
_LATER: Final = frozenset({"counts", "moves", "moving_buckets", "pool_limits", "pool_tablespaces"})
"""Those that are not there where nobody has written since they were thought of."""
_READS: Final = frozenset(
    (
        *("ABORT", "BEGIN", "COMMIT", "DESC", "DESCRIBE", "END", "EXPLAIN", "RELEASE"),
        *("ROLLBACK", "SAVEPOINT", "SET", "SHOW", "START"),
    )
)
_ELSEWHERE: Final = "TABLESPACE"
"""Its own module asks for the right to the tablespace that it names."""


Whose = Principal | None
"""Who may do what a session may; None: whoever has it may do everything."""


class Permits:
    """What one caller may do in one tablespace. They are looked at again as their caller is."""

    __slots__ = ("_now", "_tablespace")

    def __init__(self, now: Callable[[], Principal], tablespace: str) -> None:
        """`now` tells who it is, as they are known at the moment."""
        self._now = now
        self._tablespace = tablespace

    @property
    def user(self) -> str:
        """Whose they are."""
        return self._now().name

    @property
    def principal(self) -> Principal:
        """Who it is, as they were a moment ago."""
        return self._now()

    def check(self, planned: "Planned") -> None:
        """Raise `AccessDenied` where a statement does what they may not do."""
        asked_by.set(self)
        self.need(planned.right)
        if planned.right != "read" and holds_buckets(planned.catalog):
            check_tables(self._now(), planned.names, planned.catalog)

    def need(self, right: Right, tablespace: str = "") -> None:
        """Raise `AccessDenied` without that right, to this tablespace or to another one."""
        check_right(self._now(), tablespace or self._tablespace, right)


asked_by: ContextVar[Permits | None] = ContextVar("asked_by", default=None)
"""Who asked what runs now; None: nobody who may not see all."""


def check_right(principal: Principal, tablespace: str, right: Right) -> None:
    """Raise `AccessDenied` for who has not that right to a tablespace."""
    try:
        principal.check("tablespace", tablespace.lower(), right)
    except AccessRefused as error:
        raise AccessDenied(str(error), hint="ask an administrator for a grant") from None


def holds_buckets(catalog: "Catalog") -> bool:
    """Whether buckets live in a tablespace of these definitions."""
    return all(catalog.find(name) is not None for name in OF_BUCKETS if name not in _LATER)


def check_tables(principal: Principal, names: Iterable[str], catalog: "Catalog") -> None:
    """Raise `AccessDenied` for who would change what says what buckets hold, and may not."""
    if principal.admin or not holds_buckets(catalog):
        return
    for name in names:
        if name.lower() in OF_BUCKETS:
            raise AccessDenied(
                f"{principal.name} may not change table {name}: it says what buckets hold",
                hint="buckets are changed as buckets; rows by an administrator of the store",
            )


def named_in(parsed: "Parsed") -> Iterable[str]:
    """All tables that a statement names, and possibly other names."""
    if parsed.word == "INGEST":
        # Its table is told by the ledger that it names.
        return OF_BUCKETS
    if parsed.tree is None:
        return parsed.pieces
    from sqlglot import exp

    return (table.name for table in parsed.tree.find_all(exp.Table))


def right_of(parsed: "Parsed") -> Right:
    """What a statement needs.

    >>> from herd.sql.parsing import parse
    >>> [right_of(parse(text)) for text in ("SELECT 1", "DELETE FROM cow", "DROP TABLE cow")]
    ['read', 'write', 'admin']
    """
    from sqlglot import exp

    tree = parsed.tree
    if tree is None:
        if parsed.word in _READS or parsed.word == _ELSEWHERE:
            return "read"
        if parsed.word == "CHECKPOINT":
            # Who reads a snapshot asks for a fresh one; that costs only what has changed.
            return "read" if len(parsed.pieces) > 1 else "write"
        return "write" if parsed.word == "INGEST" else "admin"
    if isinstance(tree, exp.Query | exp.Values):
        changes = tree.find(exp.Insert, exp.Update, exp.Delete, exp.Lock) is not None
        return "write" if changes else "read"
    if isinstance(tree, exp.Insert | exp.Update | exp.Delete):
        return "write"
    return "admin"


def may_see_session(other: Permits | None) -> bool:
    """Whether who asks now may know what another session does."""
    asking = asked_by.get()
    if asking is None:
        return True
    if asking.principal.allows("tablespace", asking._tablespace, "admin"):
        return True
    return other is not None and other.user == asking.user


def may_see_space(tablespace: str) -> bool:
    """Whether who asks now may know of a tablespace."""
    asking = asked_by.get()
    return asking is None or asking.principal.allows("tablespace", tablespace, "read")

"""From parsed statements to planned ones, kept by text.

Invariants:
- A plan is of one catalog; with another one the text is planned again, not read again.
- The cache is bounded in bytes, and the oldest plan is evicted first. Of the plans that would take
  a large part of the cache, only the newest is kept, in addition to the others. A plan that is
  larger than the whole cache is not kept.
- The quickest way that a statement allows is chosen once, when it is planned.
"""

from typing import TYPE_CHECKING, Final, cast

from sqlglot import exp

from engine.access.principal import Right
from herd.catalog import Catalog
from herd.errors import NotSupportedError
from herd.permits import named_in, right_of
from herd.sql.altering import Alter
from herd.sql.defining import CreateTable, CreateView, DropTable, DropView, Truncate
from herd.sql.fast import DeleteByKey, SelectByKey, UpdateByKey
from herd.sql.finding import SelectByIndex
from herd.sql.indexing import CreateIndex, DropIndex
from herd.sql.inserting import Insert
from herd.sql.parsing import Parsed
from herd.sql.scalars import CannotEvaluate
from herd.sql.selecting import Select, SelectForUpdate
from herd.sql.statement import Short, Statement
from herd.sql.writing import Delete, Update

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
_LARGE_BYTES: Final = CACHE_BYTES_MAX // 8
# The size of a plan: a base, plus a part for each character of its text and each node of its tree;
# measured. An INSERT has closures for each value.
_PLAN_BYTES: Final = 4_096
_CHARACTER_BYTES: Final = 2
_NODE_BYTES: Final = 600
_INSERT_NODE_BYTES: Final = 1_400
_ADDING: Final = (exp.Insert, exp.Update, exp.Merge, exp.Create, exp.Alter)
_ADDING_WORDS: Final = frozenset({"INGEST", "RESTORE"})


class Planned:
    """A text, planned. `statement` is None for what the session itself does."""

    __slots__ = (
        *("_general", "_names", "_right", "_size_bytes", "adds", "catalog", "needs_transaction"),
        *("parsed", "short", "statement"),
    )

    def __init__(self, parsed: Parsed, catalog: Catalog) -> None:
        self.parsed = parsed
        self.catalog = catalog
        statement = None if parsed.tree is None else make(parsed, catalog)
        self.statement: Statement | None = statement
        self.needs_transaction = statement is not None and statement.needs_transaction
        # Asked once: to look whether something is a protocol takes longer than to run it.
        self.short = cast(Short, statement) if hasattr(statement, "start_short") else None
        self.adds = isinstance(parsed.tree, _ADDING) or parsed.word in _ADDING_WORDS
        """Whether it adds data, which a nearly full disk refuses."""
        self._general: Statement | None = None
        self._right: Right | None = None
        self._names: tuple[str, ...] | None = None
        self._size_bytes = 0

    def is_of(self, catalog: Catalog) -> bool:
        """Whether it may run with this catalog."""
        return self.catalog is catalog or self.statement is None

    def look_through(self) -> None:
        """Compute now everything that requires a walk through the whole tree."""
        _ = self.size_bytes
        if self.right != "read":
            _ = self.names

    @property
    def right(self) -> Right:
        """What it needs who runs it."""
        if self._right is None:
            self._right = right_of(self.parsed)
        return self._right

    @property
    def names(self) -> tuple[str, ...]:
        """All tables that it names, and possibly other names."""
        if self._names is None:
            self._names = tuple(named_in(self.parsed))
        return self._names

    @property
    def size_bytes(self) -> int:
        """Roughly how much memory it takes."""
        if not self._size_bytes:
            tree = self.parsed.tree
            each = _INSERT_NODE_BYTES if isinstance(tree, exp.Insert) else _NODE_BYTES
            nodes = 0 if tree is None else sum(1 for _ in tree.walk())
            self._size_bytes = _PLAN_BYTES + _CHARACTER_BYTES * len(self.parsed.text) + each * nodes
        return self._size_bytes

    def general(self) -> Statement:
        """The plan for values that the quick one cannot take."""
        if self._general is None:
            self._general = make_general(self.parsed, self.catalog)
        return self._general


class Plans:
    """The plans of one tablespace."""

    def __init__(self) -> None:
        self._known: dict[str, Planned] = {}
        self._size_bytes = 0
        self._large: tuple[str, Planned] | None = None

    def known(self, text: str) -> Planned | None:
        """A plan that is there, of whatever catalog. On any thread."""
        large = self._large
        if large is not None and large[0] == text:
            return large[1]
        return self._known.get(text)

    def keep(self, planned: Planned) -> None:
        """Keep a plan and replace an older one of the same text."""
        text, size_bytes = planned.parsed.text, planned.size_bytes
        if size_bytes > CACHE_BYTES_MAX:
            return
        if size_bytes > _LARGE_BYTES:
            self._large = text, planned
            return
        if text not in self._known:
            self._size_bytes += size_bytes
            while self._known and self._size_bytes > CACHE_BYTES_MAX:
                oldest = next(iter(self._known))
                self._size_bytes -= self._known.pop(oldest).size_bytes
        self._known[text] = planned


def make(parsed: Parsed, catalog: Catalog) -> Statement:
    """Plan a statement, the quickest way first."""
    tree = parsed.tree
    try:
        if isinstance(tree, exp.Select):
            return _make_select(parsed, catalog)
        if isinstance(tree, exp.Update):
            return UpdateByKey(parsed, catalog)
        if isinstance(tree, exp.Delete):
            return DeleteByKey(parsed, catalog)
        if isinstance(tree, exp.Insert):
            return Insert(parsed, catalog)
    except CannotEvaluate:
        pass
    return make_general(parsed, catalog)


def _make_select(parsed: Parsed, catalog: Catalog) -> Statement:
    try:
        return SelectByKey(parsed, catalog)
    except CannotEvaluate:
        return SelectByIndex(parsed, catalog)


def make_general(parsed: Parsed, catalog: Catalog) -> Statement:
    """Plan a statement for whatever values. Raises `NotSupportedError`."""
    tree = parsed.tree
    if isinstance(tree, exp.Query):
        locks = tree.args.get("locks")
        return SelectForUpdate(parsed, catalog) if locks else Select(parsed, catalog)
    if isinstance(tree, exp.Insert):
        return Insert(parsed, catalog, general=True)
    if isinstance(tree, exp.Update):
        return Update(parsed, catalog)
    if isinstance(tree, exp.Delete):
        return Delete(parsed, catalog)
    return _make_definition(parsed, catalog)


def _make_definition(parsed: Parsed, catalog: Catalog) -> Statement:
    tree = parsed.tree
    if isinstance(tree, exp.TruncateTable):
        return Truncate(parsed, catalog)
    if isinstance(tree, exp.Alter):
        return Alter(parsed, catalog)
    kind = str(tree.args.get("kind") or "").upper() if tree is not None else ""
    if isinstance(tree, exp.Create):
        if kind == "TABLE":
            return CreateTable(parsed, catalog)
        if kind == "VIEW":
            return CreateView(parsed, catalog)
        if kind == "INDEX":
            return CreateIndex(parsed, catalog)
    if isinstance(tree, exp.Drop):
        if kind == "TABLE":
            return DropTable(parsed, catalog)
        if kind == "VIEW":
            return DropView(parsed, catalog)
        if kind == "INDEX":
            return DropIndex(parsed, catalog)
    raise NotSupportedError(f"there is no statement {parsed.word} {kind}".rstrip())


def plans_of(space: "Tablespace") -> Plans:
    """Those of a tablespace, the same for all its sessions."""
    return space.attached(Plans, Plans)

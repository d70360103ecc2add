"""Changes of many rows of some tables in one turn of the loop, and one command of them.

    procedure = begin(space)                        # None: another replica leads
    values = procedure.lock(target, keys)           # None: take the long way
    if procedure.put(target, rows) and procedure.remove(target, keys):
        answered = procedure.propose()              # a future, or None: take the long way
    procedure.drop()                                # if it was not proposed

A batch of rows that hang together only by what their caller decides needs no layers, no savepoints
and no wait for locks: its keys are locked at once, looked at, set and proposed before anybody else
runs. Whatever is not so simple goes the long way, by a `Transaction`.

Invariants:
- What is locked is locked in the same table as everybody's, until the command is applied. It never
  waits, so it is in no circle of waits: where somebody is in the way it lets go of everything.
- Between its first look and its command nobody else runs: what was looked at under locks holds.
- What is answered by its looks alone counts, because the first of them needs the lease, or is
  confirmed.
- Tables with indexes, children or CHECKs, tables that log their rows before, and foreign keys of
  other than primary keys take the long way. So does what a constraint refuses: there it says why.
- A parent is locked, shared, before it is looked at, as for everybody.
"""

import asyncio
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.errors import EngineError, Overloaded
from engine.limits import MIB
from herd.binding import BoundTable
from herd.commands import Write, encode_command
from herd.locks import Holder, LockTable
from herd.rows import Row, encode_row
from herd.schema import Table
from herd.translating import after_logging, translated

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

_COMMAND_BYTES_MAX: Final = MIB
"""What is larger is made a command in several turns of the loop; no row is too large below it."""


class _Parent(NamedTuple):
    """A foreign key, and the table that it names by its primary key."""

    columns: tuple[int, ...]
    table: Table


class Target:
    """One table of one catalog, as procedures see it: worked out once."""

    def __init__(self, bound: BoundTable) -> None:
        self.bound = bound
        self.table = bound.table
        self.prefix = bound.plan.prefix
        self.encode_primary = bound.plan.encode_primary
        plan, tables = bound.plan, bound.catalog.tables
        required = [column.number for column in plan.required]
        # With at least two of them it makes a tuple, so the first one stands there twice.
        self.required = itemgetter(*required, required[0]) if required else _nothing
        self.parents = [_Parent(key.columns, tables[key.parent]) for _, key in plan.parents]
        by_primary = all(
            key.parent_columns == tables[key.parent].primary for _, key in plan.parents
        )
        others = plan.indexes or plan.children or self.table.full_changes
        self.short = by_primary and bound.verify is None and not others
        """Whether rows of it can be written so."""


class Procedure(Holder):
    """One change of many rows. Made by `begin`; proposed or dropped in the turn in which it was."""

    __slots__ = ("_changes", "_locks", "_looked", "_proposed", "_size_bytes", "_space")

    def __init__(self, space: "Tablespace", locks: LockTable) -> None:
        super().__init__()
        self._space = space
        self._locks = locks
        self._changes: dict[bytes, bytes | None] = {}
        self._size_bytes = 0
        self._looked = False
        self._proposed = False

    def lock(self, target: Target, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """The rows with these whole keys, or None for those that nobody has, kept for all others.

        Each comes with its position in front. None: somebody is in the way. Raises
        `LeaderUnavailable`, `StorageFailed`.
        """
        if not (keys and self._take(target.table, target.bound) and self._alone(keys)):
            return None if keys else []
        get, values = self._space.get_applied, list[bytes | None]()
        if not self._looked:
            # The first look says whether this leader may answer at all.
            values.append(self._space.rows_get(keys[0]))
            self._looked = True
        try:
            values += [get(key) for key in keys[len(values) :]]
        except EngineError as error:
            raise translated(error) from error
        return values

    def put(self, target: Target, rows: Sequence[tuple[bytes, Row]]) -> bool:
        """Set rows under their whole keys, whatever was there. False: take the long way."""
        if not target.short or not self._take(target.table, target.bound):
            return False
        if not self._alone([key for key, _ in rows]) or not self._find_parents(target, rows):
            return False
        changes, required, size_bytes = self._changes, target.required, 0
        for key, row in rows:
            if None in row and None in required(row):
                return False
            encoded = changes[key] = encode_row(row)
            size_bytes += len(key) + len(encoded)
        self._size_bytes += size_bytes
        return True

    def remove(self, target: Target, keys: Sequence[bytes]) -> bool:
        """Remove the rows with these whole keys, if they are there. False: take the long way."""
        if not target.short or not self._take(target.table, target.bound):
            return False
        if not self._alone(keys):
            return False
        self._changes.update(dict.fromkeys(keys))
        self._size_bytes += sum(map(len, keys))
        return True

    def propose(self) -> "asyncio.Future[None] | None":
        """Log all of it; the future is done when it is durable and applied. None: the long way.

        Raises `LeaderUnavailable`, `StorageFailed` (nothing happened); the future `CommitUnknown`.
        """
        limit = min(_COMMAND_BYTES_MAX, self._space.settings.transaction_bytes_max)
        if self._size_bytes > limit:
            return None
        command = encode_command(Write(list(self._changes.items())))
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._space.replica.propose_for(command, _Answer(self, self._locks, answered))
        except Overloaded:
            return None
        except EngineError as error:
            raise translated(error) from error
        self._proposed = True
        return answered

    def drop(self) -> None:
        """Let go of everything, unless it is in the log: then its locks fall when it is applied."""
        if not self._proposed:
            self._locks.release(self)

    def _take(self, table: Table, bound: BoundTable) -> bool:
        """Keep a table as it is defined now; False if it is not as it was bound."""
        if self._space.known_catalog is not bound.catalog:
            return False
        return self._locks.try_lock(self, table.id, exclusive=False)

    def _alone(self, keys: Iterable[bytes]) -> bool:
        return self._locks.try_all(self, keys)

    def _find_parents(self, target: Target, rows: Sequence[tuple[bytes, Row]]) -> bool:
        """Whether all that the rows name is there, and stays."""
        locks, get = self._locks, self._space.get_applied
        for columns, parent in target.parents:
            if not self._take(parent, target.bound):
                return False
            # What many rows name is looked for once.
            named = {tuple([row[number] for number in columns]): None for _, row in rows}
            for values in named:
                if None in values:
                    continue
                key = parent.prefix + parent.encode_primary(values)
                if not locks.try_lock(self, key, exclusive=False) or get(key) is None:
                    return False
        return True


def begin(space: "Tablespace") -> Procedure | None:
    """A new procedure; None where this replica does not lead."""
    return Procedure(space, space.locks) if space.term else None


class _Answer:
    """Hears what became of a command. The locks fall when it is applied, whoever still waits."""

    __slots__ = ("_answered", "_locks", "_procedure")

    def __init__(
        self, procedure: Procedure, locks: LockTable, answered: "asyncio.Future[None]"
    ) -> None:
        self._procedure = procedure
        self._locks = locks
        self._answered = answered

    def done(self) -> bool:
        """Never before it has heard: it has locks to release."""
        return False

    def set_result(self, result: bytes, /) -> None:
        """It is applied."""
        self._locks.release(self._procedure)
        if not self._answered.done():
            self._answered.set_result(None)

    def set_exception(self, error: EngineError, /) -> None:
        """It failed, or nobody knows."""
        self._locks.release(self._procedure)
        if not self._answered.done():
            self._answered.set_exception(after_logging(error))


def _nothing(row: Any) -> tuple[Any, ...]:
    return ()

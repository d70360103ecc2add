"""Writes of one row, each a transaction of its own, without what only larger ones need.

    writer = RowWriter(space, table)
    answered = writer.write(key, change, answer)   # a future, or None: take the long way

Most writes touch one row by its primary key and nothing else. They need no layers, no savepoints
and no list of locks: the row is locked, changed and proposed in one turn of the loop, and the lock
falls when the row is applied. Whatever is not so simple goes the long way, by a `Transaction`.

Invariants:
- What is locked is locked in the same table as everybody's, so a short write and a transaction
  never meet in a row; a short write never waits, so it is in no circle of waits.
- The row is read under its lock, from the state to which everything answered was applied.
- A failed check changes nothing and leaves no lock. It is told only by who may answer reads.
- Keys that change, unique ones among them, parents, children and tables that log their rows before
  take the long way.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from engine.errors import EngineError, Overloaded
from herd.changing import Verify
from herd.commands import Change, Write, encode_command
from herd.errors import NotNullViolation
from herd.locks import LockTable
from herd.plan import Plan
from herd.rows import Row, encode_row
from herd.schema import Table
from herd.tablespace import Tablespace
from herd.translating import after_logging, translated

T = TypeVar("T")

ChangeRow = Callable[[Row | None], Row | None]
"""Makes the new row of the one that is there (None: none); None removes it.

Returning the very row it was given changes nothing. The row given is the callee's to change only in
a copy. What it raises is raised to the caller, and nothing is changed.
"""

NOTHING: Final = bytes(bytearray(b"nothing"))
"""In place of a command, of a write that found its row as it was to be."""


class RowWriter:
    """Short writes of one table, as it is defined at one moment. On the event loop."""

    def __init__(self, space: Tablespace, table: Table, verify: Verify | None = None) -> None:
        self.table = table
        self.catalog = space.catalog
        self._plan: Plan = self.catalog.plan(table)
        self._space = space
        self._get = space.get_applied
        self._decode = self._plan.decode
        self._verify = verify
        self._create_future = asyncio.get_running_loop().create_future
        self._required = [(column.number, column.name) for column in self._plan.required]
        plan = self._plan
        self._primary = table.primary
        self._only = table.primary[0] if len(table.primary) == 1 else None
        self._short = not table.full_changes
        self._bare = not (plan.indexes or plan.parents or plan.children)

    @property
    def current(self) -> bool:
        """Whether the table's definition is still this one."""
        return self._space.known_catalog is self.catalog

    def write(
        self, key: bytes, change: ChangeRow, answer: Callable[[], T]
    ) -> "asyncio.Future[T] | None":
        """Change the row with this whole key; the future has `answer()` when that is durable.

        `answer` must not raise. None: this one has to take the long way, and nothing was done.
        Raises what `change` and the constraints raise, `LeaderUnavailable`, `StorageFailed`; so
        does the future, where the outcome may be unknown: `CommitUnknown`.
        """
        space, table_id = self._space, self.table.id
        if not self._short or not space.term or space.known_catalog is not self.catalog:
            return None
        locks = space.locks
        if not locks.try_short(table_id, key):
            return None
        waiter: _Writing | None = None
        answered: asyncio.Future[T] = self._create_future()
        try:
            command = self._checked(key, change)
            if command is None:
                return None
            if command is NOTHING:
                answered.set_result(answer())
                return answered
            waiting = _Writing(locks, table_id, key, answered, answer)
            space.replica.propose_for(command, waiting)
            waiter = waiting
        except Overloaded:
            return None
        except EngineError as error:
            raise translated(error) from error
        finally:
            if waiter is None:
                locks.release_short(table_id, key)
        return answered

    def _checked(self, key: bytes, change: ChangeRow) -> bytes | None:
        """As `_command`. What is answered without the log is read as `rows_get` reads it."""
        try:
            command = self._command(key, change)
        except Exception:
            self._space.rows_get(key)
            raise
        if command is NOTHING:
            self._space.rows_get(key)
        return command

    def _command(self, key: bytes, change: ChangeRow) -> bytes | None:
        """What to log; None for the long way."""
        value = self._get(key)
        before = None if value is None else self._decode(value)
        after = change(before)
        if after is before:
            return NOTHING
        if after is not None:
            if None in after:
                self._check_required(after)
            if self._verify is not None:
                self._verify(after)
            if before is not None and self._moves(before, after):
                return None
        row = None if after is None else encode_row(after)
        if self._bare:
            return encode_command(Write(((key, row),)))
        entries = self._entries(key, before, after)
        return None if entries is None else encode_command(Write(((key, row),), entries))

    def _check_required(self, row: Row) -> None:
        for number, name in self._required:
            if row[number] is None:
                raise NotNullViolation(f"{self.table.name}.{name} may not be NULL")

    def _moves(self, before: Row, after: Row) -> bool:
        """Whether a change gives the row another key."""
        only = self._only
        if only is None:
            return _differ(before, after, self._primary)
        return before[only] != after[only]

    def _entries(self, key: bytes, before: Row | None, after: Row | None) -> list[Change] | None:
        """Changes of indexes; None where others' keys or rows have to be looked at."""
        plan = self._plan
        for reference in plan.parents:
            if after is not None and _differ(before, after, reference.key.columns):
                return None
        for reference in plan.children:
            if before is not None and _differ(before, after, reference.key.parent_columns):
                return None
        old = plan.entries(before, key) if before is not None else {}
        new = plan.entries(after, key) if after is not None else {}
        primary = key[len(plan.prefix) :]
        changes: list[Change] = []
        for entry, unique in old.items():
            if entry not in new:
                if unique:
                    return None
                changes.append((entry, None))
        for entry, unique in new.items():
            if entry not in old:
                if unique:
                    return None
                changes.append((entry, primary))
        return changes


def _differ(before: Row | None, after: Row | None, columns: tuple[int, ...]) -> bool:
    if before is None or after is None:
        return True
    return [before[number] for number in columns] != [after[number] for number in columns]


class _Writing:
    """A write in the log. The lock falls when it is applied, not with the wait for it."""

    __slots__ = ("_answer", "_answered", "_key", "_locks", "_table")

    def __init__(
        self,
        locks: LockTable,
        table: int,
        key: bytes,
        answered: "asyncio.Future[Any]",
        answer: Callable[[], Any],
    ) -> None:
        self._locks = locks
        self._table = table
        self._key = key
        self._answered = answered
        self._answer = answer

    def done(self) -> bool:
        """Never before it has heard: it has a lock to release."""
        return False

    def set_result(self, result: bytes, /) -> None:
        """It is applied."""
        self._locks.release_short(self._table, self._key)
        if not self._answered.done():
            self._answered.set_result(self._answer())

    def set_exception(self, error: EngineError, /) -> None:
        """It failed, or nobody knows."""
        self._locks.release_short(self._table, self._key)
        if not self._answered.done():
            self._answered.set_exception(after_logging(error))

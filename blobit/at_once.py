"""A batch of changes of rows in one turn of the loop, where their tablespace runs in this process.

    batch = at_once.begin(keys)                 # None: take the long way, by `Rows.transaction`
    ... decide by batch.found ...
    answered = batch.write(rows)                # a future, or None: take the long way
    batch.drop()                                # in the end, whatever came of it

Invariants:
- Between `begin` and `write` nobody else runs: whoever decides must not wait.
- No batch has more than `ROWS_MAX` rows: the long way lets others run in between.
- What is refused here is tried the long way, which says why; nothing was changed then.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple

from blobit.tables import OBJECT_COLUMNS, REF_COLUMNS, Row, RowKey
from herd.binding import BoundTable
from herd.procedures import Procedure, Target, begin
from herd.rows import Row as StoredRow
from herd.table import AsyncTable

ROWS_MAX: Final = 1_024
"""As many as the puts of a batch write; more would keep the loop from others for too long."""
_HOT_COLUMNS: Final = {"objects": [*OBJECT_COLUMNS], "refs": [*REF_COLUMNS]}
_HOT: Final = {table: itemgetter(*columns) for table, columns in _HOT_COLUMNS.items()}


class _Writing(NamedTuple):
    """How rows of one table are written."""

    target: Target
    stored: Callable[[Row], StoredRow]


class AtOnce:
    """Makes batches of changes to the tables of one tablespace. On the event loop."""

    def __init__(self, tables: Mapping[str, AsyncTable]) -> None:
        self._tables = tables
        self._space = next(iter(tables.values())).space
        self._writings: dict[str, _Writing] = {}

    def begin(self, keys: Collection[RowKey]) -> "Batch | None":
        """Lock rows and look at them; None: take the long way. Raises what is in `herd.errors`."""
        if len(keys) > ROWS_MAX:
            return None
        procedure = begin(self._space)
        if procedure is None:
            return None
        batch = Batch(self, procedure)
        try:
            if batch.lock(keys):
                return batch
        except BaseException:
            batch.drop()
            raise
        batch.drop()
        return None

    def writing(self, table: str) -> _Writing:
        """How rows of a table are written, as it is defined now."""
        bound, found = self._tables[table].bound, self._writings.get(table)
        if found is None or found.target.bound is not bound:
            found = self._writings[table] = _Writing(Target(bound), storing(table, bound))
        return found


class Batch:
    """One batch. Made by `AtOnce.begin`."""

    def __init__(self, owner: AtOnce, procedure: Procedure) -> None:
        self.found: dict[RowKey, Row | None] = {}
        """The rows that are locked; None: there is no row."""
        self._owner = owner
        self._procedure = procedure
        self._whole: dict[RowKey, bytes] = {}
        self._looked: set[str] = set()

    def lock(self, keys: Iterable[RowKey]) -> bool:
        """Lock rows and look at them; False: somebody is in the way."""
        by_table: dict[str, list[RowKey]] = {}
        for key in keys:
            by_table.setdefault(key[0], []).append(key)
        for table, some in by_table.items():
            self._looked.add(table)
            target = self._owner.writing(table).target
            encode, prefix = target.encode_primary, target.prefix
            whole = [prefix + encode(key[1]) for key in some]
            values = self._procedure.lock(target, whole)
            if values is None:
                return False
            self._whole.update(zip(some, whole, strict=True))
            as_dict = target.bound.as_dict
            for key, value in zip(some, values, strict=True):
                self.found[key] = None if value is None else as_dict(value)
        return True

    def write(self, rows: Mapping[RowKey, Row | None]) -> "asyncio.Future[None] | None":
        """Store rows, in place of those with their keys; None removes one. None: the long way.

        The future is done when all is durable and visible. Raises what is in `herd.errors`.
        """
        if len(rows) > ROWS_MAX:
            return None
        procedure, known = self._procedure, self._whole
        by_table: dict[str, list[tuple[RowKey, Row | None]]] = {}
        for pair in rows.items():
            by_table.setdefault(pair[0][0], []).append(pair)
        for table, some in by_table.items():
            target, stored = self._owner.writing(table)
            encode, prefix, looked = target.encode_primary, target.prefix, table in self._looked
            kept: list[tuple[bytes, StoredRow]] = []
            gone: list[bytes] = []
            for key, row in some:
                whole = (looked and known.get(key)) or prefix + encode(key[1])
                if row is None:
                    gone.append(whole)
                else:
                    kept.append((whole, stored(row)))
            if kept and not procedure.put(target, kept):
                return None
            if gone and not procedure.remove(target, gone):
                return None
        return procedure.propose()

    def drop(self) -> None:
        """Let go of what was not written."""
        self._procedure.drop()


def storing(table: str, bound: BoundTable) -> Callable[[Row], StoredRow]:
    """What makes a stored row of one that this store made itself."""
    pick: Callable[[Row], tuple[Any, ...]] | None = _HOT.get(table)
    if pick is None or [column.name for column in bound.table.visible] != _HOT_COLUMNS[table]:
        # Values that come from elsewhere are looked at, and so are tables that somebody changed.
        return bound.row
    return lambda row: [*pick(row)]

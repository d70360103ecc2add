"""Which tables a stream tells of, and which of their definitions' changes end it.

Invariants:
- A stream of one table has the columns that the table had when the stream was loaded: older rows
  are read as a query of that time would read them, and a change of the columns after it ends the
  stream before the first row that could be another one.
- A table is followed by its id. Another one that takes its name is never told under it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from engine.log.position import Position
from herd.errors import Error, NotSupportedError, ProgrammingError
from herd.schema import Column, Table

AGAIN: Final = "stop the query and load the table again: it goes on after its checkpoint"


class OneTable(msgspec.Struct, frozen=True):
    """A stream of one table, whose definition was `table` at the position `known_at`."""

    table: Table
    known_at: Position
    before: bool = False

    def needed(self, tables: Mapping[int, Table]) -> tuple[Table, ...]:
        """The definitions that are needed to read on."""
        return tuple(filter(self.tells_of, tables.values()))

    def tells_of(self, table: Table) -> bool:
        """Whether the rows of a table are told."""
        return table.id == self.table.id

    def refused_at(self, position: Position, tables: Iterable[Table]) -> Error | None:
        """Why the stream cannot begin at a position with these tables, if it cannot."""
        if any(map(self._is_another, tables)):
            return ProgrammingError(
                f"at {shown(position)} table {self.table.name} was another one than now",
                hint="begin with a start at which it was this one, or with start=latest",
            )
        return None

    def refusal(self, position: Position, now: Table | None) -> Error | None:
        """Why the stream ends before a change of a definition, if it does."""
        if now is None or position <= self.known_at:
            return None
        if self._is_another(now):
            return ProgrammingError(
                f"at {shown(position)} another table was made as {now.name}",
                hint=f"begin a stream of its own with start={shown(position)}",
            )
        return self._other_columns(position, now) if now.id == self.table.id else None

    def _other_columns(self, position: Position, now: Table) -> Error | None:
        known = {column.number: column for column in self.table.visible}
        present = {column.number: column for column in now.visible}
        told = [
            _difference(known.get(number), present.get(number))
            for number in sorted(known.keys() | present.keys())
        ]
        found = next(filter(None, told), "")
        if not found:
            return None
        return ProgrammingError(f"table {now.name}: at {shown(position)} {found}", hint=AGAIN)

    def _is_another(self, table: Table) -> bool:
        return table.id != self.table.id and table.name.lower() == self.table.name.lower()


class ManyTables(msgspec.Struct, frozen=True):
    """A stream of the tables with some names, in lower case; without any, of all tables."""

    names: frozenset[str] = frozenset()
    before: bool = False

    def needed(self, tables: Mapping[int, Table]) -> tuple[Table, ...]:
        """The definitions that are needed to read on: a table may be given a wanted name."""
        return tuple(tables.values())

    def tells_of(self, table: Table) -> bool:
        """Whether the rows of a table are told, as long as it has its name."""
        return not self.names or table.name.lower() in self.names

    def refused_at(self, position: Position, tables: Iterable[Table]) -> Error | None:
        """Nothing keeps it from beginning."""
        return None

    def refusal(self, position: Position, now: Table | None) -> Error | None:
        """Nothing ends it: each row is told with the columns of its own moment."""
        return None


Interest = OneTable | ManyTables


def restored(position: Position, table: Table) -> Error:
    """Why no stream goes on past the moment when a table appears whose rows came before it."""
    return NotSupportedError(
        f"table {table.name}: at {shown(position)} all of its rows were put in its place at once",
        hint="read a snapshot taken since, then begin a stream with a start at its position",
    )


def must_tell_before(tables: Iterable[Table]) -> None:
    """Raise `NotSupportedError` for a table that does not log how its rows were."""
    for table in tables:
        if not table.full_changes:
            raise NotSupportedError(
                f"table {table.name} does not log rows as they were before",
                hint=f"ALTER TABLE {table.name} SET (changes = 'full') makes it from then on",
            )


def shown(position: Position) -> str:
    """A position as the options `start` and `end` take it."""
    return f"{position.ledger}/{position.entry}"


def _difference(known: Column | None, present: Column | None) -> str:
    if known is None:
        assert present is not None
        return f"column {present.name} was added"
    if present is None:
        return f"column {known.name} was dropped"
    if known.name != present.name:
        return f"column {known.name} became {present.name}"
    if known.type != present.type:
        return f"column {known.name} became {present.type.sql}"
    return ""

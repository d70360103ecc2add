"""Changes of a store's tables: what travels with a plan, and the driver's side of a stream.

Invariants:
- What tables there are is looked up once, when a stream or batch is loaded; it travels with the
  plan, so that all processes tell the same columns.
- A batch of changes is the same ones however often it is read, and pinned from its first plan on.
- A pin keeps all that comes after its position, so an application needs one for all later batches.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa

from engine.application import RENEWED_MS, Application, Renewable
from engine.errors import NotFound, PositionTruncated
from engine.log import Position
from engine.place import HeldClient, Place, held_client
from herd.capture.interest import Interest, ManyTables, OneTable, must_tell_before
from herd.capture.shape import json_schema, table_schema
from herd.capture.survey import NO_LIMIT, Limit, Stretch, Survey
from herd.capture.wanted import LATEST, Wanted
from herd.consumers import Consumer
from herd.errors import NoSuchTable
from herd.schema import Table
from herd.translating import translating

_UNNAMED_MS: Final = 3_600_000
"""How long what a stream without a name needs is kept after its driver died."""


class Changes(msgspec.Struct, frozen=True):
    """What is told, and from where."""

    place: Place
    tablespace: str
    interest: Interest

    @property
    def schema(self) -> pa.Schema:
        """The columns of all batches."""
        if isinstance(self.interest, OneTable):
            return table_schema(self.interest)
        return json_schema(before=self.interest.before)

    @property
    def held(self) -> HeldClient:
        """This process's way to the store."""
        return held_client(self.place)

    def survey(self, consumer: str, keep_ms: int = RENEWED_MS) -> Survey:
        """A survey of their log."""
        client = self.held.client
        return Survey(client, self.tablespace, self.interest, consumer=consumer, keep_ms=keep_ms)


class ChangesPin(msgspec.Struct, frozen=True):
    """A pin of an application on what a batch of changes needs; `Renewable`."""

    place: Place
    tablespace: str
    position: Position
    name: str

    def renew(self) -> None:
        """Keep it for `RENEWED_MS` more. Raises `NotFound` if it is kept no more."""
        try:
            self._keep(RENEWED_MS)
        except PositionTruncated as error:
            raise NotFound(str(error)) from error

    def drop(self) -> None:
        """Keep it no longer for this application."""
        held = held_client(self.place)
        held.run(Consumer(held.client, self.tablespace, self.name, RENEWED_MS).forget)

    def keeps(self, other: Renewable) -> bool:
        """Whether another pin is on the same log, and not before this one."""
        return (
            isinstance(other, ChangesPin)
            and (other.place, other.tablespace) == (self.place, self.tablespace)
            and other.position >= self.position
        )

    def hold(self, application: Application) -> None:
        """Keep it from now on, and leave it to the application's driver to renew it."""
        if application.noted_for(self) is None:
            self._keep(application.pin_ms)
            application.note(self, self.name)

    def _keep(self, keep_ms: int) -> None:
        held = held_client(self.place)
        consumer = Consumer(held.client, self.tablespace, self.name, keep_ms)
        held.run(partial(consumer.begin, self.position))


class Range(msgspec.Struct, frozen=True):
    """A batch of changes: all after one position up to another, and what keeps them."""

    changes: Changes
    start: Position
    end: Position
    pin: ChangesPin

    def stretches(self) -> list[Stretch]:
        """Its parts, in their order. Blocks. Raises as `Survey.stretches`."""

        async def plan() -> list[Stretch]:
            survey = self.changes.survey("")
            try:
                return await survey.stretches(self.start, self.end)
            finally:
                await survey.close()

        return self.changes.held.run(plan)


class Driver:
    """The one process of a stream that says how far it goes. Blocking; a call at a time."""

    def __init__(self, changes: Changes, wanted: Wanted) -> None:
        self._held = changes.held
        self._named = bool(wanted.consumer)
        name = wanted.consumer or f"stream-{self._held.client.rng.getrandbits(128):032x}"
        keep_ms = wanted.keep_ms if self._named else _UNNAMED_MS
        self._survey = changes.survey(name, keep_ms)
        self._start = wanted.start
        self._until: Position | None = None

    def begin(self) -> Position:
        """Where a new query begins."""
        return self._held.run(partial(self._survey.position, self._start))

    def stop_at_end(self) -> None:
        """Let nothing be told that is not there yet."""
        self._until = self._held.run(self._survey.end)

    def latest(self, start: Position, limit: Limit = NO_LIMIT) -> Position:
        """How far the batch after `start` goes."""
        return self._held.run(partial(self._survey.latest, start, limit, self._until))

    def stretches(self, start: Position, end: Position) -> list[Stretch]:
        """The parts of a batch."""
        return self._held.run(partial(self._survey.stretches, start, end))

    def commit(self, end: Position) -> None:
        """Everything up to there has been dealt with."""
        self._held.run(partial(self._survey.commit, end))

    def close(self) -> None:
        """End; what a consumer with a name needs to go on is kept."""
        self._held.run(partial(self._survey.close, forget=not self._named))


def find_range(place: Place, wanted: Wanted) -> Range:
    """What is told by what tables there are at its end, which for a stream is now. Blocks.

    Raises `NoSuchTable`, `ProgrammingError` for a tablespace that is not there,
    `NotSupportedError` for rows as they were of a table that does not log them, `InterfaceError`
    for a position past the end of the log, `StorageFailed`.
    """
    with translating():
        changes = Changes(place, wanted.tablespace, ManyTables(wanted.names, wanted.before))
        held = changes.held
    survey = changes.survey("")

    async def look() -> tuple[Position, Position, dict[int, Table]]:
        try:
            end = await survey.position(wanted.end)
            tables = await survey.tables(end)
            start = end if wanted.start == LATEST else await survey.position(wanted.start)
            return start, end, tables
        finally:
            await survey.close()

    start, end, tables = held.run(look)
    interest = _interest(wanted, end, {table.name.lower(): table for table in tables.values()})
    name = f"batch-{held.client.rng.getrandbits(128):032x}"
    return Range(
        msgspec.structs.replace(changes, interest=interest),
        start,
        max(start, end),
        ChangesPin(place, wanted.tablespace, start, name),
    )


def _interest(wanted: Wanted, end: Position, known: Mapping[str, Table]) -> Interest:
    names = (wanted.table.lower(),) if wanted.table else sorted(wanted.names)
    for name in names:
        if name not in known:
            raise _no_table(name, wanted.tablespace, known)
    if wanted.before:
        must_tell_before([known[name] for name in names or known])
    if wanted.table:
        return OneTable(known[wanted.table.lower()], end, wanted.before)
    return ManyTables(wanted.names, wanted.before)


def _no_table(name: str, tablespace: str, known: Iterable[str]) -> NoSuchTable:
    there = ", ".join(sorted(known)[:20]) or "none"
    return NoSuchTable(
        f"there is no table {name} in tablespace {tablespace}", hint=f"its tables: {there}"
    )

"""How far a stream may go on and how its work is cut: what one process knows for all others.

    survey = Survey(client, "default", ManyTables(), consumer="etl")
    start = await survey.position("earliest")
    end = await survey.latest(start, Limit(rows=10_000))
    for stretch in await survey.stretches(start, end):
        ...

Invariants:
- Positions that are handed out lie between transactions, stretches begin and end at such ones, and
  those between two positions are all of the log between them, each part once.
- A batch ends before the transaction that would go over its limit, and has one at least.
- What ends a stream is told only when all before it was handed out.
- What a named consumer has not committed is kept, and renewed as long as the survey is open.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from engine.errors import EngineError, PositionTruncated
from engine.ledger.client import LedgerClient
from engine.limits import MIB
from engine.log import START, Position, ReplicatedLog
from herd.capture.interest import Interest, restored, shown
from herd.capture.walk import Step, Walk
from herd.changes import KEEP_MS
from herd.checkpoint.record import CheckpointList
from herd.consumers import Consumer
from herd.errors import Error, InterfaceError, ProgrammingError, StorageFailed
from herd.reading_log import log_of
from herd.schema import Table
from herd.translating import translated

STRETCH_BYTES: Final = 4 * MIB
"""A stretch has about so much of the log: enough work for a task, and no burden for its memory."""
_IDLE_S: Final = 0.2


class Limit(msgspec.Struct, frozen=True):
    """What a batch may have: rows of all tables, bytes of the log. None: any number."""

    rows: int | None = None
    size_bytes: int | None = None

    def exceeded(self, rows: int, size_bytes: int) -> bool:
        """Whether so much is more than that."""
        return (self.rows is not None and rows > self.rows) or (
            self.size_bytes is not None and size_bytes > self.size_bytes
        )


NO_LIMIT: Final = Limit()


class Stretch(msgspec.Struct, frozen=True):
    """A part of the log after one position up to another, and the definitions it begins with."""

    after: Position
    last: Position
    tables: tuple[Table, ...]


class _Mark(msgspec.Struct, frozen=True):
    """Where a stretch may begin."""

    position: Position
    tables: dict[int, Table]


class Survey:
    """One follower's knowledge of a tablespace's log. All calls on the client's loop, in turn.

    With a name as `consumer` the log and the checkpoint that it needs are kept, for `keep_ms` after
    it was last open. Every call raises `herd.errors.Error`, and `StorageFailed` in particular for a
    log that no longer reaches back so far: that one says where to begin again.
    """

    def __init__(
        self,
        client: LedgerClient,
        tablespace: str,
        interest: Interest,
        *,
        consumer: str = "",
        keep_ms: int = KEEP_MS,
    ) -> None:
        self._tablespace = tablespace
        self._interest = interest
        self._checkpoints = CheckpointList(client.store, tablespace, client.time)
        self._log = ReplicatedLog(client, log_of(tablespace))
        self._consumer = Consumer(client, tablespace, consumer, keep_ms)
        self._walk: Walk | None = None
        self._handed = START
        """Up to here all was handed out; what was walked past since tells nothing."""
        self._marks: list[_Mark] = []
        self._size_bytes = 0
        self._committed = START
        self._keeping: asyncio.Task[None] | None = None

    async def position(self, text: str) -> Position:
        """What `earliest`, `latest` or "ledger/entry" means now: all after it is to come."""
        async with self._explaining():
            kept = await self._log.list()
            if not kept.epoch:
                raise ProgrammingError(f"there is no tablespace {self._tablespace}")
            if text == "earliest":
                if kept.full_history:
                    return START
                first = (await self._checkpoints.get()).kept
                return first[0].position if first else kept.dropped_through
            end = await self._log.end()
            wanted = end if text == "latest" else parsed(text)
            if wanted > end:
                raise InterfaceError(
                    f"{shown(wanted)} is past the end of tablespace {self._tablespace}'s log, "
                    f"{shown(end)}"
                )
            return (await self._walk_from(wanted)).at

    async def end(self) -> Position:
        """The newest position that is confirmed now, perhaps inside of a transaction."""
        async with self._explaining():
            return await self._log.end()

    async def tables(self, position: Position) -> dict[int, Table]:
        """The definitions at a position, by their numbers."""
        async with self._explaining():
            return (await self._walk_from(position)).tables

    async def latest(
        self, start: Position, limit: Limit = NO_LIMIT, until: Position | None = None
    ) -> Position:
        """How far a batch after `start` goes; `start` itself while nothing of interest is there.

        It goes to what is confirmed now, not past `until`, and waits a moment for something. What
        is known to be there, up to `until`, is waited for as long as it takes to read it.
        """
        async with self._explaining():
            walk = await self._walk_from(start)
            if until is not None and walk.at >= until:
                return start
            if until is None and not await walk.arrives(_IDLE_S):
                return start
            end = await self._log.end()
            if await self._go(walk, end if until is None else min(end, until), limit):
                self._hand(walk)
            return self._handed

    async def stretches(self, start: Position, end: Position) -> list[Stretch]:
        """All that lies after `start` up to `end`, in their order; both were handed out once."""
        async with self._explaining():
            if end <= start:
                return []
            if not self._covers(start, end):
                walk = await self._walk_from(start)
                while walk.at < end:
                    # What ends the stream before its end is raised by the second turn.
                    if not await self._go(walk, end, NO_LIMIT) and walk.at < end:
                        raise InterfaceError(f"{shown(end)} is inside of a transaction")
                self._hand(walk)
            marks = [mark for mark in self._marks if start <= mark.position < end]
            ends = [mark.position for mark in marks[1:]] + [end]
            return [
                Stretch(mark.position, last, self._interest.needed(mark.tables))
                for mark, last in zip(marks, ends, strict=True)
            ]

    async def commit(self, end: Position) -> None:
        """Everything up to a position has been dealt with: it need not be kept any more."""
        async with self._explaining():
            self._marks = [mark for mark in self._marks if mark.position >= end]
            self._committed = end
            await self._consumer.move(end)

    async def close(self, *, forget: bool = False) -> None:
        """End. What the consumer keeps is kept on for its time, or dropped with `forget`."""
        async with self._explaining():
            keeping, self._keeping = self._keeping, None
            if keeping is not None:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
            await self._leave()
            if forget:
                await self._consumer.forget()

    # Walking

    def _covers(self, start: Position, end: Position) -> bool:
        places = [mark.position for mark in self._marks]
        return start in places and end in places

    async def _walk_from(self, start: Position) -> Walk:
        """The walk, at a position where everything up to `start` was handed out."""
        if self._walk is not None and self._handed == start:
            return self._walk
        await self._leave()
        begin, tables = await self._consumer.begin(start)
        walk = self._walk = Walk(self._log, begin, tables)
        while await walk.peek(start) is not None:
            walk.take()
        refused = self._interest.refused_at(start, walk.tables.values())
        if refused is not None:
            raise refused
        self._marks = []
        self._hand(walk)
        self._committed = start
        if self._keeping is None:
            self._keeping = self._begin_keeping()
        return walk

    async def _go(self, walk: Walk, end: Position, limit: Limit) -> bool:
        """Go on to `end` or to the limit; tell whether anything of interest was passed."""
        rows = size_bytes = 0
        told = False
        while (step := await walk.peek(end)) is not None:
            rows, size_bytes = rows + step.rows, size_bytes + step.size_bytes
            if told and limit.exceeded(rows, size_bytes):
                break
            refused = self._refusal(step)
            if refused is not None:
                if not told:
                    raise refused
                break
            walk.take()
            told = told or step.tells
            self._size_bytes += step.size_bytes
            if self._size_bytes >= STRETCH_BYTES:
                self._mark(walk)
        return told

    def _refusal(self, step: Step) -> Error | None:
        for _, now, put_back in step.definitions:
            refused = self._interest.refusal(step.position, now)
            if refused is None and put_back:
                assert now is not None
                refused = restored(step.position, now) if self._interest.tells_of(now) else None
            if refused is not None:
                return refused
        return None

    def _hand(self, walk: Walk) -> None:
        self._handed = walk.at
        self._mark(walk)

    def _mark(self, walk: Walk) -> None:
        self._size_bytes = 0
        if not self._marks or self._marks[-1].position < walk.at:
            self._marks.append(_Mark(walk.at, walk.tables))

    async def _leave(self) -> None:
        walk, self._walk = self._walk, None
        if walk is not None:
            await walk.close()

    def _begin_keeping(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self._consumer.keep_on(lambda: self._committed))

    # Telling what is wrong

    @asynccontextmanager
    async def _explaining(self) -> AsyncIterator[None]:
        try:
            yield
        except PositionTruncated as error:
            raise await begin_again(self._checkpoints, self._tablespace, error) from error
        except EngineError as error:
            raise translated(error) from error


async def begin_again(
    checkpoints: CheckpointList, tablespace: str, error: PositionTruncated
) -> Error:
    """What to say to whoever wants changes that are no longer kept."""
    kept = (await checkpoints.get()).kept
    hint = "take a checkpoint, read a snapshot of it, and go on after it"
    if kept:
        first = kept[0]
        hint = (
            f"begin again from a snapshot: read the tables with snapshot={first.number}, which is "
            f"at {shown(first.position)}, then their changes with start={shown(first.position)}"
        )
    return StorageFailed(f"tablespace {tablespace}: {error}", hint=hint)


def parsed(text: str) -> Position:
    """A position as `shown` tells it. Raises `InterfaceError`."""
    ledger, _, entry = text.partition("/")
    try:
        found = Position(int(ledger), int(entry))
    except ValueError:
        raise InterfaceError(
            f"{text!r} is no position in a log: give ledger/entry, such as 12/345"
        ) from None
    if found < START:
        raise InterfaceError(f"{text!r} is before the beginning of any log")
    return found

"""Entries of a ledger or of a log, in spans that are read side by side.

    entries = Entries(place, log="orders")
    start, end = entries.position("earliest"), entries.position("latest")
    for span in entries.spans(start, end):
        for bodies in entries.read(span): ...       # wherever it is read

Everything blocks, and is for processes of a program that is spread by somebody else.

Invariants:
- Nothing past the last add confirmed is planned or read, and no writer is disturbed.
- Spans between two positions have each entry between them once, in order.
- What is gone is an error, never an end: a ledger that was deleted, a log that was cut off.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec

from engine.errors import InvalidRequest, NotFound
from engine.limits import MIB
from engine.log import START, Position, ReplicatedLog, Span
from engine.log.log_list import LogList
from engine.log.log_reader import Batch
from engine.place import HeldClient, Place, held_client
from engine.run import NO_ENTRY

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_SPAN_BYTES: Final = 16 * MIB
_SPAN_ENTRIES: Final = 16_384
"""Of a ledger of which nobody knows yet how long it is."""
_IDLE_S: Final = 0.2
NAMED_MS: Final = 7 * 24 * 3_600_000
UNNAMED_MS: Final = 3_600_000
_RENEWALS: Final = 8
"""How many times a pin is renewed in the time for which it is asked."""


class Entries(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one ledger, or of all ledgers of a log. Picklable."""

    place: Place
    ledger: int | None = None
    log: str = ""

    @property
    def _held(self) -> HeldClient:
        return held_client(self.place)

    @property
    def _log(self) -> ReplicatedLog:
        return ReplicatedLog(self._held.client, self.log)

    def position(self, text: str) -> Position:
        """What `earliest`, `latest`, an entry of the ledger or "ledger/entry" means now.

        Everything after it is to come. Raises `InvalidRequest` for what is no position or past the
        end, `NoSuchLedger`, `Unavailable`.
        """
        if text == EARLIEST:
            return self._held.run(self._beginning)
        end = self._held.run(self._end)
        if text == LATEST:
            return end
        wanted = self._parsed(text)
        if wanted > end:
            raise InvalidRequest(f"{text} is past the last entry that may be read, {shown(end)}")
        return wanted

    def latest(self, start: Position, entries_max: int | None, until: Position | None) -> Position:
        """How far a batch after `start` goes; waits a moment when there is nothing more."""
        return self._held.run(partial(self._latest, start, entries_max, until))

    def spans(self, start: Position, end: Position) -> list[Span]:
        """All entries after one position up to another, cut into what is worth a task.

        Raises `PositionTruncated` for a log that no longer keeps them, `NoSuchLedger`.
        """
        return self._held.run(partial(self._spans, start, end))

    def read(self, span: Span) -> Iterator[Batch]:
        """The entries of a span.

        While iterating raises `PositionTruncated`, `NoSuchLedger`, `CannotRead`, `Unavailable`.
        """
        reading = self._read(span)
        try:
            while (batch := self._held.run(partial(_next, reading))) is not None:
                yield batch
        finally:
            self._held.run(reading.aclose)

    def pin(self, name: str, position: Position, keep_ms: int) -> None:
        """Keep what lies after a position in a log; a ledger is kept by whoever owns it."""
        if self.log:
            self._held.run(partial(self._log.pin, name, position, keep_ms))

    def unpin(self, name: str) -> None:
        """Let a pin go."""
        if self.log:
            self._held.run(partial(self._log.unpin, name))

    # On the loop

    async def _beginning(self) -> Position:
        if self.ledger is not None:
            await self._held.client.ledger_metadata(self.ledger)
            return Position(self.ledger, NO_ENTRY)
        return (await self._log_list()).dropped_through

    async def _end(self) -> Position:
        if self.ledger is None:
            await self._log_list()
            return await self._log.end()
        reader = await self._held.client.open_ledger(self.ledger, recover=False)
        try:
            return Position(self.ledger, await reader.read_last_add_confirmed())
        finally:
            await reader.close()

    async def _latest(
        self, start: Position, entries_max: int | None, until: Position | None
    ) -> Position:
        end = await self._end()
        end = end if until is None else min(end, until)
        if end <= start:
            if until is None:
                await asyncio.sleep(_IDLE_S)
            return start
        if entries_max is None:
            return end
        left = entries_max
        for span in await self._whole(start, end):
            if span.entries >= left:
                return Position(span.ledger, span.first + left - 1)
            left -= span.entries
        return end

    async def _spans(self, start: Position, end: Position) -> list[Span]:
        found = []
        for span in await self._whole(start, end):
            metadata = await self._held.client.ledger_metadata(span.ledger)
            entries = _SPAN_ENTRIES
            if metadata.last_entry is not None and metadata.length:
                entries = max(1, _SPAN_BYTES * (metadata.last_entry + 1) // metadata.length)
            past = span.first + span.entries
            for first in range(span.first, past, entries):
                found.append(Span(span.ledger, first, min(entries, past - first)))
        return found

    async def _whole(self, start: Position, end: Position) -> list[Span]:
        """One span a ledger."""
        if self.ledger is None:
            return await self._log.spans(start, end)
        if end <= start:
            return []
        return [Span(self.ledger, start.entry + 1, end.entry - start.entry)]

    async def _read(self, span: Span) -> AsyncGenerator[Batch, None]:
        if self.ledger is None:
            before = Position(span.ledger, span.first - 1)
            async with aclosing(self._log.read(before, span.last)) as batches:
                async for batch in batches:
                    yield batch
            return
        reader = await self._held.client.open_ledger(span.ledger, recover=False)
        try:
            last = span.last.entry
            if reader.last_add_confirmed < last:
                await reader.read_last_add_confirmed(last)
            async with aclosing(reader.read_batches(span.first, last)) as found:
                async for entries in found:
                    told = Span(span.ledger, entries[0].entry_id, len(entries))
                    yield Batch(told, [entry.body for entry in entries])
        finally:
            await reader.close()

    async def _log_list(self) -> LogList:
        found = await self._log.list()
        if not found.epoch:
            raise NotFound(f"there is no log {self.log}")
        return found

    def _parsed(self, text: str) -> Position:
        ledger, slash, entry = text.rpartition("/")
        try:
            number = self.ledger if not slash and self.ledger is not None else int(ledger)
            found = Position(number, int(entry))
        except ValueError:
            said = "give earliest, latest, or the entry as ledger/entry, such as 12/345"
            raise InvalidRequest(f"{text!r} is no position: {said}") from None
        if found < START or (self.ledger is not None and found.ledger != self.ledger):
            raise InvalidRequest(f"{text} is no position of ledger {self.ledger}")
        return found


class Follower:
    """The one process of a stream that says how far it goes, and keeps what it needs of a log.

    With a name as `consumer` that is kept for `NAMED_MS` after it was last there, else until
    `close`, or for `UNNAMED_MS` after it died.
    """

    def __init__(self, entries: Entries, consumer: str = "") -> None:
        self._entries = entries
        self._named = bool(consumer)
        rng = held_client(entries.place).client.rng
        self._pin = f"entries:{consumer or format(rng.getrandbits(128), '032x')}"
        self._keep_ms = NAMED_MS if consumer else UNNAMED_MS
        self._kept: Position | None = None
        self._due_s = 0.0
        self._until: Position | None = None

    def stop_at_end(self) -> None:
        """Let nothing be told that is not there yet."""
        self._until = self._entries.position(LATEST)

    def latest(self, start: Position, entries_max: int | None) -> Position:
        """How far the batch after `start` goes. Raises as `Entries.position`."""
        self._keep(start if self._kept is None else self._kept)
        return self._entries.latest(start, entries_max, self._until)

    def commit(self, end: Position) -> None:
        """Everything up to a position has been dealt with: it need not be kept any more."""
        self._keep(end)

    def close(self) -> None:
        """End; what a consumer with a name needs to go on is kept."""
        if not self._named:
            self._entries.unpin(self._pin)

    def _keep(self, position: Position) -> None:
        now_s = held_client(self._entries.place).client.clock.monotonic()
        if now_s < self._due_s and self._kept is not None and self._kept.ledger == position.ledger:
            # A log is dropped ledger by ledger.
            return
        self._entries.pin(self._pin, position, self._keep_ms)
        self._kept, self._due_s = position, now_s + self._keep_ms / 1000 / _RENEWALS


def shown(position: Position) -> str:
    """A position as it is said: "ledger/entry"."""
    return f"{position.ledger}/{position.entry}"


async def _next(reading: AsyncGenerator[Batch, None]) -> Batch | None:
    return await anext(reading, None)

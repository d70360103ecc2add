"""Reading a log across its ledgers: a range, its end, and its tail for ever.

Invariants:
- Entries come in the order of their positions, each once, none left out, none unconfirmed.
- A ledger is left only at its end: it is closed, and all of it was handed out.
- The entry number begins anew in each ledger: positions carry the ledger, never only a number.
- A list that is a little old only delays; what is gone is told from what cannot be read.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

from engine.errors import (
    AccessRefused,
    CannotRead,
    EntryPastEnd,
    InvalidRequest,
    NoSuchEntry,
    NoSuchLedger,
    Unavailable,
)
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.log.log_list import Listed, LogList, LogLists
from engine.log.position import Position, Span
from engine.log.settings import LogSettings
from engine.log.truncation import check_kept
from engine.run import NO_ENTRY, Entry

_LOOKS_MAX: Final = 16


class Batch(NamedTuple):
    """Consecutive entries of the log, as they came."""

    span: Span
    bodies: list[bytes]


class LogReader:
    """Reads one log. Holds nothing between calls; any number of reads may be under way."""

    def __init__(self, client: LedgerClient, lists: LogLists, settings: LogSettings) -> None:
        self._client = client
        self._lists = lists
        self._settings = settings

    async def end(self) -> Position:
        """The newest position that is confirmed; see `ReplicatedLog.end`."""
        for _ in range(_LOOKS_MAX):
            current = (await self._lists.read_fresh()).list
            if not current.listed:
                return current.dropped_through
            ledger = current.listed[-1].ledger
            try:
                last = await self._last_confirmed(ledger)
            except NoSuchLedger:
                continue
            return current.last_before if last == NO_ENTRY else Position(ledger, last)
        raise CannotRead(f"log {self._lists.name}: its last ledger is gone")

    async def read(self, after: Position, last: Position) -> AsyncGenerator[Batch, None]:
        """Every entry after `after` up to `last`; see `ReplicatedLog.read`."""
        for span in await self.spans(after, last):
            async with aclosing(self._ledger(span.ledger, span.first, span.last.entry)) as batches:
                async for batch in batches:
                    yield batch

    async def spans(self, after: Position, last: Position) -> list[Span]:
        """Where the entries after `after` up to `last` lie; see `ReplicatedLog.spans`."""
        if last <= after:
            return []
        current = (await self._lists.read()).list
        if not current.listed or current.listed[-1].ledger <= last.ledger:
            current = (await self._lists.read_fresh()).list
        check_kept(current, after)
        if not current.listed or current.listed[-1].ledger < last.ledger:
            raise EntryPastEnd(f"log {self._lists.name}: {tuple(last)} is past its end")
        spans = []
        for listed in current.listed:
            wanted = _range_of(listed, after, last)
            if wanted is not None:
                first, end = wanted
                spans.append(Span(listed.ledger, first, end - first + 1))
        return spans

    async def tail(self, after: Position) -> AsyncGenerator[Batch, None]:
        """Every entry after `after`, for ever; see `ReplicatedLog.tail`."""
        tail = _Tail(self, after)
        unwatch = self._lists.watch(tail.changed.set)
        try:
            while not self._client.closed.is_set():
                async with aclosing(tail.step()) as batches:
                    async for batch in batches:
                        yield batch
        finally:
            unwatch()
        raise InvalidRequest(f"log {self._lists.name}: its client was closed: open it again")

    async def following(self, at: Position, ended: int) -> Listed | None:
        """The ledger with the next entries after `at`; None: not listed yet.

        `ended` is a ledger that is closed and read to its end.
        Raises `PositionTruncated`, `MetadataUnavailable`.
        """
        current = (await self._lists.read()).list
        check_kept(current, at)
        for listed in current.listed:
            first = _first_in(listed.ledger, at)
            if first is None or listed.ledger <= ended:
                continue
            if listed.last_entry is None or listed.last_entry >= first:
                return listed
        return None

    async def check_there(self, at: Position) -> LogList:
        """A fresh list that still keeps all after `at`. Raises `PositionTruncated`."""
        current = (await self._lists.read_fresh()).list
        check_kept(current, at)
        return current

    async def open(self, ledger: int) -> LedgerReader:
        """A reader of one ledger, which leaves its writer alone."""
        return await self._client.open_ledger(ledger, recover=False)

    @property
    def settings(self) -> LogSettings:
        """How the log behaves."""
        return self._settings

    def monotonic(self) -> float:
        """The client's clock."""
        return self._client.clock.monotonic()

    async def _last_confirmed(self, ledger: int) -> int:
        reader = await self.open(ledger)
        try:
            # A reader may be opened though too few bookies told how far it may be read.
            return await reader.read_last_add_confirmed()
        finally:
            await reader.close()

    async def _ledger(self, ledger: int, first: int, last: int) -> AsyncGenerator[Batch, None]:
        """Entries `first` to `last` of one ledger."""
        at = Position(ledger, first - 1)
        try:
            reader = await self.open(ledger)
            try:
                if reader.last_add_confirmed < last:
                    await reader.read_last_add_confirmed(last)
                async with aclosing(reader.read_batches(first, last)) as batches:
                    async for entries in batches:
                        batch = _batch(ledger, at, entries)
                        yield batch
                        at = batch.span.last
            finally:
                await reader.close()
        except (NoSuchLedger, NoSuchEntry, CannotRead) as error:
            await self.check_there(at)
            raise CannotRead(f"log {self._lists.name}: after {tuple(at)}: {error}") from error


class _Tail:
    """One tail: where it is, and what it knows to be finished."""

    def __init__(self, reader: LogReader, after: Position) -> None:
        self.changed = asyncio.Event()
        self._reader = reader
        self._at = after
        self._ended = 0
        self._troubled_s: float | None = None
        self._pause_s = reader.settings.retry_pause_ms / 1000

    async def step(self) -> AsyncGenerator[Batch, None]:
        """What the next ledger has, until it ends; or wait until there may be one."""
        ledger = self._at.ledger
        try:
            self.changed.clear()
            listed = await self._reader.following(self._at, self._ended)
            if listed is None:
                await self._wait()
                return
            ledger = listed.ledger
            async with aclosing(self._follow(ledger)) as batches:
                async for batch in batches:
                    yield batch
        except AccessRefused:
            raise
        except Unavailable:
            await self._rest()
        except (NoSuchLedger, NoSuchEntry, CannotRead) as error:
            await self._explain(ledger, error)

    async def _follow(self, ledger: int) -> AsyncGenerator[Batch, None]:
        first = _first_in(ledger, self._at)
        assert first is not None
        at = Position(ledger, first - 1)
        reader = await self._reader.open(ledger)
        try:
            async with aclosing(reader.tail_batches(first)) as tail:
                async for entries in tail:
                    batch = _batch(ledger, at, entries)
                    self._at = at = batch.span.last
                    self._troubled_s = None
                    self._pause_s = self._reader.settings.retry_pause_ms / 1000
                    yield batch
        finally:
            await reader.close()
        self._ended = ledger

    async def _explain(self, ledger: int, error: Exception) -> None:
        """Find out whether what could not be read is gone; if not, try again for a while."""
        try:
            current = await self._reader.check_there(self._at)
        except AccessRefused:
            raise
        except Unavailable:
            await self._rest()
            return
        if isinstance(error, NoSuchLedger) and ledger not in current.ledgers:
            return
        now_s = self._reader.monotonic()
        if self._troubled_s is None:
            self._troubled_s = now_s
        if now_s - self._troubled_s > self._reader.settings.read_patience_ms / 1000:
            raise CannotRead(f"after {tuple(self._at)}: {error}") from error
        await self._rest()

    async def _rest(self) -> None:
        await asyncio.sleep(self._pause_s)
        longest_s = self._reader.settings.retry_pause_ms_max / 1000
        self._pause_s = min(2 * self._pause_s, longest_s)

    async def _wait(self) -> None:
        """Wait for a change of the list; look anyway after a while."""
        try:
            async with asyncio.timeout(self._reader.settings.look_interval_ms / 1000):
                await self.changed.wait()
        except TimeoutError:
            return


def _first_in(ledger: int, after: Position) -> int | None:
    """The first entry of a ledger that lies after a position; None: none does."""
    if ledger < after.ledger:
        return None
    return after.entry + 1 if ledger == after.ledger else 0


def _range_of(listed: Listed, after: Position, last: Position) -> tuple[int, int] | None:
    """What of a ledger lies after `after` and not after `last`; None for nothing."""
    first = _first_in(listed.ledger, after)
    if first is None or listed.ledger > last.ledger:
        return None
    end = listed.last_entry
    if listed.ledger == last.ledger:
        if end is not None and end < last.entry:
            raise EntryPastEnd(f"{tuple(last)} is past the end of its ledger, {end}")
        end = last.entry
    assert end is not None, "only the last ledger may be open"
    return None if end < first else (first, end)


def _batch(ledger: int, at: Position, entries: list[Entry]) -> Batch:
    """Entries that follow `at` without a gap."""
    span = Span(ledger, entries[0].entry_id, len(entries))
    assert span.first == at.entry + 1 and at.ledger == ledger, (at, span)
    return Batch(span, [entry.body for entry in entries])

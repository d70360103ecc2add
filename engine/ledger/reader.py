"""The reader of one ledger: entries in order, never past the LAC unless asked.

Invariants:
- `read` and `tail` hand out consecutive ids, each once, none past the LAC.
- A negative answer is final only for metadata that were read after it.
- A closed ledger's `last_add_confirmed` is its last entry and never changes.
- A ledger that is being restored from a backup is not read: its end is not written yet.
- At most one read is ahead of the caller, so a slow caller holds about two reads' bytes.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from engine.errors import (
    CannotRead,
    DeadlineExceeded,
    EntryPastEnd,
    InvalidRequest,
    NoSuchEntry,
)
from engine.ledger.context import LedgerContext
from engine.ledger.following import LacFollower
from engine.ledger.reading import ReplicaReader
from engine.limits import ENTRY_ID_MAX
from engine.metadata.ledgers import Held, LedgerMetadata, check_not_restoring
from engine.run import NO_ENTRY, Entry


class LedgerReader:
    """Reads one ledger. Made by `LedgerClient.open_ledger`; any number may be open."""

    def __init__(self, context: LedgerContext, held: Held) -> None:
        check_not_restoring(held.metadata)
        self.ledger_id = held.metadata.ledger_id
        self._context = context
        self._follower = LacFollower(context, held)
        self._replicas = ReplicaReader(context, self.ledger_id)

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata this reader has seen: quorums, fragments, custom metadata."""
        return self._follower.metadata

    @property
    def closed(self) -> bool:
        """Whether the ledger's end is fixed."""
        return self.metadata.closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be readable, NO_ENTRY (-1) if none. Never goes back."""
        return self._follower.lac

    @property
    def length(self) -> int | None:
        """The bytes of all entries of a closed ledger; None while it is open."""
        return self.metadata.length

    async def read_last_add_confirmed(self, at_least: int = NO_ENTRY) -> int:
        """Ask the bookies how far the ledger may be read now. Raises `Unavailable`.

        One bookie may know more than those that answer first. If it is known that `at_least` was
        confirmed, this waits for that bookie, at most as long as a read may take.
        """
        return await self._follower.read_now(at_least)

    def read(self, first: int, last: int) -> AsyncIterator[Entry]:
        """Entries `first` to `last`, both included, in order. `last` = `first` - 1 gives none.

        Raises `EntryPastEnd` at once; while iterating `CannotRead`, `DeadlineExceeded`.
        """
        return _entries(self.read_batches(first, last))

    def read_batches(self, first: int, last: int) -> AsyncGenerator[list[Entry], None]:
        """The same entries as `read`, in lists as they come: the quick way for many."""
        if first < 0 or last < first - 1:
            raise InvalidRequest(f"entries {first} to {last} are no range")
        if last > self.last_add_confirmed:
            raise EntryPastEnd(
                f"ledger {self.ledger_id}: entry {last} is past the last one that may be read, "
                f"{self.last_add_confirmed}"
            )
        return self._batches(first, last)

    async def read_some(self, first: int, last: int, max_bytes: int | None = None) -> list[Entry]:
        """With one read: entry `first`, and what follows it up to `last` as far as it reaches.

        For who keeps several reads under way himself. It reaches about `max_bytes` far (None: as
        the client's settings say, at most `ENTRY_BYTES_MAX`). Raises `EntryPastEnd`, `CannotRead`,
        `DeadlineExceeded`.
        """
        if not 0 <= first <= last <= self.last_add_confirmed:
            raise EntryPastEnd(
                f"ledger {self.ledger_id}: entries {first} to {last} may not be read; "
                f"the last one that may is {self.last_add_confirmed}"
            )
        return await self._fetch(first, last, max_bytes)

    async def read_unconfirmed(
        self, first: int, last: int = ENTRY_ID_MAX, *, acknowledged: bool = False
    ) -> AsyncIterator[Entry]:
        """Entries from `first` on, also past the LAC, until one is on no bookie.

        What is past the LAC may never be confirmed and may vanish when the ledger is recovered.
        Who wants all that was `acknowledged` is at the end, too, where some bookies do not answer
        and so many lack an entry that no ack quorum has it.
        """
        if first < 0 or last < first - 1:
            raise InvalidRequest(f"entries {first} to {last} are no range")
        while first <= last:
            try:
                batch = await self._fetch(first, last, acknowledged=acknowledged)
            except NoSuchEntry:
                if first <= self.last_add_confirmed:
                    raise
                return
            for entry in batch:
                yield entry
            first = batch[-1].entry_id + 1

    async def tail(self, from_entry: int = 0) -> AsyncIterator[Entry]:
        """Entries from `from_entry` on as they are confirmed; ends when the ledger is closed.

        Raises `NoSuchLedger` when the ledger is deleted meanwhile, `CannotRead`, `InvalidRequest`
        when the client is closed.
        """
        async with aclosing(self.tail_batches(from_entry)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def tail_batches(self, from_entry: int = 0) -> AsyncGenerator[list[Entry], None]:
        """The same entries as `tail`, in lists as they come: the quick way for many."""
        if from_entry < 0:
            raise InvalidRequest(f"entry {from_entry} does not exist")
        while True:
            lac = self.last_add_confirmed
            if from_entry <= lac:
                async with aclosing(self._batches(from_entry, lac)) as batches:
                    async for batch in batches:
                        yield batch
                from_entry = lac + 1
            elif self.closed:
                return
            else:
                await self._follower.wait_above(from_entry - 1)

    async def close(self) -> None:
        """Stop following. The ledger itself is not touched."""
        await self._follower.close()

    async def __aenter__(self) -> "LedgerReader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fetch(
        self, first: int, last: int, max_bytes: int | None = None, *, acknowledged: bool = False
    ) -> list[Entry]:
        """Fetch by the metadata known, and once more where newer metadata names other bookies.

        A LAC may arrive before the metadata of the fragment it covers: until they are known to be
        fresh, bookies that lack an entry prove nothing; nor do they of one confirmed since.
        """
        tried, confirmed = self.metadata.fragment_of(first), first <= self.last_add_confirmed
        negatives = self._context.quorums(self.metadata).negatives if acknowledged else None
        try:
            return await self._replicas.fetch(self.metadata, first, last, max_bytes, negatives)
        except (NoSuchEntry, CannotRead, DeadlineExceeded):
            await self._follower.refresh()
            since = first <= self.last_add_confirmed and not confirmed
            if self.metadata.fragment_of(first) == tried and not since:
                raise
        return await self._fetch(first, last, max_bytes, acknowledged=acknowledged)

    def _fetch_ahead(self, first: int, last: int) -> asyncio.Future[list[Entry]]:
        ahead = asyncio.ensure_future(self._fetch(first, last))
        # Who asks for no more never hears what became of it, and need not.
        ahead.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return ahead

    async def _batches(self, first: int, last: int) -> AsyncGenerator[list[Entry], None]:
        """Fetch one batch ahead of the caller."""
        if first > last:
            return
        ahead = self._fetch_ahead(first, last)
        try:
            while True:
                batch = await ahead
                first = batch[-1].entry_id + 1
                if first > last:
                    yield batch
                    return
                ahead = self._fetch_ahead(first, last)
                yield batch
        finally:
            if not ahead.done():
                ahead.cancel()


async def _entries(batches: AsyncIterator[list[Entry]]) -> AsyncIterator[Entry]:
    async for batch in batches:
        for entry in batch:
            yield entry

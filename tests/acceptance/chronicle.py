"""What a writer was promised, and a reader saw, while a cluster's machines fail.

Invariants:
- An entry's bytes follow from its ledger and id, so every reader can tell what they have to be.
- Only what was acknowledged is promised; an append of unknown outcome is not.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from engine.connecting import Connection
from engine.errors import EngineError, OutcomeUnknown, Unavailable
from engine.ledger.writer import LedgerWriter
from engine.run import Entry

LEDGER_ENTRIES: Final = 500
BATCH_ENTRIES: Final = 10
_PAUSE_S: Final = 0.05


def body_of(ledger_id: int, entry_id: int) -> bytes:
    """What the writer writes."""
    return random.Random(ledger_id << 32 | entry_id).randbytes(20 + entry_id % 200)


class Chronicle:
    """A writer that begins a new ledger every so often, and readers that follow each."""

    def __init__(self, client: Connection) -> None:
        self.acknowledged: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.adds = 0
        self.longest_stall_s = 0.0
        self._client = client
        self._ending = False
        self._readers: list[asyncio.Task[None]] = []

    async def write(self) -> None:
        """Append until `end` is called, whatever happens to the machines."""
        while not self._ending:
            try:
                writer = await self._client.create_ledger()
            except Unavailable:
                await asyncio.sleep(_PAUSE_S)
                continue
            self.acknowledged[writer.ledger_id] = -1
            self._readers.append(asyncio.create_task(self._follow(writer.ledger_id)))
            await self._fill(writer)

    def end(self) -> None:
        """Let the writer come to an end."""
        self._ending = True

    async def readers_end(self) -> None:
        """Wait for the readers, which end with their ledgers. Raises what one of them found."""
        await asyncio.gather(*self._readers)

    async def _fill(self, writer: LedgerWriter) -> None:
        ledger_id = writer.ledger_id
        loop = asyncio.get_running_loop()
        try:
            for first in range(0, LEDGER_ENTRIES, BATCH_ENTRIES):
                ids = range(first, first + BATCH_ENTRIES)
                began_s = loop.time()
                got = await writer.append_many([body_of(ledger_id, number) for number in ids])
                assert got == list(ids), (got, ids)
                self.longest_stall_s = max(self.longest_stall_s, loop.time() - began_s)
                self.acknowledged[ledger_id] = got[-1]
                self.adds += len(got)
                if self._ending:
                    break
        except OutcomeUnknown:
            # Whoever reads it recovers it: this writer is not asked again.
            pass
        await self._close(writer)

    async def _close(self, writer: LedgerWriter) -> None:
        while True:
            try:
                last = await writer.close()
                assert last >= self.acknowledged[writer.ledger_id]
                return
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(_PAUSE_S)

    async def _follow(self, ledger_id: int) -> None:
        following = 0
        while True:
            try:
                reader = await self._client.open_ledger(ledger_id, recover=False)
                async with reader:
                    async for entry in reader.tail(following):
                        check([entry], ledger_id, following)
                        following += 1
                        self.seen[ledger_id] = entry.entry_id
                return
            except EngineError as error:
                # A reader may lose everybody for a while; it goes on where it was.
                if not isinstance(error, Unavailable | OutcomeUnknown) and not _may_pass(error):
                    raise
                await asyncio.sleep(_PAUSE_S)


def check(entries: Sequence[Entry], ledger_id: int, first: int) -> None:
    """That entries are those that were written, from `first` on."""
    for entry_id, entry in enumerate(entries, first):
        assert (entry.ledger_id, entry.entry_id) == (ledger_id, entry_id), (entry, entry_id)
        assert entry.body == body_of(ledger_id, entry_id), f"{ledger_id}:{entry_id} was changed"


def _may_pass(error: EngineError) -> bool:
    from engine.errors import CannotRead, NoSuchEntry

    return isinstance(error, CannotRead | NoSuchEntry)

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

# Big ones stay open for longer than an append or a session may be silent.
LEDGER_ENTRIES: Final = (100, 500, 5_000)
BATCH_ENTRIES: Final = 10
_PAUSE_S: Final = 0.05
_BREATH_S: Final = 0.02


def body_of(ledger_id: int, entry_id: int) -> bytes:
    """What the writer writes."""
    return random.Random(ledger_id << 32 | entry_id).randbytes(20 + entry_id % 200)


class Chronicle:
    """A writer that begins a new ledger every so often, and readers that follow each."""

    def __init__(self, client: Connection) -> None:
        self.acknowledged: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.adds = 0
        self.beside = "nothing"
        """What happens to the machines now."""
        self.stalls_s: dict[str, float] = {}
        """The longest stall beside each of them."""
        self.ensemble_changes = 0
        self.writer: LedgerWriter | None = None
        self._client = client
        self._ending = False
        self._readers: list[asyncio.Task[None]] = []
        self._acknowledged_s = 0.0

    async def write(self) -> None:
        """Append until `end` is called, whatever happens to the machines."""
        self._acknowledged_s = asyncio.get_running_loop().time()
        while not self._ending:
            try:
                writer = await self._client.create_ledger()
            except Unavailable:
                await asyncio.sleep(_PAUSE_S)
                continue
            self.acknowledged[writer.ledger_id] = -1
            self._readers.append(asyncio.create_task(self._follow(writer.ledger_id)))
            self.writer = writer
            await self._fill(writer, LEDGER_ENTRIES[len(self.acknowledged) % len(LEDGER_ENTRIES)])
            self.ensemble_changes += len(writer.metadata.fragments) - 1

    def ensemble(self) -> tuple[str, ...]:
        """The bookies that the writer writes to now."""
        return () if self.writer is None else self.writer.metadata.fragments[-1].ensemble

    def end(self) -> None:
        """Let the writer come to an end."""
        self._ending = True

    async def readers_end(self) -> None:
        """Wait for the readers, which end with their ledgers. Raises what one of them found."""
        await asyncio.gather(*self._readers)

    async def _fill(self, writer: LedgerWriter, entries: int) -> None:
        ledger_id = writer.ledger_id
        try:
            for first in range(0, entries, BATCH_ENTRIES):
                ids = range(first, first + BATCH_ENTRIES)
                got = await writer.append_many([body_of(ledger_id, number) for number in ids])
                assert got == list(ids), (got, ids)
                self.acknowledged[ledger_id] = got[-1]
                self._count(len(got))
                if self._ending:
                    break
                await asyncio.sleep(_BREATH_S)
        except OutcomeUnknown:
            # Whoever reads it recovers it: this writer is not asked again.
            pass
        await self._close(writer)

    def _count(self, adds: int) -> None:
        """A stall is from one acknowledgement to the next, whatever lies between them."""
        now_s = asyncio.get_running_loop().time()
        stall_s = now_s - self._acknowledged_s
        self.stalls_s[self.beside] = max(self.stalls_s.get(self.beside, 0.0), stall_s)
        self._acknowledged_s = now_s
        self.adds += adds

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

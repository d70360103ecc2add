"""Emptying a bookie that is to go, and telling what still keeps it.

Invariants:
- From the first moment on no new ledger is placed on the bookie, and writers leave it.
- It is empty only when no ledger's metadata name it, open and empty ledgers included, as a survey
  after the last change has seen.
- A ledger whose metadata cannot be read may name it: while there is one, it is not empty.
- It may be running, which is quicker, or gone: its own copies are only one source among others.
"""

import asyncio
from collections.abc import Callable

import msgspec

from engine.errors import EngineError, InvalidRequest, KeyExists
from engine.metadata.bookies import DECOMMISSIONS
from engine.metadata.ledgers import LedgerMetadata
from engine.metadata.repairs import RepairItem
from engine.repair.outlook import Workshop
from engine.repair.survey import ask_for, read_many, survey

_NAMED_MAX = 100


class Blocking(msgspec.Struct, frozen=True):
    """A ledger that still names the bookie, and why."""

    ledger_id: int
    why: str


class DecommissionProgress(msgspec.Struct, frozen=True):
    """How far it is. `blocking` names at most the first hundred of the ledgers that are `left`.

    `trouble` says why the newest look failed, "" if it did not; the rest is then of an earlier one.
    """

    bookie_id: str
    total: int
    left: int
    blocking: tuple[Blocking, ...]
    trouble: str = ""


class Decommission:
    """The emptying of one bookie, watched from one program. Another may go on with it."""

    def __init__(self, workshop: Workshop, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self._workshop = workshop
        self._left: list[int] = []
        self._total = 0

    async def begin(self, reason: str = "") -> None:
        """Let the bookie be left. Twice is harmless.

        Raises `InvalidRequest` for a bookie that never was, `MetadataUnavailable`.
        """
        if self.bookie_id not in await self._workshop.bookies.known():
            raise InvalidRequest(f"there never was a bookie {self.bookie_id}")
        try:
            await self._workshop.store.create(self._key, (reason or "by hand").encode())
        except KeyExists:
            return

    async def cancel(self) -> None:
        """Let the bookie stay, with what it holds now. Raises `MetadataUnavailable`."""
        await self._workshop.store.delete(self._key)

    async def run(
        self, progress: Callable[[DecommissionProgress], None] | None = None
    ) -> DecommissionProgress:
        """Begin, and return when no ledger names the bookie any more; it may be stopped then.

        It stays out of new ledgers until `cancel`. Losing the metadata store for a while ends
        nothing: `progress` is told of it. Raises `InvalidRequest`.
        """
        begun = False
        newest = DecommissionProgress(self.bookie_id, 0, 0, ())
        while True:
            try:
                if not begun:
                    await self.begin()
                    begun = True
                newest = await self.look()
                if progress is not None:
                    progress(newest)
                if not newest.left:
                    return newest
            except InvalidRequest:
                raise
            except EngineError as error:
                if progress is not None:
                    trouble = f"{type(error).__name__}: {error}"
                    progress(msgspec.structs.replace(newest, trouble=trouble))
            await asyncio.sleep(self._workshop.settings.look_interval_ms / 5000)

    async def look(self) -> DecommissionProgress:
        """Ask for every ledger that names the bookie, and tell which do.

        Between two surveys only those that were left are looked at. Raises `MetadataUnavailable`.
        """
        unreadable: dict[int, str] = {}
        naming = [
            metadata
            for metadata in await read_many(self._workshop, self._left, unreadable)
            if self.bookie_id in metadata.bookies()
        ]
        if not naming:
            async for metadata in survey(self._workshop):
                if self.bookie_id in metadata.bookies():
                    naming.append(metadata)
            unreadable = self._workshop.unreadable
            self._total = max(self._total, len(naming) + len(unreadable))
        self._left = [metadata.ledger_id for metadata in naming]
        wanted = RepairItem(leaving=(self.bookie_id,))
        for metadata in naming:
            await ask_for(self._workshop, metadata.ledger_id, wanted)
        off = await self._workshop.queue.disabled() if naming else None
        blocking = [await self._blocking(metadata, off) for metadata in naming[:_NAMED_MAX]]
        blocking += [
            Blocking(ledger_id, f"it may name the bookie: {why}")
            for ledger_id, why in sorted(unreadable.items())
        ]
        left = len(naming) + len(unreadable)
        return DecommissionProgress(self.bookie_id, self._total, left, tuple(blocking[:_NAMED_MAX]))

    @property
    def _key(self) -> str:
        return f"{DECOMMISSIONS}/{self.bookie_id}"

    async def _blocking(self, metadata: LedgerMetadata, off: str | None) -> Blocking:
        if off is not None:
            return Blocking(metadata.ledger_id, f"repair is off ({off})")
        held = await self._workshop.queue.read(metadata.ledger_id)
        why = "waits for its turn" if held is None or not held.item.blocked else held.item.blocked
        return Blocking(metadata.ledger_id, why)

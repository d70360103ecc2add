"""Finds the ledgers of an owner, as their metadata names it.

Many sweeps of one process look for the ledgers of one owner each: of a log, of a tablespace's
checkpoints, of the object store. They share what was read, so each ledger is read once for all.

Invariants:
- A ledger never changes its owner and ids are never reused, so what was read stays true.
- An answer is from a listing that began after the call. Calls at the same time share one.
- A ledger whose metadata cannot be read belongs to nobody, and is read again the next time.
"""

import asyncio
from typing import Final

from engine.errors import CannotRead, FormatTooNew, NoSuchLedger
from engine.metadata.ledgers import Ledgers
from engine.metadata.lost_logs import OWNER

_READ_AT_ONCE: Final = 16


class Owners:
    """The owners of all ledgers, as far as this process has read them. About 100 bytes a ledger."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._owned: dict[bytes, set[int]] = {}
        self._begun = self._done = 0
        """The number of the newest look, and of the newest that was finished."""
        self._looking = asyncio.Lock()

    async def ledgers_of(self, *owners: bytes) -> list[int]:
        """The ids of the ledgers of some owners, ascending. Raises `MetadataUnavailable`."""
        wanted = self._begun + 1
        async with self._looking:
            if self._done < wanted:
                self._begun += 1
                await self._look()
                self._done = self._begun
        return sorted(set[int]().union(*(self._owned.get(owner, ()) for owner in owners)))

    async def _look(self) -> None:
        ids = set(await self._ledgers.ids())
        for owned in self._owned.values():
            owned &= ids
            ids -= owned
        self._owned = {owner: owned for owner, owned in self._owned.items() if owned}
        unknown = sorted(ids)
        for start in range(0, len(unknown), _READ_AT_ONCE):
            chunk = unknown[start : start + _READ_AT_ONCE]
            for ledger_id, owner in zip(
                chunk, await asyncio.gather(*map(self._owner, chunk)), strict=True
            ):
                if owner is not None:
                    self._owned.setdefault(owner, set()).add(ledger_id)

    async def _owner(self, ledger_id: int) -> bytes | None:
        """What a ledger says; None if it cannot be read."""
        try:
            return (await self._ledgers.read(ledger_id)).metadata.custom.get(OWNER, b"")
        except (NoSuchLedger, CannotRead, FormatTooNew):
            return None

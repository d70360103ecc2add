"""Bookies that found more garbage than they forget unasked, and what an operator said to it.

Invariants:
- `/garbage/<bookie id>` is there while a bookie asks. The bookie writes the question and takes it
  away, an operator writes only how many ledgers may go; each by compare-and-set.
- A confirmation is for what was asked: there is none before the question, and it goes with it.
- A question that cannot be read is an empty one, which the bookie's next round puts right.
"""

from typing import Final, NamedTuple

import msgspec

from engine.errors import InvalidRequest, MetadataConflict
from engine.metadata.contract import MetadataStore

GARBAGE: Final = "/garbage"


class GarbageAsk(msgspec.Struct, frozen=True):
    """A bookie's question: may `doomed` of the `held` ledgers be forgotten?

    `confirmed` is how many may, as an operator said; 0: nobody said anything yet.
    """

    doomed: int
    held: int
    confirmed: int = 0


class HeldAsk(NamedTuple):
    """A question with the store's version of it."""

    ask: GarbageAsk
    version: int


class GarbageAsks:
    """The questions of a cluster's bookies. All methods raise `MetadataUnavailable`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bookie_id: str) -> HeldAsk | None:
        """What a bookie asks; None if it asks nothing."""
        found = await self._store.get(f"{GARBAGE}/{bookie_id}")
        if found is None:
            return None
        try:
            return HeldAsk(msgspec.json.decode(found.value, type=GarbageAsk), found.version)
        except msgspec.MsgspecError:
            return HeldAsk(GarbageAsk(0, 0), found.version)

    async def all(self) -> dict[str, GarbageAsk]:
        """The questions by bookie, in the ids' order."""
        names = await self._store.children(GARBAGE)
        found = {name: await self.read(name) for name in names}
        return {name: held.ask for name, held in found.items() if held is not None}

    async def put(self, bookie_id: str, ask: GarbageAsk, held: HeldAsk | None) -> None:
        """Ask, in place of what was read before; an answer that came meanwhile stays."""
        key, value = f"{GARBAGE}/{bookie_id}", msgspec.json.encode(ask)
        try:
            if held is None:
                await self._store.create(key, value)
            elif held.ask != ask:
                await self._store.set(key, value, held.version)
        except MetadataConflict:
            return

    async def withdraw(self, bookie_id: str, held: HeldAsk) -> None:
        """Ask no more, unless the question was answered since it was read."""
        try:
            await self._store.delete(f"{GARBAGE}/{bookie_id}", held.version)
        except MetadataConflict:
            return

    async def confirm(self, bookie_id: str) -> GarbageAsk:
        """Let a bookie forget as many ledgers as it asked for; returns the question.

        Raises `InvalidRequest` if it asks nothing, `VersionConflict` if it asks anew just now.
        """
        held = await self.read(bookie_id)
        if held is None:
            raise InvalidRequest(f"bookie {bookie_id} asks nothing: there is nothing to confirm")
        said = msgspec.structs.replace(held.ask, confirmed=held.ask.doomed)
        await self._store.set(f"{GARBAGE}/{bookie_id}", msgspec.json.encode(said), held.version)
        return said

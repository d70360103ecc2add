"""When bookies that are away will be given up, as the auditor counts: for people to see.

Invariants:
- Nothing is decided by it: the auditor counts by its own clock, this is what it says of that.
- It is written when somebody goes or comes, or the moment has moved; not at every look.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.errors import KeyExists, VersionConflict
from engine.metadata.contract import MetadataStore

AWAY: Final = "/repair/away"


class Absences:
    """What one auditor has published."""

    def __init__(self, store: MetadataStore, slack_ms: int) -> None:
        self._store = store
        self._slack_ms = slack_ms
        self._published: dict[str, int] | None = None

    def forget(self) -> None:
        """The term has ended: what stands in the store may become another's."""
        self._published = None

    async def publish(self, due_ms: Mapping[str, int]) -> None:
        """Say when, by the wall clock, each bookie that is away is given up.

        Raises `MetadataUnavailable`.
        """
        before = self._published
        if before is not None and before.keys() == due_ms.keys():
            if all(abs(due_ms[name] - before[name]) <= self._slack_ms for name in before):
                return
        value = msgspec.json.encode(dict(sorted(due_ms.items())))
        found = await self._store.get(AWAY)
        try:
            if found is not None:
                await self._store.set(AWAY, value, found.version)
            elif due_ms:
                await self._store.create(AWAY, value)
        except (KeyExists, VersionConflict):
            # Another auditor is at it.
            return
        self._published = dict(due_ms)


async def read_absences(store: MetadataStore) -> dict[str, int]:
    """The bookies that are away, and when they are given up. Raises `MetadataUnavailable`."""
    found = await store.get(AWAY)
    return {} if found is None else msgspec.json.decode(found.value, type=dict[str, int])

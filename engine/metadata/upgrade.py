"""Upgrading the layout of a cluster's keys in ZooKeeper.

A bookie of an earlier version does not find the ledgers that were moved, and deletes their entries
as garbage. So no such program may be running.

Invariants:
- From the first step on, programs of earlier versions cannot any more.
- Nothing is moved before `settle_s` have passed: a bookie that has connected and reads its journal
  registers itself when it has done so.
- Nothing is moved while a bookie or a process of an earlier version is registered. That is checked
  again and again until everything is moved. A process whose record has not changed for several
  leases is gone.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from engine.errors import MetadataUnavailable, Unavailable
from engine.metadata.bookies import Bookies
from engine.metadata.liveness import PROCESSES, decode_record
from engine.metadata.majors import LAYOUT_MAJOR
from engine.metadata.zookeeper import ZooKeeperStore
from engine.ports.clock import Clock

SETTLE_S: Final = 600.0
_LEASES: Final = 3
_TRIES_MAX: Final = 10
_PAUSE_S: Final = 1.0
_NAMED_MAX: Final = 3


class Upgrade:
    """The upgrade of one cluster, by one program. Another may go on with it."""

    def __init__(self, store: ZooKeeperStore, clock: Clock, settle_s: float = SETTLE_S) -> None:
        self._store = store
        self._clock = clock
        self._settle_s = settle_s
        self._records: dict[str, tuple[int, float]] = {}
        """The version of each earlier process's record, and since when it is that one."""
        self._settled = False

    async def run(self, moved: Callable[[int], None] = lambda count: None) -> int:
        """Move the keys of an earlier layout to their places in this one; returns how many.

        The cluster can be used meanwhile. `moved` is told how many have been moved so far. Call it
        again if it was interrupted, and if a program of an earlier version was running after all.

        Raises `Unavailable` while a program of an earlier version is running, `KeyExists` for a key
        that such a program has made a second time, `MetadataUnavailable`.
        """
        before, newly, tries = 0, 0, 0

        def tell(count: int) -> None:
            nonlocal newly, tries
            newly, tries = count, 0
            moved(before + count)

        while True:
            try:
                return before + await self._store.upgrade(self._ready, tell)
            except MetadataUnavailable:
                tries += 1
                if tries == _TRIES_MAX:
                    raise
                before, newly = before + newly, 0
                await asyncio.sleep(_PAUSE_S)

    async def _ready(self) -> None:
        """Return when no program of an earlier version is known any more. Raises `Unavailable`."""
        if not self._settled:
            await self._earlier()
            await asyncio.sleep(self._settle_s)
            self._settled = True
        if earlier := await self._earlier():
            more = f" and {len(earlier) - _NAMED_MAX} more" if len(earlier) > _NAMED_MAX else ""
            raise Unavailable(
                f"{', '.join(earlier[:_NAMED_MAX])}{more} cannot read the new layout, and would "
                "delete what was moved: stop all programs of earlier versions, then try again"
            )

    async def _earlier(self) -> list[str]:
        bookies = await Bookies(self._store).available()
        earlier = [f"bookie {name}" for name, one in bookies.items() if one.layout < LAYOUT_MAJOR]
        now_s = self._clock.monotonic()
        for name in await self._store.children(PROCESSES):
            found = await self._store.get(f"{PROCESSES}/{name}")
            if found is None:
                continue
            record = decode_record(found.value)
            version, since_s = self._records.get(name, (-1, now_s))
            since_s = since_s if version == found.version else now_s
            self._records[name] = (found.version, since_s)
            gone = record.ended or now_s - since_s > _LEASES * record.lease_ms / 1000
            if record.layout < LAYOUT_MAJOR and not gone:
                earlier.append(f"process {name}")
        return sorted(earlier)

"""The tablespaces of a place, kept open by a process: what `engine.place` is for ledgers.

    held = held_herd(Place(url="/data/farm"))
    session = held.run(lambda: held.herd.session("default"))

Invariants:
- They are of nobody else: closing another opener's leaves these open, and the other way round.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.ledger.client import LedgerClient
from engine.place import Held, Holding, Place, open_place
from engine.ports.system_workers import ThreadWorkers

if TYPE_CHECKING:
    from herd.store import AsyncHerd
    from herd.wire.cluster import ClusterHerd


class Tablespaces(NamedTuple):
    """What a place has: its ledgers, and tablespaces that can be asked wherever they are led."""

    ledgers: LedgerClient
    herd: "AsyncHerd | ClusterHerd"


@asynccontextmanager
async def open_tablespaces(place: Place) -> AsyncIterator[Tablespaces]:
    """Ledgers and tablespaces of a place as long as the block lasts.

    Raises as `engine.place.open_place` does, and `herd.errors.OperationalError` for a cluster that
    does not answer.
    """
    async with open_place(place) as ledgers:
        if place.is_cluster:
            # What a cluster needs loads when one is reached.
            from herd.wire.cluster import tablespaces_of

            async with tablespaces_of(ledgers, security=place.make_security(login=True)) as far:
                yield Tablespaces(ledgers, far)
            return
        from herd.store import AsyncHerd

        workers = ThreadWorkers(asyncio.get_running_loop())
        try:
            herd = AsyncHerd(ledgers, Path(place.url), workers)
            try:
                yield Tablespaces(ledgers, herd)
            finally:
                await herd.close()
        finally:
            await workers.close()


class HeldHerd(Held[Tablespaces]):
    """The tablespaces of a place, kept open."""

    @property
    def ledgers(self) -> LedgerClient:
        """Use it on the loop, by `run`."""
        return self.opened.ledgers

    @property
    def herd(self) -> "AsyncHerd | ClusterHerd":
        """Use it on the loop, by `run`."""
        return self.opened.herd


_herds: Final = Holding(lambda place: HeldHerd(open_tablespaces(place)))


def held_herd(place: Place) -> HeldHerd:
    """The tablespaces of a place in this process, open until it ends. Raises as the opening."""
    return _herds.at(place)


def let_go(place: Place) -> None:
    """Close the tablespaces of a place, if they are held. Who needs them next opens them again."""
    _herds.let_go(place)

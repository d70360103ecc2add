"""What happens to the machines: one misfortune at a time, in an order that a seed draws.

Invariants:
- At most one machine is away at a time, and none is wiped while a replica is missing anywhere.
- Each misfortune lasts until the writer has gone on beside it.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from engine.connecting import Connection
from engine.metadata.bookies import Bookies
from herdbook.zookeeper_server import ZooKeeperServer
from tests.acceptance.chronicle import Chronicle
from tests.acceptance.full_disk import SmallDisk
from tests.acceptance.machines import Machine, until

REPAIRED_S: Final = 120.0


@dataclass(frozen=True)
class Misfortunes:
    """How many of each, and how many adds are acknowledged in all."""

    kills: int
    cuts: int
    pauses: int
    fills: int
    wipes: int
    zookeeper_restarts: int
    adds: int


class Nemesis:
    """Does it all, then waits until the cluster is whole again."""

    def __init__(
        self,
        machines: list[Machine],
        small: SmallDisk,
        zookeeper: ZooKeeperServer,
        client: Connection,
        chronicle: Chronicle,
        rng: random.Random,
    ) -> None:
        self.done: list[str] = []
        self._machines = machines
        self._small = small
        self._zookeeper = zookeeper
        self._client = client
        self._chronicle = chronicle
        self._rng = rng
        self._bookies: Bookies = client._bookies

    async def run(self, misfortunes: Misfortunes) -> None:
        """All of them, in the order that chance draws."""
        actions: list[Callable[[], Awaitable[None]]] = [
            *[self._kill] * misfortunes.kills,
            *[self._cut] * misfortunes.cuts,
            *[self._pause] * misfortunes.pauses,
            *[self._fill] * misfortunes.fills,
            *[self._wipe] * misfortunes.wipes,
            *[self._restart_zookeeper] * misfortunes.zookeeper_restarts,
        ]
        self._rng.shuffle(actions)
        each = misfortunes.adds // (2 * len(actions)) + 1
        for action in actions:
            self.done.append(action.__name__.strip("_"))
            await action()
            await self._go_on(each)
        await until(
            f"{misfortunes.adds} acknowledged adds", self._has(misfortunes.adds), REPAIRED_S
        )

    async def everybody_serves(self) -> None:
        """Wait until every machine's bookie is registered and takes appends."""
        await until("all bookies are registered and writable", self._all_serve, REPAIRED_S)

    async def all_is_repaired(self) -> None:
        """Wait until no ledger waits for a replica and none names a bookie that is gone."""
        await until("every ledger is at full replication", self._is_whole, REPAIRED_S)

    # One each

    async def _kill(self) -> None:
        machine = self._rng.choice(self._machines)
        machine.kill()
        await self._go_on(50)
        machine.start()
        await self.everybody_serves()

    async def _cut(self) -> None:
        machine = self._rng.choice(self._machines)
        machine.cut()
        await self._go_on(50)
        machine.heal()
        await self.everybody_serves()

    async def _pause(self) -> None:
        machine = self._rng.choice(self._machines)
        machine.pause()
        await self._go_on(50)
        machine.resume()
        await self.everybody_serves()

    async def _fill(self) -> None:
        self._small.fill()
        await self._go_on(100)
        self._small.make_room()
        await self.everybody_serves()

    async def _wipe(self) -> None:
        await self.all_is_repaired()
        machine = self._rng.choice(
            [one for one in self._machines if one is not self._small.machine]
        )
        machine.kill()
        machine.wipe()
        await self._go_on(50)
        machine.start()
        await self.everybody_serves()

    async def _restart_zookeeper(self) -> None:
        self._zookeeper.stop()
        self._zookeeper.start()
        await self.everybody_serves()

    # What it waits for

    async def _go_on(self, adds: int) -> None:
        goal = self._chronicle.adds + adds
        await until(f"{adds} more adds beside a {self.done[-1]}", self._has(goal), REPAIRED_S)

    def _has(self, adds: int) -> Callable[[], Awaitable[bool]]:
        async def holds() -> bool:
            return self._chronicle.adds >= adds

        return holds

    async def _all_serve(self) -> bool:
        registered = {one.address: one for one in (await self._bookies.available()).values()}
        return all(
            machine.address in registered and registered[machine.address].writable
            for machine in self._machines
        )

    async def _is_whole(self) -> bool:
        there = await self._bookies.available()
        if await self._client.repairs():
            return False
        for ledger_id in await self._client.list_ledgers():
            metadata = await self._client.ledger_metadata(ledger_id)
            if not metadata.bookies() <= there.keys():
                return False
        return True

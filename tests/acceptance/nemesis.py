"""What happens to the machines: one misfortune at a time, in an order that a seed draws.

Invariants:
- At most one machine is away at a time, and none is wiped while a replica is missing anywhere.
- Each misfortune lasts until the writer has gone on beside it; some last for longer than an append
  may be unanswered or a session be silent, and some until the bookie is given up and its replicas
  are made elsewhere.
- Who is cut off, killed or paused is a machine that is being written to.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from engine.connecting import Connection
from engine.errors import KeyExists, MetadataUnavailable, Unavailable
from engine.metadata.bookies import DECOMMISSIONS, LOST, Bookies
from herdbook.zookeeper_server import ZooKeeperServer
from tests.acceptance.chronicle import Chronicle
from tests.acceptance.full_disk import SmallDisk
from tests.acceptance.machines import Machine, until

REPAIRED_S: Final = 120.0
_AWAY_S: Final = (0.1, 6.0)


@dataclass(frozen=True)
class Misfortunes:
    """How many of each, and how many adds are acknowledged in all.

    `lasting` of the cuts and as many of the pauses last until the bookie is given up.
    """

    kills: int
    cuts: int
    pauses: int
    lasting: int
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
        self.expired = 0
        self.given_up = 0
        self.moved = 0
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
            *[self._cut] * (misfortunes.cuts - misfortunes.lasting),
            *[self._long_cut] * misfortunes.lasting,
            *[self._pause] * (misfortunes.pauses - misfortunes.lasting),
            *[self._long_pause] * misfortunes.lasting,
            *[self._fill] * misfortunes.fills,
            *[self._wipe] * misfortunes.wipes,
            *[self._restart_zookeeper] * misfortunes.zookeeper_restarts,
        ]
        self._rng.shuffle(actions)
        each = misfortunes.adds // (2 * len(actions)) + 1
        for action in actions:
            self._chronicle.beside = action.__name__.strip("_")
            self.done.append(self._chronicle.beside)
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
        await self._away(Machine.kill, Machine.start, self._a_while)

    async def _cut(self) -> None:
        await self._away(Machine.cut, Machine.heal, self._a_while)

    async def _long_cut(self) -> None:
        await self._away(Machine.cut, Machine.heal, self._until_replaced)

    async def _pause(self) -> None:
        await self._away(Machine.pause, Machine.resume, self._a_while)

    async def _long_pause(self) -> None:
        await self._away(Machine.pause, Machine.resume, self._until_replaced)

    async def _away(
        self,
        go: Callable[[Machine], None],
        come: Callable[[Machine], None],
        stay: Callable[[str], Awaitable[None]],
    ) -> None:
        machine, bookie_id = await self._victim()
        go(machine)
        await stay(bookie_id)
        await self._go_on(50)
        self.expired += bookie_id not in await self._bookies.available()
        come(machine)
        await self.everybody_serves()

    async def _a_while(self, _bookie_id: str) -> None:
        await asyncio.sleep(self._rng.uniform(*_AWAY_S))

    async def _until_replaced(self, bookie_id: str) -> None:
        """Wait until a bookie is given up, and a replica of it was made elsewhere."""
        held = await self._ledgers_of(bookie_id)

        async def is_given_up() -> bool:
            return bookie_id in await self._client.store.children(LOST)

        async def has_moved() -> bool:
            return bool(held - await self._ledgers_of(bookie_id))

        await until(f"{bookie_id} is given up", is_given_up, REPAIRED_S)
        self.given_up += 1
        await until(f"a replica of {bookie_id} is made elsewhere", has_moved, REPAIRED_S)
        self.moved += 1

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
        # Without that the empty folder could be a disk that is not mounted.
        for bookie_id, place in (await self._bookies.places()).items():
            if place.host == machine.name:
                with suppress(KeyExists):
                    await self._client.store.create(f"{DECOMMISSIONS}/{bookie_id}", b"it is wiped")
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
        try:
            return len(await self._serving()) == len(self._machines)
        except MetadataUnavailable:
            # ZooKeeper may be what is away.
            return False

    async def _serving(self) -> dict[str, Machine]:
        """The machines whose bookies take appends, by the bookies' ids.

        A registration may be left of a bookie that is gone, so each is asked.
        """
        machines = {machine.address: machine for machine in self._machines}
        serving: dict[str, Machine] = {}
        for bookie_id, one in (await self._bookies.available()).items():
            try:
                said = await (await self._client.transport.connect(bookie_id)).info()
            except Unavailable:
                continue
            if said.writable and one.writable and said.boot == one.boot:
                serving[bookie_id] = machines[one.address]
        return serving

    async def _victim(self) -> tuple[Machine, str]:
        """A machine that is being written to, and its bookie."""
        serving = await self._serving()
        ensemble = [name for name in self._chronicle.ensemble() if name in serving]
        bookie_id = self._rng.choice(ensemble or sorted(serving))
        return serving[bookie_id], bookie_id

    async def _ledgers_of(self, bookie_id: str) -> set[int]:
        """Those that name a bookie."""
        named: set[int] = set()
        for ledger_id in await self._client.list_ledgers():
            if bookie_id in (await self._client.ledger_metadata(ledger_id)).bookies():
                named.add(ledger_id)
        return named

    async def _is_whole(self) -> bool:
        there = await self._bookies.available()
        if await self._client.repairs():
            return False
        for ledger_id in await self._client.list_ledgers():
            metadata = await self._client.ledger_metadata(ledger_id)
            if not metadata.bookies() <= there.keys():
                return False
        return True

"""What the world does to the cluster: faults drawn from one generator, and their end.

Invariants:
- Each run draws which kinds of fault it knows, and how often each comes (swarm testing).
- Data is lost for good only within the promise: of the bookies of each fragment, never so many are
  wiped or damaged that they could have acknowledged an entry alone.
- After `stop` nothing is broken that the cluster cannot mend: all nodes run, all links work.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from engine.metadata.ledgers import LEDGERS, decode_metadata
from tests.simulation.disturbances import Disturbed
from tests.simulation.network import Link
from tests.simulation.nodes import BookieNode, ClientNode, World
from tests.simulation.oracles import Oracle, may_lose
from tests.simulation.repair import repairer_name

N = TypeVar("N", BookieNode, ClientNode)

_KINDS: Final = (
    "crash bookie",
    "lose power",
    "lose all power",
    "pause bookie",
    "slow disk",
    "failing disk",
    "unreadable disk",
    "full disk",
    "partition",
    "one-way partition",
    "hold link",
    "take over",
    "take over",
    "kill client",
    "pause client",
    "cut from metadata",
    "expire session",
    "wipe bookie",
    "wipe machine",
    "damage sector",
)


class TakesOver(Protocol):
    """The work that a takeover disturbs."""

    def take_over(self, node: ClientNode, rng: random.Random) -> None:
        """Let a client take over, now, what another one writes."""
        ...


class Nemesis:
    """Does harm at random moments, and mends it a while later."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        oracle: Oracle,
        bookies: Sequence[BookieNode],
        clients: Sequence[ClientNode],
        workload: TakesOver,
    ) -> None:
        self._world = world
        self._rng = rng
        self._oracle = oracle
        self._bookies = bookies
        self._clients = clients
        self._workload = workload
        self.lossy: set[str] = set()
        self._mends: list[Callable[[], None]] = []
        self._stopped = False
        self._pause_s = rng.choice([0.3, 1.0, 3.0])
        self._duration_s = rng.choice([0.3, 2.0, 8.0])
        kinds = [kind for kind in _KINDS if rng.random() < 0.6] or ["lose power"]
        self._kinds = [kind for kind in kinds for _ in range(rng.choice([1, 1, 3]))]

    async def run(self) -> None:
        """Harm until `stop`."""
        names = [node.name for node in self._bookies]
        self._world.disturbances.begin(self._disturbed, self._leader, names)
        while not self._stopped:
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))
            if not self._world.disturbances.resting and not self._stopped:
                self._strike(self._rng.choice(self._kinds))

    def stop(self) -> None:
        """End all harm: everything that can run runs."""
        self._stopped = True
        self._world.disturbances.end()
        mends, self._mends = self._mends, []
        for mend in mends:
            mend()
        world = self._world
        world.network.heal()
        world.metadata_faults.lost_before_share = world.metadata_faults.lost_after_share = 0.0
        for node in self._bookies:
            if node.up and (node.service is None or node.service.failure is not None):
                node.crash(lose_power=False)
            if not node.up:
                node.start()

    def _disturbed(self) -> Sequence[Disturbed]:
        """The machines whose processes may be disturbed."""
        return [*self._clients, *self._bookies]

    def _leader(self) -> Disturbed | None:
        """Who leads, in runs where somebody does."""
        return None

    def _strike(self, kind: str) -> None:
        node = self._rng.choice(self._bookies)
        client = self._rng.choice(self._clients)
        either: BookieNode | ClientNode = node if self._rng.random() < 0.5 else client
        strikes: dict[str, Callable[[], bool]] = {
            "crash bookie": lambda: self._crash(node, lose_power=False),
            "lose power": lambda: self._crash(node, lose_power=True),
            "lose all power": self._crash_all,
            "pause bookie": lambda: self._pause(node),
            "slow disk": lambda: self._slow(node),
            "failing disk": lambda: self._fail_disk(node),
            "unreadable disk": lambda: self._unreadable(node),
            "full disk": lambda: self._fill(node),
            "partition": lambda: self._partition(one_way=False),
            "one-way partition": lambda: self._partition(one_way=True),
            "hold link": lambda: self._hold(client, node),
            "take over": lambda: self._take_over(client),
            "kill client": lambda: self._kill(client),
            "pause client": lambda: self._pause(client),
            "cut from metadata": lambda: self._cut(either),
            "expire session": lambda: self._expire(either),
            "wipe bookie": lambda: self._wipe([node]),
            "wipe machine": lambda: self._wipe(self._machine(node)),
            "damage sector": lambda: self._damage(node),
        }
        before = self._world.loop.now
        if strikes[kind]():
            self._world.trace.fault(kind, node.name, client.name)
        assert self._world.loop.now == before

    def _mend_later(self, mend: Callable[[], None]) -> None:
        """Run `mend` once: after a while, or when harm stops."""
        done = False

        def once() -> None:
            nonlocal done
            if not done:
                done = True
                mend()

        self._mends.append(once)
        delay_s = self._rng.expovariate(1 / self._duration_s)
        self._world.loop.deliver_at(
            self._world.loop.now + delay_s, self._world.loop.world, self._mend, once
        )

    def _mend(self, once: Callable[[], None]) -> None:
        if not self._stopped:
            self._mends.remove(once)
            once()

    # Bookies

    def _crash(self, node: BookieNode, *, lose_power: bool) -> bool:
        if not node.up:
            return False
        node.crash(lose_power=lose_power)
        self._mend_later(lambda: self._start(node))
        return True

    def _start(self, node: BookieNode) -> None:
        if not node.up:
            node.start()

    def _crash_all(self) -> bool:
        crashed = [self._crash(node, lose_power=True) for node in self._bookies]
        return any(crashed)

    def _pause(self, node: Disturbed) -> bool:
        process = node.process
        if process.paused or not process.alive:
            return False
        self._world.loop.pause(process)
        self._mend_later(lambda: self._world.loop.resume(process))
        return True

    def _slow(self, node: BookieNode) -> bool:
        node.set_slowness(self._rng.choice([5.0, 50.0, 500.0]))
        self._mend_later(lambda: node.set_slowness(1.0))
        return True

    def _fail_disk(self, node: BookieNode) -> bool:
        """One write or sync of journal or index fails; a bookie that stopped is started again."""
        if not node.up:
            return False
        after = self._rng.randrange(4)
        if self._rng.random() < 0.5:
            node.disk.fail_after = after
        else:
            node.indexes.fail(after)

        def restart() -> None:
            node.disk.fail_after = None
            if node.up:
                node.crash(lose_power=self._rng.random() < 0.5)
                node.start()

        self._mend_later(restart)
        return True

    def _unreadable(self, node: BookieNode) -> bool:
        if node.service is None:
            return False
        node.disk.reads_fail = True
        self._mend_later(lambda: self._readable(node))
        return True

    def _readable(self, node: BookieNode) -> None:
        node.disk.reads_fail = False

    def _fill(self, node: BookieNode) -> bool:
        disk = node.disk
        total_bytes = disk.total_bytes
        used_bytes = total_bytes - disk.room_bytes()
        disk.total_bytes = used_bytes + self._rng.randrange(2_000)

        def mend() -> None:
            disk.total_bytes = max(disk.total_bytes, 1 << 30)

        self._mend_later(mend)
        return True

    def _wipe(self, nodes: Sequence[BookieNode]) -> bool:
        if not self._may_lose(nodes):
            return False
        for node in nodes:
            if node.up:
                node.crash(lose_power=True)
            node.wipe()
            self._mend_later(partial(self._start, node))
        return True

    def _machine(self, node: BookieNode) -> Sequence[BookieNode]:
        """All bookies of a bookie's machine; only itself if its machine is not known."""
        host = node.settings.host
        return [each for each in self._bookies if host and each.settings.host == host] or [node]

    def _damage(self, node: BookieNode) -> bool:
        if not self._may_lose([node]):
            return False
        damage = node.disk.damage(self._rng.choice(["", "journal"]))
        if damage is None:
            return False
        node.damaged = True
        self._world.trace.event("damaged", node.name, *damage)
        return True

    def _may_lose(self, nodes: Sequence[BookieNode]) -> bool:
        """Whether the promise still covers losing these nodes' newest bookies; if so, note it."""
        lossy = set(self.lossy)
        for node in nodes:
            newest = node.newest_bookie
            if not node.bookie_ids or newest is None:
                return False
            lossy |= {node.bookie_ids[-1], newest}
        for ledger in self._oracle.ledgers.values():
            metadata = ledger.metadata
            if metadata is None or ledger.deleted:
                continue
            if not may_lose(metadata, lossy):
                return False
        # A ledger may belong to a log although its creator never learned that it was created.
        tree = self._world.tree.tree
        for name in tree.children(LEDGERS):
            found = tree.get(f"{LEDGERS}/{name}")
            if found is not None and name.isdigit():
                if not may_lose(decode_metadata(found.value), lossy):
                    return False
        self.lossy = lossy
        return True

    # Links

    def _partition(self, *, one_way: bool) -> bool:
        """Some clients and some bookies do not hear each other, or only in one direction."""
        clients = self._some(self._clients)
        nodes = self._some(self._bookies)
        inward = self._rng.random() < 0.5
        names = [client.name for client in clients]
        if nodes[0].repair is not None:
            names += [repairer_name(other.name) for other in self._some(self._bookies)]
        links = [self._world.network.link_to(name, node.name) for name in names for node in nodes]
        for link in links:
            link.blocked_out = link.blocked_out or not (one_way and inward)
            link.blocked_in = link.blocked_in or not (one_way and not inward)
        self._mend_later(lambda: self._unblock(links))
        return True

    def _some(self, nodes: Sequence[N]) -> list[N]:
        return self._rng.sample(list(nodes), self._rng.randint(1, len(nodes)))

    def _unblock(self, links: list[Link]) -> None:
        for link in links:
            link.blocked_out = link.blocked_in = False

    def _hold(self, client: ClientNode, node: BookieNode) -> bool:
        """Messages of a link wait, and then all arrive."""
        link = self._world.network.link_to(client.name, node.name)
        link.holding = True
        self._mend_later(lambda: self._world.network.release(link))
        return True

    def _take_over(self, client: ClientNode) -> bool:
        """One client's messages wait at some bookies while another takes a ledger over."""
        for node in self._some(self._bookies):
            if self._rng.random() < 0.5:
                self._hold(client, node)
        other = self._rng.choice(self._clients)
        self._workload.take_over(other, self._world.rng("take over"))
        return other is not client

    # Clients and metadata

    def _kill(self, client: ClientNode) -> bool:
        client.kill()
        client.start()
        return True

    def _cut(self, node: BookieNode | ClientNode) -> bool:
        store = node.store
        if store is None:
            return False
        store.reachable = False

        def mend() -> None:
            store.reachable = True

        self._mend_later(mend)
        return True

    def _expire(self, node: BookieNode | ClientNode) -> bool:
        if node.store is None or not node.process.alive:
            return False
        node.store.expire()
        return True

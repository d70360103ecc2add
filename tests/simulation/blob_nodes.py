"""The machines of a store of objects: replicas of tablespaces, and clients that put and collect.

Invariants:
- The store runs unchanged, over a remote herd and ledgers of its own machine.
- When a client's machine is killed, it starts again with empty memory.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from blobit.blobs import AsyncBlobs
from blobit.settings import BlobSettings
from engine.ledger.settings import ClientSettings
from herd.settings import HerdSettings
from herd.wire.calling import Calling
from herd.wire.herd import RemoteHerd
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings
from tests.simulation.blob_wire import SimRoute, service_of
from tests.simulation.disk import SimDisk
from tests.simulation.herd_nodes import HerdNode
from tests.simulation.nodes import ClientNode, World
from tests.simulation.replica_nodes import ReplicaPlan
from tests.simulation.replica_oracle import ReplicaOracle
from tests.simulation.workers import SimWorkers

WIRE: Final = WireSettings(patience_ms=6_000)


class SpaceNode(HerdNode):
    """A machine that runs a replica of a tablespace and serves sessions in it."""

    service: HerdService | None = None

    def __init__(
        self,
        world: World,
        name: str,
        plan: ReplicaPlan,
        oracle: ReplicaOracle,
        settings: HerdSettings,
        space_name: str,
        tablespaces: Sequence[str],
    ) -> None:
        self.space_name = space_name
        self.tablespaces = tablespaces
        """All that there are, on this machine and on others."""
        super().__init__(world, name, plan, oracle, settings, 0.0)

    def start(self) -> None:
        """Power on; guests are served as soon as the replica runs."""
        super().start()
        world = self.world
        disk = SimDisk(world.rng(f"{self.name} queries"))
        workers = SimWorkers(world.loop, self.process, disk, world.rng(f"{self.name} queries"))
        self.service = service_of(self, workers)


class StoreNode(ClientNode):
    """A machine with a store of objects. Its work is given by `work`, again after each restart."""

    def __init__(
        self,
        world: World,
        name: str,
        client_settings: ClientSettings,
        settings: BlobSettings,
        nodes: Mapping[str, Sequence[SpaceNode]],
        work: Callable[["StoreNode"], object],
    ) -> None:
        """`nodes`: the machines of each tablespace."""
        self.blob_settings = settings
        self._nodes = nodes
        self.blobs: AsyncBlobs

        def begin(node: ClientNode) -> object:
            assert isinstance(node, StoreNode)
            node.blobs = node.open()
            return work(node)

        super().__init__(world, name, client_settings, begin)

    def open(self) -> AsyncBlobs:
        """A store with nothing in its memory, in this machine's process."""
        world = self.world
        workers = SimWorkers(
            world.loop, self.process, SimDisk(world.rng("disk")), world.rng(f"{self.name} workers")
        )
        route = SimRoute(world, self.name, self.process, self._nodes)
        calling = Calling(route, self.clock, world.rng(f"{self.name} calls"), workers, WIRE)
        return AsyncBlobs(self.client, self.blob_settings, workers, RemoteHerd(calling))

"""Machines that run a replica of a broker each.

Invariants:
- A node runs the product's broker unchanged, over a state that loses what it had not flushed.
- Its wall clock may jump by hours, and may be set right again; its monotonic one only drifts.
- In some runs the metadata store's server has a clock, which is right, and tells it.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from broker import keys
from broker.connection import Run
from broker.errors import BrokerError, BrokerUnavailable
from broker.service import LOG, Broker
from broker.settings import BrokerSettings
from broker.task import Task, decode_task
from engine.errors import EngineError
from engine.replica.contract import ReadRows
from engine.replica.replica import Replica
from engine.state.stored import StoredState
from tests.simulation.broker_oracle import Given
from tests.simulation.nodes import SimClock, World
from tests.simulation.replica_nodes import DriftingClock, ReplicaNode, ReplicaPlan
from tests.simulation.replica_oracle import ReplicaOracle

__all__ = ["LOG", "BrokerNode"]
T = TypeVar("T")
_SERVED_SHARE = 0.5


class BrokerNode(ReplicaNode):
    """A machine that runs one replica of the broker."""

    runs = "broker"
    errors = BrokerError

    def __init__(
        self,
        world: World,
        name: str,
        plan: ReplicaPlan,
        oracle: ReplicaOracle,
        settings: BrokerSettings,
    ) -> None:
        self.broker_settings = settings
        self.broker: Broker | None = None
        self._served = world.rng("clock of the server").random() < _SERVED_SHARE
        self.mended: list[str] = []
        """Why a leader built its memory anew: nothing here gives it a reason to."""
        super().__init__(world, name, plan, oracle)
        self._right_s = self._wall_s

    def start(self) -> None:
        """See `ReplicaNode`."""
        super().start()
        if self._served:
            store = self.store

            async def server_ms() -> int:
                await store.sync()
                return SimClock(self.world.loop, 0.0).wall_ms()

            # A session that has this is a `ServerClock`.
            store.server_ms = server_ms  # type: ignore[attr-defined]

    async def _open(self, state: StoredState) -> Replica:
        self.broker = await Broker.open(
            self.client,
            state,
            settings=self.broker_settings,
            address=self.name,
            elect=True,
            replica_settings=self.plan.replica,
            log_settings=self.plan.log,
        )
        assert isinstance(self.broker.replica, Replica)
        self._hear_of_mending(self.broker)
        return self.broker.replica

    def _hear_of_mending(self, broker: Broker) -> None:
        distrust = broker._distrust

        def distrusted(why: str) -> None:
            distrust(why)
            if broker._wrong.is_set():
                self.mended.append(why)

        # Terms that begin from now on are given this one.
        broker._distrust = distrusted  # type: ignore[method-assign]

    def crash(self) -> None:
        """The process ends in mid-air; what its state had not flushed goes, in part or whole."""
        self.broker = None
        super().crash()

    async def stop(self) -> None:
        """End in good order, as for an upgrade."""
        broker = self.broker
        assert broker is not None
        self.replica = self.broker = None
        try:
            await broker.close()
        except BrokerError:
            self.world.trace.event("state not closed", self.name)

    def jump(self, seconds: float) -> None:
        """The wall clock is set forward or back, and stays so over restarts."""
        self._wall_s += seconds
        assert isinstance(self.clock, DriftingClock)
        self.clock._wall_s = self._wall_s

    def set_right(self) -> None:
        """The wall clock shows again what it did before it jumped."""
        self.jump(self._right_s - self._wall_s)

    @property
    def serving(self) -> bool:
        """Whether this node leads, and serves."""
        return self.broker is not None and self.broker.serving

    def running(self) -> Broker:
        """The broker. Raises `BrokerUnavailable`."""
        if self.broker is None:
            raise BrokerUnavailable(f"{self.name} is not there yet")
        return self.broker

    def look_at(self, look: Callable[[ReadRows], T]) -> T | None:
        """What is found in this replica's rows; None while it has none to show."""
        if self.replica is None:
            return None
        try:
            return self.replica.stale_read(look)[0]
        except EngineError:
            return None

    def some_rows(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        """The first rows of a kind, as this replica has them."""
        assert self.replica is not None
        end = bytes([kind[0] + 1])
        return self.replica.stale_read(lambda rows: rows.scan(kind, end, 10))[0]


def given_by(nodes: Sequence[BrokerNode], run: Run) -> Given | None:
    """What the rows of some replica say of an attempt that runs."""

    def look(rows: ReadRows) -> Given | None:
        row = rows.get(keys.numbered(keys.ACTIVE, run.id))
        task = decode_task(row) if row is not None else None
        if task is None or task.attempt != run.attempt:
            return None
        return Given(task.resources, task.started_ms)

    for node in nodes:
        given = node.look_at(look)
        if given is not None:
            return given
    return None


def tasks_of(rows: ReadRows, kind: bytes) -> list[Task]:
    """All tasks in rows of a kind."""
    return [decode_task(row) for _, row in rows.scan(kind, bytes([kind[0] + 1]), 1_000_000)]

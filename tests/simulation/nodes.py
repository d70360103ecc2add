"""The machines of the imagined cluster: bookies and clients, each in a process of its own.

Invariants:
- A node runs the product's code unchanged; only what it is given is simulated.
- A crashed node's process never runs again; a restart is a new process over the same disk.
- A node keeps its disk for ever; wiping gives it an empty one, and with it a new bookie id.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from engine.bookie.folder import read_identity
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.errors import EngineError, FolderError, Unavailable
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.metadata.bookies import AVAILABLE
from engine.metadata.memory import MemoryTree
from engine.repair.settings import RepairSettings
from tests.simulation.disk import SimDisk
from tests.simulation.disturbances import OLDER, UNDISTURBED, Disturbances
from tests.simulation.index import SimIndexes
from tests.simulation.loop import Process, SimLoop
from tests.simulation.metadata import MetadataFaults, SimStore
from tests.simulation.network import Network, SimTransport
from tests.simulation.oracles import Violation
from tests.simulation.repair import start_repair
from tests.simulation.trace import Trace
from tests.simulation.workers import SimWorkers

SESSION_S = 2.0
WALL_START_MS = 1_700_000_000_000
WALLS_SHARE = 0.4
"""In so many runs wall clocks differ by as much as the product allows."""
_AHEAD_S_MAX = CLOCK_DIFFERENCE_MS / 2_000 - 0.001
_RESTART_PAUSE_S = 0.5
_TOLD_SHARE = 0.8


class SimClock:
    """Virtual time as one machine reads it.

    `wall_s`: how far its wall clock is ahead; None: as far as its monotonic one.
    """

    def __init__(self, loop: SimLoop, skew_s: float, wall_s: float | None = None) -> None:
        self._loop = loop
        self._skew_s = skew_s
        self._ahead_s = skew_s if wall_s is None else wall_s

    def monotonic(self) -> float:
        return self._loop.now + self._skew_s

    def wall_ms(self) -> int:
        return int((self._loop.now + self._ahead_s) * 1000) + WALL_START_MS


class World:
    """What all nodes of a run share."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        trace: Trace,
        network: Network,
        tree: MemoryTree,
        metadata_faults: MetadataFaults,
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.network = network
        self.tree = tree
        self.metadata_faults = metadata_faults
        self.disturbances = Disturbances(loop, seed, trace, network)
        self.processes: list[Process] = []
        self.unheard: dict[asyncio.Task[object], float] = {}
        """Tasks that failed and whose failure nobody has heard of yet, since when."""
        self._seed = seed
        self._draws = 0
        drawn = random.Random(f"{seed}:wall clocks").random() < WALLS_SHARE
        self.walls_differ = drawn and seed not in OLDER | UNDISTURBED
        """Whether wall clocks of this run's machines differ, by the allowed difference at most."""

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose: what one node draws moves no other one."""
        self._draws += 1
        return random.Random(f"{self._seed} {self._draws} {purpose}")

    def wall_s(self, machine: str) -> float | None:
        """How far a machine's wall clock is ahead, as `SimClock` takes it."""
        if not self.walls_differ:
            return None
        rng = random.Random(f"{self._seed}:wall clock of {machine}")
        between_s = rng.uniform(-_AHEAD_S_MAX, _AHEAD_S_MAX)
        return rng.choice([-_AHEAD_S_MAX, _AHEAD_S_MAX, between_s])

    def process(self, name: str) -> Process:
        """A new process."""
        process = Process(f"{name}#{len(self.processes)}")
        self.processes.append(process)
        return process

    def store(self, process: Process) -> SimStore:
        """A new session with the metadata store."""
        rng = self.rng("store")
        store = SimStore(self.tree, self.loop, process, rng, self.trace, self.metadata_faults)
        self.disturbances.adopt(store, process)
        return store

    def end_session_later(self, store: SimStore) -> None:
        """The store notices, after a while, that a process has died."""
        self.loop.deliver_at(self.loop.now + SESSION_S, self.loop.world, store.expire)


class BookieNode:
    """A machine that runs one bookie."""

    def __init__(
        self,
        world: World,
        name: str,
        settings: BookieSettings,
        repair: RepairSettings | None = None,
    ) -> None:
        self.name = name
        self.world = world
        # Most say where they stand, two on a machine: their replicas come together and part again.
        told = world.rng(f"{name} place").random() < _TOLD_SHARE
        self.settings = (
            replace(settings, host=f"machine-{int(name[-1]) // 2}") if told else settings
        )
        self.repair = repair
        self.process = world.process(name)
        self.service: BookieService | None = None
        self.disk = SimDisk(world.rng(f"{name} disk"))
        self.indexes = SimIndexes(world.rng(f"{name} index"))
        self.slowness = 1.0
        self.damaged = False
        self.up = False
        self.bookie_ids: list[str] = []
        self.store: SimStore | None = None
        self._workers: SimWorkers | None = None

    def start(self) -> None:
        """Power on; the bookie serves a little later."""
        assert not self.up
        self.up = True
        world = self.world
        self.process = world.process(self.name)
        self.disk.restart()
        self.store = world.store(self.process)
        world.loop.spawn(self.process, self._serve(), f"{self.name} start")

    async def _serve(self) -> None:
        """Start the service; try again, as a supervisor does, while the metadata is away."""
        world, store = self.world, self.store
        assert store is not None
        clock = SimClock(world.loop, float(len(world.processes)), world.wall_s(self.name))
        while True:
            self._workers = SimWorkers(
                world.loop, self.process, self.disk, world.rng(f"{self.name} workers")
            )
            self.set_slowness(self.slowness)
            try:
                service = await BookieService.start(
                    disk=self.disk,
                    open_index=self.indexes.open,
                    workers=self._workers,
                    clock=clock,
                    rng=world.rng(f"{self.name} service"),
                    store=store,
                    settings=self.settings,
                )
                break
            except (Unavailable, OSError) as error:
                world.trace.event("start failed", self.name, type(error).__name__)
                await asyncio.sleep(_RESTART_PAUSE_S)
            except FolderError as error:
                if not self.damaged:
                    raise Violation(f"{self.name} does not start: {error!r}") from error
                world.trace.event("start refused", self.name, type(error).__name__)
                return
        self.service = service
        if service.bookie_id not in self.bookie_ids:
            self.bookie_ids.append(service.bookie_id)
        world.network.listen(service.bookie_id, self)
        world.trace.event("serves", self.name, service.bookie_id, service.boot)
        if self.repair is not None:
            await start_repair(self, service, clock, self.repair)

    @property
    def newest_bookie(self) -> str | None:
        """The bookie whose identity is on the disk, even if it never served; None: unknown."""
        try:
            found = read_identity(self.disk)
        except (OSError, EngineError):
            return None
        return found.bookie_id if found is not None else None

    @property
    def registered(self) -> bool:
        """Whether its registration is there and rests on its present session, if it serves."""
        if self.service is None or self.service.failure is not None or self.store is None:
            return True
        owner = self.world.tree.tree.owner(f"{AVAILABLE}/{self.service.bookie_id}")
        return owner is not None and owner == self.store.session_number

    def crash(self, *, lose_power: bool) -> None:
        """The process ends at once; with `lose_power` unsynced data goes too, in part or whole."""
        assert self.up and self.store is not None
        self.up = False
        self.world.loop.kill(self.process)
        self.service = None
        if lose_power:
            if self._workers is not None:
                self._workers.cut_power()
            self.disk.lose_power()
        # The next process has threads of its own, or none yet: these ones end here.
        self._workers = None
        self.indexes.crash()
        self.world.end_session_later(self.store)

    def wipe(self) -> None:
        """All that the machine stored is gone; it comes back as another bookie."""
        assert not self.up
        self.disk = SimDisk(self.world.rng(f"{self.name} disk"))
        self.indexes = SimIndexes(self.world.rng(f"{self.name} index"))
        self.damaged = False

    def set_slowness(self, slowness: float) -> None:
        """How many times longer than usual the disk takes."""
        self.slowness = slowness
        if self._workers is not None:
            self._workers.slowness = slowness


class ClientNode:
    """A machine that runs one client. Its work is given by `work`, again after each restart."""

    def __init__(
        self,
        world: World,
        name: str,
        settings: ClientSettings,
        work: Callable[["ClientNode"], object],
    ) -> None:
        self.name = name
        self.world = world
        self.settings = settings
        self._work = work
        self.start()

    def start(self) -> None:
        """Start a client with nothing in its memory."""
        world = self.world
        self.process = world.process(self.name)
        self.store = world.store(self.process)
        self.clock = SimClock(world.loop, float(len(world.processes)), world.wall_s(self.name))
        self.client = LedgerClient(
            store=self.store,
            transport=SimTransport(world.network, self.name, self.process),
            clock=self.clock,
            rng=world.rng(self.name),
            settings=self.settings,
        )
        self._work(self)

    def kill(self) -> None:
        """The process ends in mid-air."""
        self.world.loop.kill(self.process)
        self.world.end_session_later(self.store)

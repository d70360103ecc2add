"""A node: runs the replicas that the facts give it, and serves who uses their tablespaces.

    node = Node(client, node_id, "10.0.0.1:7100", states, workers)
    node.start()
    session = await node.session("sales")

Invariants:
- A node runs what the facts say that it should, and nothing else: a replica that is somebody
  else's by now is ended and its state removed.
- What it tells of itself is what it does: its key goes with its session, before its replicas.
- A look that fails changes nothing; replicas that run go on without the metadata store.
- Writes are served where the leader is; a follower says where that is.
- A tablespace that no node has used for a while is suspended by its leader, which ends last, so
  that no other replica is elected for nothing. Whoever asks for it has it run again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from engine.errors import CannotRead, EngineError, FormatTooNew
from engine.ledger.client import LedgerClient
from engine.log.settings import LogSettings
from engine.metadata.lost_logs import lost_logs
from engine.metadata.restoring import restoration_under_way
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.workers import Workers
from engine.replica.settings import ReplicaSettings
from herd.errors import DatabaseError, InterfaceError, LeaderUnavailable
from herd.nodes.auditor import SpaceAuditor
from herd.nodes.commands import SpaceCommands
from herd.nodes.directory import Directory
from herd.nodes.facts import ENDING, NodeFact, ReplicaReport, SpaceFact
from herd.nodes.hosting import Hosted
from herd.nodes.outlook import Outlook
from herd.nodes.registration import Registration
from herd.nodes.settings import NodeSettings
from herd.nodes.states import States
from herd.settings import HerdSettings
from herd.table import AsyncTable, open_table
from herd.tablespace import Tablespace
from herd.translating import translating

if TYPE_CHECKING:
    from herd.nodes.following import FollowerSession
    from herd.sql.query import QueryEngine
    from herd.sql.query_pool import QueryPool
    from herd.sql.session import Session

DEFAULT: Final = "default"
_logger = logging.getLogger(__name__)
_RETURN_MEMORY_S: Final = 60.0
"""The minimum time between two returns of free memory; each may take tens of milliseconds."""
_OPENED_AT_ONCE: Final = 8
_OPENING_S: Final = 0.5
"""How long a replica that is being opened keeps its turn."""


class Node:
    """One node of a cluster. Made once, started once, closed once; all on the event loop."""

    def __init__(
        self,
        client: LedgerClient,
        node_id: str,
        address: str,
        states: States,
        workers: Workers | None,
        *,
        host: str = "",
        settings: NodeSettings | None = None,
        herd: HerdSettings | None = None,
        replica: ReplicaSettings | None = None,
        log: LogSettings | None = None,
        metrics: Metrics = NO_METRICS,
        query_pool: "QueryPool | None" = None,
        return_memory: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`address` is where clients reach it, `host` what people call it. Without `workers` it
        takes no checkpoints. `query_pool` runs all queries; without it each replica has threads.
        `return_memory()` is called after replicas have ended."""
        self.node_id = node_id
        self.host = host
        self.address = address
        self.settings = settings or NodeSettings()
        self.client = client
        self.directory = Directory(client.store, client.rng)
        self._woken = asyncio.Event()
        self._listed = asyncio.Event()
        self.outlook = Outlook(
            self.directory, client.clock, node_id, self.settings.refresh_ms, self._woken.set
        )
        drawn = f"{node_id}-{client.rng.getrandbits(64):016x}"
        self.auditor = SpaceAuditor(client, self.directory, self.outlook, self.settings, drawn)
        self.commands = SpaceCommands(client.store, client.clock, client.rng)
        self._states, self._workers = states, workers
        self._herd, self._replica, self._log = herd, replica, log
        self._opening = asyncio.Semaphore(_OPENED_AT_ONCE)
        self._metrics, self._query_pool = metrics, query_pool
        self._return_memory, self._memory_at_s = return_memory, -_RETURN_MEMORY_S
        self._registration = Registration(client.store, node_id)
        self._registration.watch(self._woken.set)
        self._started_ms = client.clock.wall_ms()
        self._hosted: dict[str, Hosted] = {}
        self._suspended, self._seen_changes = dict[str, str](), -1
        """The uuids of suspended tablespaces that have a state here, as of so many changes."""
        self._ending: set[asyncio.Future[None]] = set()
        self._names_ending: dict[str, str] = {}  # by uuid
        self._crowded = self._tidied = self._closed = self._holds_free_memory = False
        self._running: asyncio.Task[None] | None = None
        self._end_gauges = self._watched(metrics)

    def start(self) -> None:
        """Begin. Nothing is waited for: an absent metadata store is tried again."""
        assert self._running is None
        self._running = asyncio.create_task(self._run(), name=f"node {self.node_id}")

    async def listed(self) -> None:
        """Wait until the node is registered for the first time and `default` exists."""
        await self._listed.wait()

    async def close(self) -> None:
        """End: its key goes, then its replicas; others lead at once. May be called twice."""
        if self._closed:
            return
        self._closed = True
        for end in self._end_gauges:
            end()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self.outlook.close()
        await self.auditor.close()
        await self._registration.close()
        hosted, self._hosted = list(self._hosted.values()), {}
        await asyncio.gather(*(one.stop(wipe=False) for one in hosted), *self._ending)

    # For those who use tablespaces

    async def names(self) -> list[str]:
        """The tablespaces that there are, in order."""
        self._check_open()
        with translating():
            names = await self.directory.names()
            return [name for name in names if not await self._is_dropped(name)]

    def leader_of(self, name: str) -> str | None:
        """The address of another node that leads a tablespace, as far as is known; else None."""
        self._check_open()
        name = name.lower()
        hosted = self._hosted.get(name)
        leader, lost = "", set[str]()
        if hosted is not None and hosted.space is not None:
            replica = hosted.space.replica
            leader = replica.leader
            # Nodes tell that they lead for a while after they have ended.
            lost = replica.predecessors if replica.vacant else lost
        if not leader:
            told = self.outlook.address_of(self.outlook.leader_of(name))
            leader = "" if told in lost else told
        return leader if leader != self.address and leader else None

    async def tablespace(self, name: str = DEFAULT) -> Tablespace:
        """The tablespace, which this node leads.

        Raises `ProgrammingError` for one that is not there, `LeaderUnavailable` with the leader's
        address where another node leads.
        """
        hosted = await self._find(name)
        space = hosted.space if hosted is not None else None
        if space is None or not space.term:
            raise self._elsewhere(name)
        return space

    async def session(self, name: str = DEFAULT, *, autocommit: bool = True) -> "Session":
        """A session for SQL in a tablespace that this node leads. Raises as `tablespace` does."""
        from herd.sql.session import Session

        space = await self.tablespace(name)
        return Session(space, self.queries(space.name), autocommit=autocommit)

    async def follower_session(
        self, name: str = DEFAULT, *, autocommit: bool = True
    ) -> "FollowerSession":
        """A session that only reads, at the position of this node's own replica.

        Raises `ProgrammingError`, `LeaderUnavailable` where this node has no replica, or none yet.
        """
        from herd.nodes.following import FollowerSession

        hosted = await self._find(name)
        if hosted is None or hosted.space is None or not hosted.report.ready:
            raise LeaderUnavailable(
                f"node {self.node_id} has no replica of tablespace {name} to read, or not yet",
                hint="ask a node that has one: see systablespacereplicastate",
            )
        space = hosted.space
        return FollowerSession(space, self.queries(space.name), autocommit=autocommit)

    async def table(self, table: str, name: str = DEFAULT) -> AsyncTable:
        """A table as keys and values, where this node leads. Raises `NoSuchTable` too."""
        return await open_table(await self.tablespace(name), table)

    def queries(self, name: str) -> "QueryEngine":
        """What runs queries over a replica of this node, which runs."""
        from herd.sql.query import QueryEngine

        hosted = self._hosted[name]
        space, workers = hosted.space, self._workers
        assert space is not None and workers is not None
        if hosted.queries is None:
            hosted.queries = QueryEngine(space, workers, pool=self._query_pool)
            if space.checkpointer is not None:
                from herd.checkpoint.catching_up import CatchingUp
                from herd.checkpoint.reading import CheckpointReader

                reader = CheckpointReader(self.client, space.checkpointer, workers)
                hosted.queries.checkpoints = reader.open
                hosted.queries.columns.checkpointed = CatchingUp(
                    self.client, space.name, space.checkpointer, reader, workers
                ).rows
        return hosted.queries

    def hosted(self, name: str) -> Hosted | None:
        """This node's replica of a tablespace."""
        return self._hosted.get(name)

    async def _find(self, name: str) -> Hosted | None:
        self._check_open()
        name = name.lower()
        hosted = self._hosted.get(name)
        if hosted is None:
            with translating():
                fact = await self.directory.find(name)
            if fact.suspended:
                hosted = await self._resume(name)
        return hosted

    async def _resume(self, name: str) -> Hosted | None:
        """Have a tablespace run again, and wait a moment for who leads it."""
        with translating():
            self.outlook.know(name, await self.directory.resume(name))
            self._woken.set()
            with contextlib.suppress(LeaderUnavailable):
                await self.commands.until_led(name, self.settings.resume_ms)
        return self._hosted.get(name)

    async def _is_dropped(self, name: str) -> bool:
        """Whether it is none any more, or not yet."""
        fact = self.outlook.spaces.get(name)
        if fact is None:
            # Named a moment ago, or damaged: that one is there, whatever it is.
            with contextlib.suppress(CannotRead, FormatTooNew):
                fact = await self.directory.get(name)
        return fact is not None and fact.dropped

    def _elsewhere(self, name: str) -> LeaderUnavailable:
        leader = self.leader_of(name)
        return LeaderUnavailable(
            f"node {self.node_id} does not lead tablespace {name.lower()}",
            hint=f"ask {leader}" if leader else "try again",
        )

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the node was closed")

    def _watched(self, metrics: Metrics) -> list[Callable[[], None]]:
        """Register this node's metrics; returns the function that removes them."""
        runs = "Replicas of tablespaces that this node runs."
        lack = "Tablespaces of the cluster with fewer replicas that follow or lead than wanted."
        name = "herdbook_herd_tablespaces_under_replicated"
        return [
            metrics.gauge("herdbook_herd_replicas", runs, lambda: len(self._hosted)),
            metrics.gauge(name, lack, self.outlook.under_replicated),
            metrics.gauge(
                "herdbook_herd_clock_ahead_seconds",
                "How far this machine's clock is ahead of the metadata store's server.",
                lambda: self.client.time.ahead_ms() / 1000,
            ),
        ]

    # Running

    async def look(self) -> None:
        """Look once, and do what is to be done. Raises `MetadataUnavailable`."""
        await self.outlook.look()
        await self._resume_those_in_use()
        self._reconcile()
        if not (self._tidied or self.outlook.unreadable):
            self._tidied = True
            await self._wipe_left_behind()
        await self._publish()
        await self._make_default()
        self._listed.set()
        await self.auditor.look()
        await self._suspend_the_idle()
        self._reconcile()
        self._return_free_memory()

    async def _make_default(self) -> None:
        """Create the tablespace `default` if it does not exist, unless the store is being restored.

        Every node does this, so it exists whenever a node serves. The first writer wins.
        """
        if not self.settings.makes_default or DEFAULT in self.outlook.spaces:
            return
        # Another node has just created it, or it cannot be read: it exists either way. If the mark
        # of a restore cannot be read, nothing is created, and the node serves what exists.
        with contextlib.suppress(DatabaseError, CannotRead, FormatTooNew):
            if await restoration_under_way(self.client.store):
                return
            identity = UUID(int=self.client.rng.getrandbits(128), version=4)
            replicas = (await self.directory.settings()).replicas
            fact = SpaceFact(str(identity), self.client.clock.wall_ms(), replicas, by_default=True)
            self.outlook.know(DEFAULT, await self.directory.create(DEFAULT, fact))

    async def _run(self) -> None:
        pause_s = self.settings.look_ms / 1000
        while True:
            self._woken.clear()
            try:
                await self.look()
                # It tells of a clock that is wrong, though nothing here might ask for a long time.
                await self.client.time.earliest_ms()
            except EngineError as error:
                _logger.info("node %s: %s", self.node_id, error)
            except Exception:
                # A defect of one look must not end the node.
                _logger.exception("node %s could not look", self.node_id)
            # What was told while it looked waits a moment: many facts may change at once.
            await asyncio.sleep(pause_s / 20)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()

    def _reconcile(self) -> None:
        """Run what the facts say, end what they do not."""
        spaces = self.outlook.spaces
        for name, hosted in list(self._hosted.items()):
            fact = spaces.get(name)
            if fact is None or fact.uuid != hosted.fact.uuid or not self._is_mine(fact):
                del self._hosted[name]
                self._end(hosted, wipe=True)
            elif fact.suspended and not (hosted.in_use or self._awaits_others(name, hosted)):
                del self._hosted[name]
                self._end(hosted, wipe=False)
        if self._seen_changes != self.outlook.changes:
            self._seen_changes = self.outlook.changes
            self._see_to_suspended()
        for name, fact in self.outlook.active.items():
            if not self._is_mine(fact):
                continue
            found = self._hosted.get(name)
            if found is not None:
                found.tend(fact, self.outlook)
            elif fact.runs and fact.uuid not in self._names_ending:
                self._hosted[name] = self._host(name, fact)
        self._warn_if_crowded()

    def _see_to_suspended(self) -> None:
        """Remove the states of suspended tablespaces that have no replica here any more."""
        spaces = self.outlook.spaces
        for name, fact in spaces.items():
            if self._is_mine(fact) and fact.suspended:
                self._suspended[name] = fact.uuid
        for name, uuid in list(self._suspended.items()):
            found = spaces.get(name)
            mine = found is not None and found.uuid == uuid and self._is_mine(found)
            if mine and found is not None and found.suspended:
                continue
            if not mine and uuid in self._names_ending:
                # Its replica has not ended yet: look again then.
                self._seen_changes = -1
                continue
            del self._suspended[name]
            if not mine:
                self._beside(name, uuid, self._states.wipe(uuid))

    async def _suspend_the_idle(self) -> None:
        """Suspend each tablespace that this node leads and no node uses."""
        for name, hosted in list(self._hosted.items()):
            fact = self.outlook.spaces.get(name)
            if fact is None or not fact.runs or not self._may_suspend(name, fact, hosted):
                continue
            with contextlib.suppress(DatabaseError):
                self.outlook.know(name, await self.directory.change(name, _suspended))

    def _return_free_memory(self) -> None:
        """Begin to return the memory of replicas that have ended, at most once a minute."""
        now_s = self.client.clock.monotonic()
        if self._return_memory is None or self._names_ending or not self._holds_free_memory:
            return
        if now_s - self._memory_at_s >= _RETURN_MEMORY_S:
            self._holds_free_memory, self._memory_at_s = False, now_s
            self._keep(asyncio.ensure_future(self._return_memory()))

    def _may_suspend(self, name: str, fact: SpaceFact, hosted: Hosted) -> bool:
        if name in self.settings.never_suspended or not hosted.idle:
            return False
        if hosted.report.role != "leader":
            return False
        reports = (
            self.outlook.report(name, node) for node in fact.replicas if node != self.node_id
        )
        return all(report is None or (report.ready and report.idle) for report in reports)

    async def _resume_those_in_use(self) -> None:
        """Resume what was suspended although somebody has begun to use it here."""
        for name, hosted in self._hosted.items():
            fact = self.outlook.spaces.get(name)
            if fact is not None and fact.suspended and hosted.in_use:
                with contextlib.suppress(DatabaseError):
                    self.outlook.know(name, await self.directory.resume(name))

    def _awaits_others(self, name: str, hosted: Hosted) -> bool:
        """Whether this replica of a suspended tablespace leads others that have not ended yet."""
        if hosted.report.role != "leader":
            return False
        fact = self.outlook.spaces[name]
        others = (node for node in fact.replicas if node != self.node_id)
        return any(self.outlook.report(name, node) is not None for node in others)

    def _warn_if_crowded(self) -> None:
        """Say that more runs here than its memory is divided for, once as long as that is so."""
        count, planned = len(self._hosted), self.settings.replicas_planned
        crowded = 0 < planned < count
        if crowded and not self._crowded:
            _logger.warning(
                "node %s runs %d tablespaces, each bucket is one, and its memory is divided for "
                "%d: it may hold more than it was told",
                *(self.node_id, count, planned),
            )
        self._crowded = crowded

    def _is_mine(self, fact: SpaceFact) -> bool:
        return fact.hosted and self.node_id in fact.replicas

    def _host(self, name: str, fact: SpaceFact) -> Hosted:
        return Hosted(
            name,
            fact,
            self.node_id,
            open_space=self._open,
            wipe=self._states.wipe,
            clock=self.client.clock,
            settings=self.settings,
        )

    def _end(self, hosted: Hosted, *, wipe: bool) -> None:
        """End a replica beside everything else; its tablespace is not begun here meanwhile."""
        self._beside(hosted.name, hosted.fact.uuid, hosted.stop(wipe=wipe))

    def _beside(self, name: str, uuid: str, ending: Awaitable[None]) -> None:
        async def end() -> None:
            try:
                await ending
            except (EngineError, OSError) as error:
                _logger.warning("tablespace %s: its state is left: %s", name, error)
            finally:
                self._names_ending.pop(uuid, None)
                self._holds_free_memory = True
                self._woken.set()

        self._names_ending[uuid] = name
        self._keep(asyncio.create_task(end()))

    def _keep(self, task: asyncio.Future[None]) -> None:
        """Keep a task until it has ended; the node does not close before."""
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _open(self, name: str, fact: SpaceFact) -> Tablespace:
        async with self._turn_to_open():
            space = await self._opened(name, fact)
        fact = self.outlook.spaces.get(name, fact)
        if fact.leader not in ("", self.node_id) and self.outlook.address_of(fact.leader):
            # Otherwise the designated leader would take over from the first one a moment later.
            space.replica.defer(self.settings.preference_ms / 1000)
        space.cluster = self.outlook
        space.commands = self.commands
        return space

    @contextlib.asynccontextmanager
    async def _turn_to_open(self) -> AsyncIterator[None]:
        """Wait for one of the few turns, so that a node that starts can answer calls in between.

        A turn ends after `_OPENING_S` even if the replica is not open yet: it may be restoring a
        large snapshot, and must not keep the others waiting.
        """
        await self._opening.acquire()
        with contextlib.ExitStack() as turn:
            turn.callback(self._opening.release)
            ending = asyncio.get_running_loop().call_later(_OPENING_S, turn.close)
            try:
                yield
            finally:
                ending.cancel()

    async def _opened(self, name: str, fact: SpaceFact) -> Tablespace:
        state = await self._states.open(fact.uuid)
        try:
            return await Tablespace.open(
                self.client,
                name,
                state,
                settings=self._herd,
                address=self.address,
                elect=True,
                replica_settings=self._replica,
                log_settings=self._log,
                metrics=self._metrics,
                workers=self._workers,
                folder=self._states.folder(fact.uuid),
            )
        except BaseException:
            with contextlib.suppress(EngineError):
                await state.close()
            raise

    async def _publish(self) -> None:
        # A replica that is closing may still write, so its tablespace must not be removed yet.
        ending = self._names_ending.items()
        replicas = {name: ReplicaReport(uuid, ENDING) for uuid, name in ending}
        replicas |= {name: hosted.report for name, hosted in self._hosted.items()}
        fact = NodeFact(self.address, self._started_ms, replicas, host=self.host)
        await self._registration.publish(fact)
        self.outlook.nodes[self.node_id] = fact

    async def _wipe_left_behind(self) -> None:
        """Remove states of tablespaces that are others' by now, or no more."""
        mine = {fact.uuid for fact in self.outlook.spaces.values() if self._is_mine(fact)}
        if lost := await lost_logs(self.client.store):
            # Whose they are was lost with the metadata, and may come back.
            names = ", ".join(sorted(lost))
            _logger.warning(
                "node %s keeps all states: the lists of %s were lost", self.node_id, names
            )
            return
        for uuid in await self._states.known():
            if uuid not in mine:
                _logger.warning("node %s: the state %s is nobody's", self.node_id, uuid)
                await self._states.wipe(uuid)


def _suspended(fact: SpaceFact) -> SpaceFact:
    return msgspec.structs.replace(fact, suspended=True) if fact.runs else fact

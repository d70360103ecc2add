"""Sessions of the imagined cluster: how a client's machine reaches whoever leads the tablespace.

Invariants:
- The product's calls, guests and sessions run unchanged; only what carries them is simulated.
- A connection belongs to one process on each side: it ends when a message of it is lost, when an
  answer takes too long, and, for the server a while later, when its client has died.
- A machine runs one tablespace. Every name of a tablespace that leads to it means that one.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Final

from engine.errors import Unavailable
from engine.log import Position
from herd.errors import Error, LeaderUnavailable, NotSupportedError, SessionLost
from herd.sql.query import QueryEngine
from herd.sql.session import Session
from herd.table import AsyncTable, open_table
from herd.tablespace import Tablespace
from herd.wire.guest import Guest
from herd.wire.service import HerdService
from tests.simulation.loop import Process
from tests.simulation.nodes import World
from tests.simulation.workers import SimWorkers

if TYPE_CHECKING:
    from tests.simulation.blob_nodes import SpaceNode

_ANSWER_S: Final = 8.0
_NOTICED_S: Final = 1.0
_DIAL_S: Final = 1.0
_LEASE_S: Final = 3.0
_PATIENCE_S: Final = 15.0
_PAUSE_S: Final = 0.2


class SpaceHost:
    """The tablespace of one machine, for its guests: a `FolderHost`."""

    def __init__(self, node: "SpaceNode", workers: SimWorkers) -> None:
        self._node = node
        self._workers = workers
        self._queries: QueryEngine | None = None

    async def names(self) -> list[str]:
        """All, wherever they are."""
        return list(self._node.tablespaces)

    async def make(self, name: str) -> None:
        """It is there."""
        self._space()

    async def session(self, name: str, *, autocommit: bool = True) -> Session:
        """A session, whatever the tablespace is called."""
        space = self._space()
        if self._queries is None:
            self._queries = QueryEngine(space, self._workers)
        return Session(space, self._queries, autocommit=autocommit)

    async def table(self, table: str, name: str) -> AsyncTable:
        """A table."""
        return await open_table(self._space(), table)

    async def tablespace(self, name: str) -> Tablespace:
        """The tablespace."""
        return self._space()

    def leader_of(self, name: str) -> str | None:
        """Which machine is said to lead."""
        replica = self._node.replica
        return None if replica is None else replica.leader or None

    async def back_up(self, path: str | PathLike[str], name: str) -> None:
        """Nobody asks for it."""
        raise NotSupportedError("not in the imagined cluster")

    async def restore(self, path: str | PathLike[str], name: str) -> object:
        """Nobody asks for it."""
        raise NotSupportedError("not in the imagined cluster")

    async def restore_until(self, source: str, until: Position, name: str) -> None:
        """Nobody asks for it."""
        raise NotSupportedError("not in the imagined cluster")

    def _space(self) -> Tablespace:
        try:
            return self._node._space()
        except Unavailable as error:
            raise LeaderUnavailable(str(error)) from error


class SimChannel:
    """A connection between one process of a client and one of a machine; a `Channel`."""

    def __init__(self, world: World, client: str, near: Process, node: "SpaceNode") -> None:
        self._world = world
        self._network = world.network
        self._link = world.network.link_to(client, node.name)
        self._near = near
        self._far = node.process
        self._service = node.service
        self._guest: Guest | None = None
        self._over = False
        self._waiting: dict[asyncio.Future[bytes], None] = {}
        self._tasks: dict[asyncio.Future[bytes], asyncio.Task[None]] = {}
        self.node = node

    @property
    def over(self) -> bool:
        """Whether it leads nowhere any more."""
        return self._over

    async def dial(self) -> None:
        """Reach the machine. Raises `SessionLost`."""
        if not self._carry_out(self._greet):
            await asyncio.sleep(_DIAL_S)
        await asyncio.sleep(self._network.latency_s() * 2)
        if self._guest is None or self._over:
            self._over = True
            raise SessionLost(f"{self.node.name} does not answer")

    async def ask(self, message: bytes) -> bytes:
        """The answer to a call; see `Channel`."""
        if self._over:
            raise SessionLost(f"the connection to {self.node.name} is over")
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[answered] = None
        if not self._carry_out(lambda: self._serve(message, answered)):
            self._world.trace.fault("lost call", self._near.name, self.node.name)
            self._network.later(_NOTICED_S, self._near, self._break)
        try:
            async with asyncio.timeout(_ANSWER_S + 2 * self._network.faults.slow_s):
                return await answered
        except TimeoutError:
            self._break()
            raise SessionLost(f"{self.node.name} says nothing") from None
        except asyncio.CancelledError:
            self._carry_out(lambda: self._cancel(answered))
            raise
        finally:
            self._waiting.pop(answered, None)

    def _carry_out(self, arrive: Callable[[], None]) -> bool:
        """Send something to the far process; False if it is lost."""
        loop, far = self._world.loop, self._far

        def deliver() -> None:
            loop.deliver_at(loop.now, far, arrive)

        return self._network.send_out(self._link, deliver)

    def _break(self) -> None:
        self._over = True
        for answered in list(self._waiting):
            if not answered.done():
                lost = SessionLost(f"the connection to {self.node.name} was lost")
                answered.set_exception(lost)

    # In the far process

    def _greet(self) -> None:
        if self._service is not None:
            self._guest = Guest(self._service)
            self._watch()

    def _watch(self) -> None:
        """End what the client began, a while after it has gone."""
        assert self._guest is not None
        if self._over or not self._near.alive:
            self._world.loop.create_task(self._guest.close(), name=f"{self.node.name} guest ends")
            return
        loop = self._world.loop
        loop.deliver_at(loop.now + _LEASE_S, self._far, self._watch)

    def _serve(self, message: bytes, answered: "asyncio.Future[bytes]") -> None:
        assert self._guest is not None
        reply = self._guest.handle(message)
        if isinstance(reply, bytes):
            self._answer(reply, answered)
            return

        async def finish() -> None:
            self._answer(await reply, answered)

        name = f"{self._near.name} at {self.node.name}"
        task = self._world.loop.create_task(finish(), name=name)
        self._tasks[answered] = task

        def ended(_: object) -> None:
            self._tasks.pop(answered, None)
            if asyncio.iscoroutine(reply):
                # It was cancelled before it began.
                reply.close()

        task.add_done_callback(ended)

    def _cancel(self, answered: "asyncio.Future[bytes]") -> None:
        task = self._tasks.get(answered)
        if task is not None:
            task.cancel()

    def _answer(self, reply: bytes, answered: "asyncio.Future[bytes]") -> None:
        def settle() -> None:
            if not answered.done():
                answered.set_result(reply)

        if not self._network.send_in(self._link, self._near, settle):
            self._world.trace.fault("lost answer", self.node.name, self._near.name)
            self._network.later(_NOTICED_S, self._near, self._break)


class SimRoute:
    """Finds the machine that leads. A `Route` of one process of a client."""

    def __init__(
        self,
        world: World,
        client: str,
        process: Process,
        nodes: Mapping[str, Sequence["SpaceNode"]],
    ) -> None:
        """`nodes`: the machines of each tablespace."""
        self._world = world
        self._client = client
        self._process = process
        self._nodes = nodes
        self._rng = world.rng(f"{client} route")
        self._targets: dict[str, SpaceNode] = {}
        self._channels: dict[str, SimChannel] = {}

    async def channel(self, tablespace: str) -> SimChannel:
        """A channel to who is said to lead. Raises `LeaderUnavailable`."""
        end_s = self._world.loop.now + _PATIENCE_S
        nodes = self._nodes_of(tablespace)
        while True:
            node = self._targets.get(nodes[0].space_name) or self._rng.choice(nodes)
            found = self._channels.get(node.name)
            if found is not None and not found.over:
                return found
            made = SimChannel(self._world, self._client, self._process, node)
            try:
                await made.dial()
            except Error as error:
                self._targets[node.space_name] = self._rng.choice(nodes)
                if self._world.loop.now > end_s:
                    raise LeaderUnavailable("nobody answers", hint="try again") from error
                await asyncio.sleep(_PAUSE_S)
                continue
            self._channels[node.name] = made
            self._targets[node.space_name] = node
            return made

    def moved(self, tablespace: str, leader: str) -> bool:
        """Ask another one."""
        nodes = self._nodes_of(tablespace)
        named = [node for node in nodes if node.name == leader]
        self._targets[nodes[0].space_name] = named[0] if named else self._rng.choice(nodes)
        return True

    def _nodes_of(self, tablespace: str) -> Sequence["SpaceNode"]:
        """The machines that run a tablespace; those of any if none is named."""
        return self._nodes.get(tablespace) or next(iter(self._nodes.values()))


def service_of(node: "SpaceNode", workers: SimWorkers) -> HerdService:
    """What the guests of a machine reach."""
    host = SpaceHost(node, workers)
    return HerdService(host, workers, None, host)

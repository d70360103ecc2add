"""One tablespace's replica on this node: started, tended, started again, stopped.

Invariants:
- A replica that cannot be started, or has stopped for good, is started again after a pause; only a
  state that was found to differ from the others' is thrown away for that.
- A leader gives way to the designated one only when that follows closely, and tries again less and
  less often while that does not work.
- A replica counts, and is read, once it has applied what was in the log when it was started.
- A replica is idle once nobody has used it for `suspend_after_ms`. A transaction or a statement
  uses it until its end; a session that is open and does nothing does not.
- Whoever is not the designated leader leaves the lead to it for a while, if it is ready and did not
  lead last and has not been elected in vain since. Otherwise a hash orders the replicas, and each
  waits a little longer than the one before. So the survivors of a lost node share its tablespaces.
  If a node has not taken a tablespace over by then, the next one does.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError, StateDiverged
from engine.log.position import Position
from engine.ports.clock import Clock
from engine.replica.contract import Role
from herd.errors import DatabaseError
from herd.nodes.facts import CATCHING_UP, ReplicaReport, SpaceFact
from herd.nodes.outlook import Outlook
from herd.nodes.settings import NodeSettings
from herd.sql.clients import clients_of
from herd.tablespace import Tablespace

if TYPE_CHECKING:
    from herd.sql.query import QueryEngine

Open = Callable[[str, SpaceFact], Awaitable[Tablespace]]
Wipe = Callable[[str], Awaitable[None]]
_CLOSELY_LOOKS: Final = 4
_TRAIL_LOOKS: Final = 8
_TRY_AGAIN_S: Final = 10.0
_TRY_AGAIN_S_MAX: Final = 600.0
_logger = logging.getLogger(__name__)


class Hosted:
    """A replica, as long as this node is to run it. All methods on the event loop."""

    def __init__(
        self,
        name: str,
        fact: SpaceFact,
        node_id: str,
        *,
        open_space: Open,
        wipe: Wipe,
        clock: Clock,
        settings: NodeSettings,
    ) -> None:
        self.name = name
        self.fact = fact
        self.space: Tablespace | None = None
        self.queries: QueryEngine | None = None
        self.failure = ""
        """Why it does not run, while it does not."""
        self.caught_up = False
        """Whether it has been where the log was when it was started."""
        self._node_id = node_id
        self._open = open_space
        self._wipe = wipe
        self._clock = clock
        self._settings = settings
        self._stopped = asyncio.Event()
        self._catching_up: asyncio.Task[None] | None = None
        self._trail: deque[tuple[float, int, Position]] = deque(maxlen=_TRAIL_LOOKS)
        """The latest looks: when, the term, and how far the replica had got."""
        self._giving: asyncio.Task[None] | None = None
        self._gave_to = ""
        self._gave_s = -1e9
        self._pause_s = _TRY_AGAIN_S
        self._uses: tuple[int, Position] | None = None
        self._used_s = clock.monotonic()
        self._running = asyncio.create_task(self._run(), name=f"replica of {name}")

    @property
    def report(self) -> ReplicaReport:
        """What this replica does."""
        space, uuid = self.space, self.fact.uuid
        if space is None:
            return ReplicaReport(uuid, "failed" if self.failure else "starting")
        replica = space.replica
        role = replica.role.value
        if role == Role.FOLLOWER.value and not self.caught_up:
            role = CATCHING_UP
        return ReplicaReport(uuid, role, space.term, *replica.position, idle=self.idle)

    @property
    def idle(self) -> bool:
        """Whether nobody has used it for so long that it may be suspended."""
        after_s = self._settings.suspend_after_ms / 1000
        return 0 < after_s <= self._clock.monotonic() - self._used_s and not self.in_use

    @property
    def in_use(self) -> bool:
        """Whether somebody uses it now, or has used it since the last look."""
        space = self.space
        if space is None:
            return False
        if space.busy or clients_of(space).busy:
            return True
        return (space.uses, space.replica.position) != self._uses

    def tend(self, fact: SpaceFact, outlook: Outlook) -> None:
        """See to this replica after a look."""
        self.fact = fact
        space = self.space
        if space is None:
            return
        if space.replica.role is Role.FAILED:
            self._stopped.set()
            return
        self._trail.append((self._clock.monotonic(), space.term, space.replica.position))
        if self.in_use:
            self._uses = space.uses, space.replica.position
            self._used_s = self._clock.monotonic()
        space.replica.defer(self._deference_s(space, outlook))
        wanted = fact.leader
        if wanted != self._gave_to or outlook.leader_of(self.name) == wanted:
            self._gave_to, self._gave_s, self._pause_s = wanted, -1e9, _TRY_AGAIN_S
        if wanted in ("", self._node_id) or not space.term:
            return
        if self._giving is None and self._is_to_give_way(space.term, outlook):
            self._giving = asyncio.create_task(self._give_way(space, outlook))

    async def stop(self, *, wipe: bool) -> None:
        """End the replica: a leader lets another one lead first. Then remove its state."""
        space = self.space
        if wipe and space is not None and space.term:
            space.replica.defer(self._settings.preference_ms / 1000)
            with contextlib.suppress(DatabaseError):
                await space.give_way(self._settings.patience_ms)
        tasks = [task for task in (self._giving, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close()
        if wipe:
            await self._wipe(self.fact.uuid)

    # Running

    async def _run(self) -> None:
        while True:
            try:
                space = self.space = await self._open(self.name, self.fact)
                self.failure = ""
                self._stopped.clear()
                self._catching_up = asyncio.create_task(self._catch_up(space))
                await self._stopped.wait()
                error: Exception | None = space.replica.failure
            except (DatabaseError, EngineError, OSError) as found:
                error = found
            self.failure = str(error)
            _logger.error("the replica of tablespace %s stopped: %s", self.name, error)
            await self._close()
            if isinstance(error, StateDiverged):
                await self._wipe(self.fact.uuid)
            await asyncio.sleep(self._settings.restart_ms / 1000)

    async def _catch_up(self, space: Tablespace) -> None:
        """Wait until it has applied what is in the log now."""
        while True:
            with contextlib.suppress(EngineError):
                await space.replica.wait_for(await space.replica.log.end())
                self.caught_up = True
                return
            await asyncio.sleep(self._settings.look_ms / 1000)

    async def _close(self) -> None:
        space, self.space = self.space, None
        self.caught_up = False
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
            self._catching_up = None
        queries, self.queries = self.queries, None
        self._trail.clear()
        if queries is not None:
            await queries.close()
        if space is not None:
            with contextlib.suppress(DatabaseError):
                await space.close()

    # Who leads

    def _deference_s(self, space: Tablespace, outlook: Outlook) -> float:
        """How long to wait for the replica that should lead next."""
        # Predecessors are not waited for: they may be gone although they are still registered.
        predecessors, ready = space.replica.predecessors, list[str]()
        for node in self.fact.replicas:
            report = outlook.report(self.name, node)
            if report is not None and report.ready and outlook.address_of(node) not in predecessors:
                ready.append(node)
        if self._node_id == self.fact.leader:
            return 0.0
        if self.fact.leader in ready:
            return self._settings.preference_ms / 1000
        ready.sort(key=partial(_rank, self.fact.uuid))
        place = ready.index(self._node_id) if self._node_id in ready else len(ready)
        return place * self._settings.succession_ms / 1000

    def _is_to_give_way(self, term: int, outlook: Outlook) -> bool:
        """Whether the designated leader follows closely, and it is time to try."""
        now_s = self._clock.monotonic()
        if now_s - self._gave_s < self._pause_s:
            return False
        report = outlook.report(self.name, self.fact.leader)
        if report is None or not report.ready:
            return False
        closely_s = _CLOSELY_LOOKS * self._settings.look_ms / 1000
        # A node that was killed before this term may be registered, but cannot have followed it.
        looks = [look for look in self._trail if look[1] == term]
        older = [at for seen_s, _, at in looks if now_s - seen_s >= closely_s]
        return bool(older) and report.position >= older[-1]

    async def _give_way(self, space: Tablespace, outlook: Outlook) -> None:
        wanted = self.fact.leader
        _logger.info("tablespace %s: %s is to lead", self.name, wanted)
        self._pause_s = min(2 * self._pause_s, _TRY_AGAIN_S_MAX)
        try:
            await space.give_way(self._settings.patience_ms, outlook.address_of(wanted))
        except (DatabaseError, EngineError) as error:
            _logger.warning("tablespace %s: no other leader: %s", self.name, error)
        finally:
            self._gave_s = self._clock.monotonic()
            self._giving = None


def _rank(uuid: str, node_id: str) -> bytes:
    """A hash by which nodes are ordered: the same on every node, another one per tablespace."""
    return hashlib.blake2b(f"{uuid} {node_id}".encode(), digest_size=8).digest()

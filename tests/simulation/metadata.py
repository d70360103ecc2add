"""The metadata store as one process sees it: late, sometimes unreachable, sessions that expire.

A session has faults of its own (`SessionFaults`), while those of others work: it is slow, it hangs,
it loses replies, its notices come late.

Invariants:
- The tree behind is linearizable; a call takes effect at one instant between request and answer.
- What comes after a call whose caller was cancelled takes effect after it.
- A failed call may have taken effect, and may take effect after its caller has died.
- A watch that was due always comes, late.
- Calls that hang are carried out in their order, or lost when their session has expired.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from engine.errors import MetadataUnavailable
from engine.metadata.contract import Page, Versioned
from engine.metadata.losses import Losses
from engine.metadata.memory import MemoryStore, MemoryTree
from tests.simulation.loop import Process, SimLoop
from tests.simulation.trace import Trace

R = TypeVar("R")


@dataclass(slots=True)
class MetadataFaults:
    """Rates of one run."""

    lost_before_share: float = 0.0
    lost_after_share: float = 0.0
    silent_share: float = 0.2
    latency_s: float = 0.001
    watch_delay_s: float = 0.01


@dataclass(slots=True)
class SessionFaults:
    """What befalls one session. `slow_s` and `notices_s` are means of exponential delays."""

    rng: random.Random
    ordered: bool = True
    """Whether a slow session carries its calls out one after the other, as ZooKeeper does."""
    slow_s: float = 0.0
    slow_share: float = 1.0
    """Of a slow session's calls, how many are slow."""
    notices_s: float = 0.0
    lost_share: float = 0.0
    """Of calls that were carried out, how many replies get lost."""
    held: bool = False
    """Calls and notices wait."""
    sent: Callable[[str], float] | None = None
    """Is told the key of each write that is sent; by how many seconds this one is late."""
    returned: Callable[[str], None] | None = None
    """Is told, in nobody's process, that a write's reply has just arrived; which key."""


_WRITES: Final = frozenset(("create", "set", "delete"))


class SimStore:
    """One session; implements `engine.metadata.contract.MetadataStore`."""

    def __init__(
        self,
        tree: MemoryTree,
        loop: SimLoop,
        process: Process,
        rng: random.Random,
        trace: Trace,
        faults: MetadataFaults,
    ) -> None:
        self.faults = faults
        self.reachable = True
        self.calls = 0
        """How many calls were made so far."""
        self._tree = tree
        self._loop = loop
        self._process = process
        self._rng = rng
        self._trace = trace
        self._session: MemoryStore = tree.session()
        self._losses = Losses()
        self._abandoned_s = 0.0
        self.own = SessionFaults(random.Random(0))
        self._waiting: list[Callable[[], None]] = []
        self._free_s = 0.0

    @property
    def cluster_id(self) -> str:
        return self._session.cluster_id

    @property
    def session_number(self) -> int:
        """Who owns the ephemeral keys that are made now."""
        return self._session._owner

    async def get(self, key: str) -> Versioned | None:
        return await self._call("get", key, lambda store: store.get(key))

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._call(
            "create", key, lambda store: store.create(key, value, ephemeral=ephemeral)
        )

    async def set(self, key: str, value: bytes, version: int) -> int:
        return await self._call("set", key, lambda store: store.set(key, value, version))

    async def delete(self, key: str, version: int | None = None) -> None:
        return await self._call("delete", key, lambda store: store.delete(key, version))

    async def children(self, prefix: str) -> list[str]:
        return await self._call("children", prefix, lambda store: store.children(prefix))

    async def page(self, prefix: str, above: int = -1) -> Page:
        return await self._call("page", prefix, lambda store: store.page(prefix, above))

    async def next_id(self, counter: str) -> int:
        return await self._call("next_id", counter, lambda store: store.next_id(counter))

    async def sync(self) -> None:
        return await self._call("sync", "", lambda store: store.sync())

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        watching = True

        def notice() -> None:
            if watching:
                changed()

        def later() -> None:
            if not self._process.alive:
                return
            delay_s = self.faults.watch_delay_s * self._rng.random() * 2
            if self.own.held:
                self._waiting.append(lambda: self._notify(delay_s, notice))
            else:
                self._notify(delay_s, notice)

        # On the tree, not on the session: a watch outlives an expired session, as clients that
        # reconnect set theirs again.
        unwatch = self._tree.tree.watch(key, later)

        def end() -> None:
            nonlocal watching
            watching = False
            unwatch()

        return end

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        return self._losses.watch(lost)

    async def close(self) -> None:
        await self._session.close()

    def _notify(self, delay_s: float, notice: Callable[[], None]) -> None:
        if self.own.notices_s:
            delay_s += self.own.rng.expovariate(1 / self.own.notices_s)
        self._loop.deliver_at(self._loop.now + delay_s, self._process, notice)

    def let_go(self) -> None:
        """What was held goes on, in its order."""
        self.own.held = False
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def expire(self) -> None:
        """The session ends without its owner: its ephemeral keys go."""
        if self.own.held:
            self.reachable, reachable = False, self.reachable
            self.let_go()
            self.reachable, self.own.held = reachable, True
        expired, self._session = self._session, self._tree.session()
        run_now(expired.close())
        delay_s = self.faults.watch_delay_s * self._rng.random() * 2
        self._loop.deliver_at(
            self._loop.now + delay_s, self._process, self._losses.tell, self._loop
        )

    async def _call(
        self, what: str, key: str, call: Callable[[MemoryStore], Coroutine[Any, Any, R]]
    ) -> R:
        answered: asyncio.Future[R] = self._loop.create_future()
        self.calls += 1
        self._trace.event(what, self._process.name, key)
        when = max(self._arrival_s(), self._abandoned_s)
        if self.own.slow_s and self.own.rng.random() < self.own.slow_share:
            when += self.own.rng.expovariate(1 / self.own.slow_s)
            if self.own.ordered:
                self._free_s = when = max(when, self._free_s)
        written = key if what in _WRITES else ""
        if written and self.own.sent is not None:
            when += self.own.sent(written)
        self._loop.deliver_at(when, self._loop.world, self._act, call, answered, written)
        try:
            return await answered
        except asyncio.CancelledError:
            self._abandoned_s = max(self._abandoned_s, when)
            raise

    def _act(
        self,
        call: Callable[[MemoryStore], Coroutine[Any, Any, R]],
        answered: asyncio.Future[R],
        written: str,
    ) -> None:
        """In the store: do it, or lose it, and send what came of it."""
        if self.own.held:
            self._waiting.append(lambda: self._act(call, answered, written))
            return
        faults = self.faults
        if not self.reachable or self._rng.random() < faults.lost_before_share:
            self._lose(answered)
            return
        result: Any = None
        error: Exception | None = None
        self._loop.acting_for = self._process
        try:
            result = run_now(call(self._session))
        except Exception as raised:
            error = raised
        self._loop.acting_for = None
        if self._rng.random() < faults.lost_after_share or self._loses_reply():
            self._lose(answered)
            return
        when = self._arrival_s()
        self._loop.deliver_at(when, self._process, _settle, answered, result, error)
        if written and error is None and self.own.returned is not None:
            # Its caller goes on after this: it is settled, and has not had its turn.
            self._loop.deliver_at(when, self._loop.world, self.own.returned, written)

    def _loses_reply(self) -> bool:
        return self.own.lost_share > 0 and self.own.rng.random() < self.own.lost_share

    def _lose(self, answered: asyncio.Future[Any]) -> None:
        self._trace.fault("lost metadata call", self._process.name)
        if self._rng.random() >= self.faults.silent_share:
            lost = MetadataUnavailable("simulated: no answer")
            when = self._loop.now + 0.1 + self._rng.random()
            self._loop.deliver_at(when, self._process, _settle, answered, None, lost)

    def _arrival_s(self) -> float:
        return self._loop.now + self.faults.latency_s * (0.5 + self._rng.random())


def run_now(call: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as ended:
        result: R = ended.value
        return result
    raise AssertionError("the store in memory answers at once")


def _settle(answered: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if answered.done():
        return
    if error is not None:
        answered.set_exception(error)
    else:
        answered.set_result(result)

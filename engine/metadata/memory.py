"""A metadata store in memory, for tests and simulations, and a store whose writes go wrong.

Invariants:
- All sessions of a `MemoryTree` see one state; a write is made whole within one call.
- A `FaultyStore` does exactly the faults it was told of, each once, in their order.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.errors import MetadataUnavailable
from engine.metadata.contract import MetadataStore, Page, Versioned
from engine.metadata.session import Numbers, TreeSession
from engine.metadata.tree import Change, Tree

T = TypeVar("T")


class MemoryTree:
    """The state that sessions in memory share.

    >>> import asyncio
    >>> async def herd() -> list[str]:
    ...     session = MemoryTree("cluster").session()
    ...     await session.create("/cows/berta", b"brown")
    ...     return await session.children("/cows")
    >>> asyncio.run(herd())
    ['berta']
    """

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.tree = Tree()
        self.numbers = Numbers()
        self.closed = False
        self._sessions = 0

    def session(self) -> "MemoryStore":
        """A new session; its ephemeral keys go with it."""
        self._sessions += 1
        return MemoryStore(self, self._sessions)

    async def turn(self, name: str) -> None:
        """Return at once: a write is never in progress."""

    def write(self, name: str, change: Change) -> "asyncio.Future[None]":
        """Make the change at once."""
        self.tree.make(change)
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        made.set_result(None)
        return made


class MemoryStore(TreeSession):
    """One session over a `MemoryTree`."""


class FaultyStore:
    """A `MetadataStore` in front of another one, whose writes lose their request or their reply.

    A fault is told in advance and hits the next write (`create`, `set`, `delete`, `next_id`) that
    has none yet. Reads always pass.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._faults: deque[_Fault] = deque()

    @property
    def cluster_id(self) -> str:
        """The cluster id of the store behind."""
        return self._store.cluster_id

    @property
    def faults_left(self) -> int:
        """How many faults no write has met yet."""
        return len(self._faults)

    def lose_reply(self, then: Callable[[], Awaitable[object]] | None = None) -> None:
        """The next write is done, and then raises `MetadataUnavailable`.

        `then` is awaited in between: somebody else has written before the loss is noticed.
        """
        self._faults.append(_Fault(done=True, lost=True, after=then))

    def lose_request(self) -> None:
        """The next write is not done, and raises `MetadataUnavailable`."""
        self._faults.append(_Fault(done=False, lost=True))

    def before_write(self, intrude: Callable[[], Awaitable[object]]) -> None:
        """`intrude` is awaited just before the next write: somebody else is quicker."""
        self._faults.append(_Fault(done=True, lost=False, before=intrude))

    async def get(self, key: str) -> Versioned | None:
        """Passed on."""
        return await self._store.get(key)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Passed on, with the next fault."""
        return await self._write(lambda: self._store.create(key, value, ephemeral=ephemeral))

    async def set(self, key: str, value: bytes, version: int) -> int:
        """Passed on, with the next fault."""
        return await self._write(lambda: self._store.set(key, value, version))

    async def delete(self, key: str, version: int | None = None) -> None:
        """Passed on, with the next fault."""
        await self._write(lambda: self._store.delete(key, version))

    async def children(self, prefix: str) -> list[str]:
        """Passed on."""
        return await self._store.children(prefix)

    async def page(self, prefix: str, above: int = -1) -> Page:
        """Passed on."""
        return await self._store.page(prefix, above)

    async def next_id(self, counter: str) -> int:
        """Passed on, with the next fault."""
        return await self._write(lambda: self._store.next_id(counter))

    async def sync(self) -> None:
        """Passed on."""
        await self._store.sync()

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Passed on."""
        return self._store.watch(key, changed)

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Passed on."""
        return self._store.watch_session(lost)

    async def close(self) -> None:
        """Close the store behind."""
        await self._store.close()

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        fault = self._faults.popleft() if self._faults else _Fault(done=True, lost=False)
        if fault.before is not None:
            await fault.before()
        if not fault.done:
            raise MetadataUnavailable("the request was lost")
        try:
            result = await write()
        except Exception as error:
            if fault.lost:
                raise MetadataUnavailable("the reply was lost") from error
            raise
        if fault.lost:
            if fault.after is not None:
                await fault.after()
            raise MetadataUnavailable("the reply was lost")
        return result


class _Fault:
    """What goes wrong with one write."""

    def __init__(
        self,
        *,
        done: bool,
        lost: bool,
        before: Callable[[], Awaitable[object]] | None = None,
        after: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.done = done
        self.lost = lost
        self.before = before
        self.after = after

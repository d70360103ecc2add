"""Sessions over one tree: what the stores in memory and in a folder have in common.

Invariants:
- One write of a key is on its way at a time; the next one is checked against its outcome. So
  nobody, a loser of a compare-and-set included, is told anything that is not durable.
- An ephemeral key is made and goes without a trace in the log.
- A number of a counter is given out only when it is durably used up.
- A read waits for cancelled writes of its own session that affect its result, so it never returns
  the state before them. Other sessions do not wait for them.
- After `close()` a session answers nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from engine.errors import MetadataUnavailable
from engine.metadata.contract import Page, Versioned
from engine.metadata.losses import Losses
from engine.metadata.tree import Change, Count, Drop, Put, Tree, Watcher, check_key, check_value

T = TypeVar("T")


class SharedTree(Protocol):
    """A tree that several sessions share, and the way to change it."""

    @property
    def cluster_id(self) -> str:
        """The random id of the cluster."""
        ...

    @property
    def tree(self) -> Tree:
        """The state as far as it is durable."""
        ...

    @property
    def numbers(self) -> "Numbers":
        """What was given out of the counters."""
        ...

    @property
    def closed(self) -> bool:
        """Whether every session has ended."""
        ...

    async def turn(self, name: str) -> None:
        """Return when no write of this key or counter is on its way.

        What the caller does until its next `await` is then decided on the newest state.
        Raises `MetadataUnavailable` if nothing can be written any more.
        """
        ...

    def write(self, name: str, change: Change) -> "asyncio.Future[None]":
        """Begin to make a change durable, and then visible in the tree.

        The future ends when that is done; it must not be cancelled. Both it and the call raise
        `MetadataUnavailable`.
        """
        ...


class Numbers:
    """What was given out of the counters, and how many callers wait for a number."""

    def __init__(self) -> None:
        self.given: dict[str, int] = {}
        self.waiting: dict[str, int] = {}


class AbandonedWrites(Generic[T]):
    """The writes of one session that continue though their callers were cancelled."""

    def __init__(self) -> None:
        self._names: dict[asyncio.Future[T], str] = {}

    def add(self, name: str, writing: "asyncio.Future[T]") -> None:
        """Remember the write of a key until it ends, however it ends."""
        if not writing.done():
            self._names[writing] = name
            writing.add_done_callback(self._forget)

    async def settled(self, path: str, timeout_s: float | None = None) -> None:
        """Wait for the writes of a key, or of all keys under a path that ends in a slash.

        Raises `MetadataUnavailable` if one takes longer than the timeout.
        """
        writes = [writing for writing, name in self._names.items() if _within(name, path)]
        if writes:
            _, missing = await asyncio.wait(writes, timeout=timeout_s)
            if missing:
                raise MetadataUnavailable(
                    f"a write of {self._names[missing.pop()]} was cancelled and has not ended yet, "
                    "so its outcome is unknown"
                )

    def _forget(self, writing: "asyncio.Future[T]") -> None:
        del self._names[writing]
        if not writing.cancelled():
            # Nobody waits for it any more.
            writing.exception()


def _within(name: str, path: str) -> bool:
    return name == path or (path.endswith("/") and name.startswith(path))


class TreeSession:
    """A `MetadataStore` over a shared tree."""

    def __init__(self, shared: SharedTree, owner: int) -> None:
        self._shared = shared
        self._tree = shared.tree
        self._owner = owner
        self._open = True
        self._watches: dict[object, Callable[[], None]] = {}
        self._losses = Losses()
        self._abandoned = AbandonedWrites[None]()

    @property
    def cluster_id(self) -> str:
        """The random id given to the cluster when its store was first made."""
        return self._shared.cluster_id

    async def get(self, key: str) -> Versioned | None:
        """The value, or None if the key is positively absent."""
        await self._settled(key)
        return self._tree.get(key)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Make a key; returns its version."""
        check_key(key)
        check_value(value)
        await self._turn(key)
        self._tree.check_absent(key)
        change = Put(key, value, 0)
        if ephemeral:
            self._tree.make(change, self._owner)
        else:
            await self._make_durable(key, change)
        return 0

    async def set(self, key: str, value: bytes, version: int) -> int:
        """Compare-and-set; returns the new version."""
        check_key(key)
        check_value(value)
        await self._turn(key)
        self._tree.check_version(key, version)
        await self._change(key, Put(key, value, version + 1))
        return version + 1

    async def delete(self, key: str, version: int | None = None) -> None:
        """Remove a key; an absent one is a success."""
        check_key(key)
        await self._turn(key)
        if self._tree.get(key) is None:
            return
        if version is not None:
            self._tree.check_version(key, version)
        await self._change(key, Drop(key))

    async def children(self, prefix: str) -> list[str]:
        """The names directly under `prefix`, sorted."""
        await self._settled(f"{prefix.rstrip('/')}/")
        return self._tree.children(prefix)

    async def page(self, prefix: str, above: int = -1) -> Page:
        """The next numbers directly under `prefix` that are greater than `above`."""
        await self._settled(f"{prefix.rstrip('/')}/")
        return self._tree.page(prefix, above)

    async def next_id(self, counter: str) -> int:
        """A number never given before. All who wait for one share a write."""
        check_key(counter)
        numbers = self._shared.numbers
        name = f"#{counter}"
        numbers.waiting[counter] = numbers.waiting.get(counter, 0) + 1
        try:
            while True:
                await self._turn(name)
                reached = self._tree.counter(counter)
                given = numbers.given.setdefault(counter, reached)
                if given < reached:
                    numbers.given[counter] = given + 1
                    return given + 1
                change = Count(counter, reached + numbers.waiting[counter])
                await self._make_durable(name, change)
        finally:
            numbers.waiting[counter] -= 1

    async def sync(self) -> None:
        """Nothing to wait for: every read sees every write that has returned.

        It raises where a write would: a store that has stopped may have lost track of one.
        """
        await self._turn("")

    def watch(self, key: str, changed: Watcher) -> Callable[[], None]:
        """Call `changed` soon after a change; changes of one turn of the loop make one call."""
        watch = _Watch(asyncio.get_running_loop(), changed)
        end_in_tree = self._tree.watch(key, watch.fire)

        def end() -> None:
            watch.ended = True
            self._watches.pop(watch, None)
            end_in_tree()

        self._watches[watch] = end
        return end

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` when the session has expired."""
        return self._losses.watch(lost)

    async def close(self) -> None:
        """End the session: its watches and its ephemeral keys go. May be called twice."""
        self._end()

    def expire(self) -> None:
        """End the session at once, as a store does that has not heard of it for too long."""
        if self._open:
            self._end()
            self._losses.tell(asyncio.get_running_loop())

    def _end(self) -> None:
        if self._open:
            self._open = False
            for end in list(self._watches.values()):
                end()
            self._tree.end_session(self._owner)

    async def _change(self, key: str, change: Change) -> None:
        if self._tree.owner(key) is None:
            await self._make_durable(key, change)
        else:
            self._tree.make(change)

    async def _turn(self, name: str) -> None:
        self._check_open()
        await self._shared.turn(name)
        self._check_open()

    async def _make_durable(self, name: str, change: Change) -> None:
        writing = self._shared.write(name, change)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._abandoned.add(name, writing)
            raise

    async def _settled(self, path: str) -> None:
        self._check_open()
        await self._abandoned.settled(path)
        self._check_open()

    def _check_open(self) -> None:
        if not self._open or self._shared.closed:
            raise MetadataUnavailable("the session with the metadata store has ended")


class _Watch:
    """Defers and merges the calls of one watcher."""

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Watcher) -> None:
        self._loop = loop
        self._changed = changed
        self._due = False
        self.ended = False

    def fire(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._due = False
        if not self.ended:
            self._changed()

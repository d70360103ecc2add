"""A metadata session in memory that the test holds up: as one behind a slow network is.

Invariants:
- A request that is held has not reached the store; one whose reply is held has taken effect there.
- What is held goes on in its order when it is let go; nothing is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.metadata.contract import Page, Versioned
from engine.metadata.memory import MemoryStore, MemoryTree

T = TypeVar("T")


class HeldSession(MemoryStore):
    """A session whose requests, replies and notices can be held, each by itself."""

    def __init__(self, tree: MemoryTree, number: int) -> None:
        super().__init__(tree, number)
        self.before: Callable[[str, str], None] = lambda kind, key: None
        """Called with each call before it is sent: it may hold what follows."""
        self.after: Callable[[str, str], None] = lambda kind, key: None
        """Called with each call that has taken effect."""
        self._requests, self._replies, self._notices = _Gate(), _Gate(), _Gate()

    def hold(self, *, requests: bool = True, replies: bool = False, notices: bool = True) -> None:
        """Hold what begins from now on."""
        for gate, wanted in self._gates(requests, replies, notices):
            if wanted:
                gate.shut()

    def let_go(self, *, requests: bool = True, replies: bool = True, notices: bool = True) -> None:
        """Release everything that is held, and hold nothing more."""
        for gate, wanted in self._gates(requests, replies, notices):
            if wanted:
                gate.open()

    async def get(self, key: str) -> Versioned | None:
        return await self._through("get", key, lambda: MemoryStore.get(self, key))

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        def call() -> Awaitable[int]:
            return MemoryStore.create(self, key, value, ephemeral=ephemeral)

        return await self._through("create", key, call)

    async def set(self, key: str, value: bytes, version: int) -> int:
        return await self._through("set", key, lambda: MemoryStore.set(self, key, value, version))

    async def delete(self, key: str, version: int | None = None) -> None:
        return await self._through("delete", key, lambda: MemoryStore.delete(self, key, version))

    async def children(self, prefix: str) -> list[str]:
        return await self._through("children", prefix, lambda: MemoryStore.children(self, prefix))

    async def page(self, prefix: str, above: int = -1) -> Page:
        return await self._through("page", prefix, lambda: MemoryStore.page(self, prefix, above))

    async def next_id(self, counter: str) -> int:
        return await self._through("next_id", counter, lambda: MemoryStore.next_id(self, counter))

    async def sync(self) -> None:
        return await self._through("sync", "", lambda: MemoryStore.sync(self))

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        return super().watch(key, lambda: self._notices.when_open(changed))

    def _gates(
        self, requests: bool, replies: bool, notices: bool
    ) -> tuple[tuple["_Gate", bool], ...]:
        wanted = (requests, replies, notices)
        return tuple(zip((self._requests, self._replies, self._notices), wanted, strict=True))

    async def _through(self, kind: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        self.before(kind, key)
        # What was sent arrives, even if its sender is cancelled meanwhile and hears of nothing.
        sent = asyncio.ensure_future(self._sent(kind, key, call))
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(sent)

    async def _sent(self, kind: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._requests.passed()
        try:
            result = await call()
        finally:
            self.after(kind, key)
            await self._replies.passed()
        return result


class _Gate:
    """Open, or shut with those who wait in their order."""

    def __init__(self) -> None:
        self._shut = False
        self._waiting: list[Callable[[], None]] = []

    def shut(self) -> None:
        """Let nothing pass any more."""
        self._shut = True

    def open(self) -> None:
        """Let all pass, in their order."""
        self._shut = False
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def when_open(self, go_on: Callable[[], None]) -> None:
        """Call it now, or when the gate is opened."""
        if self._shut:
            self._waiting.append(go_on)
        else:
            go_on()

    async def passed(self) -> None:
        """Wait while it is shut."""
        if self._shut:
            opened = asyncio.Event()
            self._waiting.append(opened.set)
            await opened.wait()

"""What several openers on one event loop share: it is opened by the first and closed by the last.

Invariants:
- On one loop, at most one object of a name is open at a time: a caller that opens it while the last
  holder closes it waits until it is closed, and opens it again. Only an object that was forgotten
  may still be open at the same time.
- If opening fails, the caller that asked for it gets the error; the next one tries again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class _Shared(Generic[T]):
    """Something that is open on one loop, and how many use it."""

    def __init__(self) -> None:
        self.holders = 0
        self.changing = asyncio.Lock()
        self.stack = AsyncExitStack()
        self.opened: T | None = None


class Sharing(Generic[T]):
    """All that is open, by loop and name."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], _Shared[T]] = {}

    @asynccontextmanager
    async def use(
        self, name: str, opening: Callable[[], AbstractAsyncContextManager[T]]
    ) -> AsyncIterator[T]:
        """What is open under a name, as long as the block lasts; `opening` opens it if need be."""
        key = (id(asyncio.get_running_loop()), name)
        shared = self._open.setdefault(key, _Shared())
        shared.holders += 1
        try:
            async with shared.changing:
                if shared.opened is None:
                    shared.opened = await shared.stack.enter_async_context(opening())
            yield shared.opened
        finally:
            shared.holders -= 1
            if not shared.holders:
                await self._close(key, shared)

    async def _close(self, key: tuple[int, str], shared: _Shared[T]) -> None:
        async with shared.changing:
            shared.opened = None
            try:
                await shared.stack.aclose()
            finally:
                if not shared.holders and self._open.get(key) is shared:
                    del self._open[key]

    def forget(self, name: str) -> None:
        """Who opens it from now on opens another one; those who have it keep it."""
        self._open.pop((id(asyncio.get_running_loop()), name), None)

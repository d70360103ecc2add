"""A metadata store whose every call ends in time.

Invariants:
- A call that has no answer within the timeout raises `MetadataUnavailable`, which says, as always,
  that a write may have happened.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.errors import MetadataUnavailable
from engine.metadata.contract import MetadataStore, Page, ServerClock, Versioned

T = TypeVar("T")


class DeadlineStore:
    """Wraps a `MetadataStore` and bounds each call by `timeout_ms`."""

    def __init__(self, store: MetadataStore, timeout_ms: int) -> None:
        self._store = store
        self._timeout_s = timeout_ms / 1000

    @property
    def cluster_id(self) -> str:
        return self._store.cluster_id

    async def get(self, key: str) -> Versioned | None:
        return await self._bounded(self._store.get(key))

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._bounded(self._store.create(key, value, ephemeral=ephemeral))

    async def set(self, key: str, value: bytes, version: int) -> int:
        return await self._bounded(self._store.set(key, value, version))

    async def delete(self, key: str, version: int | None = None) -> None:
        await self._bounded(self._store.delete(key, version))

    async def children(self, prefix: str) -> list[str]:
        return await self._bounded(self._store.children(prefix))

    async def page(self, prefix: str, above: int = -1) -> Page:
        return await self._bounded(self._store.page(prefix, above))

    async def next_id(self, counter: str) -> int:
        return await self._bounded(self._store.next_id(counter))

    async def server_ms(self) -> int | None:
        """The wall clock of the store's server, in milliseconds; None if it is not on another
        machine. Raises `MetadataUnavailable`.
        """
        if not isinstance(self._store, ServerClock):
            return None
        return await self._bounded(self._store.server_ms())

    async def sync(self) -> None:
        await self._bounded(self._store.sync())

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(key, changed)

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch_session(lost)

    async def close(self) -> None:
        await self._store.close()

    async def _bounded(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError as error:
            raise MetadataUnavailable("the metadata store did not answer in time") from error

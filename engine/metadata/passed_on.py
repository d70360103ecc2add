"""A metadata store that a server passes on to its clients: their sessions share the server's own.

A thousand clients need a thousand connections to servers, which they have anyway, and no session of
ZooKeeper.

Invariants:
- Nothing rests on such a session: it has no ephemeral keys, and its end takes no key away.
- Its watches end with it.
- However many sessions ask for the time, the store is asked at most once a minute, or once a second
  as long as it has not answered.
- It sees every write that had returned, at any server, before the session began. A client that
  comes from another server never sees an older state than it saw there.
"""

from collections.abc import Callable
from typing import Final

from engine.errors import InvalidRequest
from engine.metadata.contract import MetadataStore, Page, ServerClock, Versioned

_EPHEMERAL: Final = "a server keeps no ephemeral keys for its clients: connect to ZooKeeper"


class PassedOn:
    """One client's session. A `MetadataStore` and a `ServerClock`; all sessions share `time`."""

    def __init__(self, store: MetadataStore, time: ServerClock | None = None) -> None:
        self._store = store
        self._time = time
        self._ends: dict[object, Callable[[], None]] = {}
        self._current = False
        """Whether the store has caught up with the writes from before this session."""

    @property
    def cluster_id(self) -> str:
        """See `MetadataStore`."""
        return self._store.cluster_id

    async def get(self, key: str) -> Versioned | None:
        """See `MetadataStore.get`."""
        await self._catch_up()
        return await self._store.get(key)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """See `MetadataStore.create`. Raises `InvalidRequest` for an ephemeral key, too."""
        if ephemeral:
            raise InvalidRequest(_EPHEMERAL)
        return await self._store.create(key, value)

    async def set(self, key: str, value: bytes, version: int) -> int:
        """See `MetadataStore.set`."""
        return await self._store.set(key, value, version)

    async def delete(self, key: str, version: int | None = None) -> None:
        """See `MetadataStore.delete`."""
        await self._store.delete(key, version)

    async def children(self, prefix: str) -> list[str]:
        """See `MetadataStore.children`."""
        await self._catch_up()
        return await self._store.children(prefix)

    async def page(self, prefix: str, above: int = -1) -> Page:
        """See `MetadataStore.page`."""
        await self._catch_up()
        return await self._store.page(prefix, above)

    async def next_id(self, counter: str) -> int:
        """See `MetadataStore.next_id`."""
        return await self._store.next_id(counter)

    async def sync(self) -> None:
        """See `MetadataStore.sync`."""
        await self._store.sync()
        self._current = True

    async def server_ms(self) -> int | None:
        """See `ServerClock.server_ms`."""
        return None if self._time is None else await self._time.server_ms()

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        mark, stop = object(), self._store.watch(key, changed)
        self._ends[mark] = stop

        def end() -> None:
            if self._ends.pop(mark, None) is not None:
                stop()

        return end

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """See `MetadataStore.watch_session`: nothing rests on this one."""
        return lambda: None

    async def close(self) -> None:
        """End the watches. The store goes on."""
        ends, self._ends = list(self._ends.values()), {}
        for end in ends:
            end()

    async def _catch_up(self) -> None:
        if not self._current:
            await self.sync()

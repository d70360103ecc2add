"""Holds all logs of a store for a moment, so that a backup can read all their ends at once.

    /hold    ephemeral: the holder of the logs, and the attempt's number; exists while a backup
             reads the ends of the logs

A leader that sees the key appends nothing until the key is deleted. New proposals wait meanwhile;
appends that were already sent are acknowledged as usual.

Invariants:
- Safety does not depend on a hold: a backup reads twice to check that nothing changed. If a leader
  sees the key late, or not at all, the backup just reads again.
- A leader waits at most `HOLD_MS` each time the key is created, whatever happens to its creator and
  to the metadata store. Each creation has its own value, and no value holds a leader twice.
- A leader that is about to end its log does not wait.
- The logs that use one session of a store share one watch, and one read of the key per change.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final
from weakref import WeakValueDictionary

from engine.errors import EngineError, KeyExists
from engine.metadata.contract import MetadataStore

HOLD: Final = "/hold"
HOLD_MS: Final = 1_000


@contextlib.asynccontextmanager
async def logs_held(store: MetadataStore, owner: str, number: int) -> AsyncIterator[None]:
    """Ask the leaders of all logs to append nothing until the block ends, or for `HOLD_MS`.

    It does not wait until they stop. `owner` is a unique name, `number` a different one each time.
    Raises `KeyExists` if somebody else already holds the logs, and `MetadataUnavailable`.
    """
    value = f"{owner} {number}".encode()
    try:
        await store.create(HOLD, value, ephemeral=True)
    except KeyExists:
        found = await store.get(HOLD)
        if found is None or not found.value.startswith(f"{owner} ".encode()):
            raise
        # Left by an earlier hold whose key could not be deleted.
        await store.delete(HOLD)
        await store.create(HOLD, value, ephemeral=True)
    try:
        yield
    finally:
        # If this fails, leaders continue by themselves.
        with contextlib.suppress(EngineError):
            await store.delete(HOLD)


class Hold:
    """Whether one log's leader is asked to append nothing now. Logs of one store share a watch."""

    def __init__(self, store: MetadataStore, released: Callable[[], None]) -> None:
        shared = _holds.get(id(store))
        if shared is None:
            shared = _holds[id(store)] = StoreHold(store)
        self._shared: StoreHold | None = shared
        shared.released[self] = released

    @property
    def on(self) -> bool:
        """Whether the logs are held."""
        return self._shared is not None and self._shared.on

    def close(self) -> None:
        """Stop watching. `released` is not called. May be called twice."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.leave(self)


class StoreHold:
    """Whether the logs that use one session of a store are held."""

    def __init__(self, store: MetadataStore) -> None:
        self.on = False
        self.released: dict[Hold, Callable[[], None]] = {}
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._seen = b""
        self._again = False
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch = store.watch(HOLD, self._changed)

    def leave(self, hold: Hold) -> None:
        """Remove a log. If it was the last one, end the watch."""
        del self.released[hold]
        if self.released:
            return
        del _holds[id(self._store)]
        self._unwatch()
        for each in (self._looking, self._timer):
            if each is not None:
                each.cancel()

    def _changed(self) -> None:
        self._again = True
        if self._looking is None:
            self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        try:
            while self._again:
                self._again = False
                try:
                    found = await self._store.get(HOLD)
                except EngineError:
                    found = None
                self._learn(None if found is None else found.value)
        finally:
            self._looking = None

    def _learn(self, value: bytes | None) -> None:
        if value is None:
            # The key does not exist, or could not be read. `_seen` stays: if the same key is read
            # again after a failed read, it does not hold the logs a second time.
            self._release()
        elif value != self._seen:
            self._seen = value
            self.on = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(HOLD_MS / 1000, self._release)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.on:
            self.on = False
            for released in list(self.released.values()):
                released()


_holds: WeakValueDictionary[int, StoreHold] = WeakValueDictionary()
"""Keyed by the `id()` of the store, which each value keeps alive."""

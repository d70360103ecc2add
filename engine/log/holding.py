"""Holds all logs of a store for a moment, so that a backup can read all their ends at once.

    /hold    ephemeral: who holds the logs, and the number of the try; exists while a backup reads
             the ends of the logs

A leader that sees the key appends nothing until the key is deleted. New proposals wait meanwhile;
appends that were already sent are acknowledged as usual.

Invariants:
- Safety does not depend on a hold: a backup reads twice to check that nothing changed. If a leader
  sees the key late, or not at all, the backup just reads again.
- A leader waits at most `HOLD_MS` each time the key is created, whatever happens to its creator and
  to the metadata store. A leader that is about to end its log does not wait.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

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
    """Whether one log's leader is asked to append nothing now."""

    def __init__(self, store: MetadataStore, released: Callable[[], None]) -> None:
        self.on = False
        self._store = store
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._seen: bytes | None = None
        self._again = False
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch = store.watch(HOLD, self._changed)

    def close(self) -> None:
        """Stop watching. `released` is not called."""
        self._unwatch()
        self.on = False
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
        if value == self._seen:
            return
        self._seen = value
        if value is None:
            self._release()
            return
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
            self._released()

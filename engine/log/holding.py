"""Letting all logs of a store stand still for a moment, so that their ends are of one moment.

    /hold    ephemeral: who wants it, and for which time; there while a backup looks where logs end

Whoever leads a log and sees the key appends nothing more until it goes. What is proposed meanwhile
waits, what was sent is acknowledged as ever.

Invariants:
- Nobody's safety rests on a hold: a backup looks twice whether anything moved. A leader that sees
  the key late, or not at all, only makes it look again.
- A leader waits `HOLD_MS` at most for each time that the key is made, whatever becomes of who made
  it and of the metadata store. One that is to end its log does not wait.
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

    It does not wait until they do. `owner` is a name that nobody else has, `number` another one
    each time. Raises `KeyExists` where somebody else asks for it already, `MetadataUnavailable`.
    """
    value = f"{owner} {number}".encode()
    try:
        await store.create(HOLD, value, ephemeral=True)
    except KeyExists:
        found = await store.get(HOLD)
        if found is None or not found.value.startswith(f"{owner} ".encode()):
            raise
        # Of an earlier time, whose end could not be told.
        await store.delete(HOLD)
        await store.create(HOLD, value, ephemeral=True)
    try:
        yield
    finally:
        # Where that fails leaders go on by themselves.
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
        """Be asked no more. `released` is not called."""
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

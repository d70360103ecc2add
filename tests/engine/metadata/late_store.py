"""Cancels callers at one await after another, while the store continues without them.

Invariants:
- A write whose caller was cancelled takes effect when the test says so, and no read waits for it:
  so it is with a connection that was lost while the request was on its way.
"""

import asyncio
import contextlib
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from engine.errors import EngineError
from engine.metadata.memory import FaultyStore, MemoryStore

T = TypeVar("T")

_TURNS = 3


class LateStore(FaultyStore):
    """A session whose writes take some turns of the loop, even if nobody waits any more."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._under_way: list[Callable[[], Awaitable[object]]] = []

    async def land(self) -> int:
        """Let every write take effect whose caller was cancelled; returns how many there were."""
        under_way, self._under_way = self._under_way, []
        for write in under_way:
            with contextlib.suppress(EngineError):
                await write()
        return len(under_way)

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        try:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._under_way.append(write)
            raise
        return await super()._write(write)


async def cancelled_at(place: int, work: Coroutine[Any, Any, object]) -> bool:
    """Run `work` and cancel it at its await number `place`, from 1 on; whether it came to that.

    What it raises by itself before that is raised.
    """
    task = asyncio.get_running_loop().create_task(_cancelling(place, work))
    await asyncio.wait([task])
    if task.cancelled():
        return True
    return task.result()


@types.coroutine
def _cancelling(place: int, work: Coroutine[Any, Any, object]) -> Generator[Any, Any, bool]:
    passed = 0
    error: BaseException | None = None
    while True:
        try:
            waited_for = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return passed >= place
        passed += 1
        if passed == place:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            error = None
            yield waited_for
        except BaseException as raised:
            error = raised

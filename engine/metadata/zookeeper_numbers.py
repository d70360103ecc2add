"""Numbers that are given once, from one node a counter, by compare-and-set.

Invariants:
- A number is taken for callers that already wait when it is taken. None is kept for later ones: it
  would be lower than numbers that others were given before they asked.
- A number whose caller is gone, or whose reply was lost, is given to nobody.
"""

import asyncio

from engine.errors import EngineError, KeyExists, NotFound, VersionConflict
from engine.metadata.contract import Versioned
from engine.metadata.zookeeper_client import ZooKeeperClient
from engine.metadata.zookeeper_paths import Layout

Waiting = list["asyncio.Future[int]"]


class Numbers:
    """The counters of one store; all who wait for a number of one share a write."""

    def __init__(self, layout: Layout, client: ZooKeeperClient) -> None:
        self._layout = layout
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, Waiting] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def next(self, counter: str) -> int:
        """A number never given before, higher than those given before this call. From 1 on.

        Raises `InvalidRequest`, `ConnectionLost`, `MetadataUnavailable`.
        """
        path = self._layout.counter(counter)
        number: asyncio.Future[int] = self._loop.create_future()
        self._waiting.setdefault(path, []).append(number)
        if path not in self._tasks:
            self._tasks[path] = self._loop.create_task(self._give(path))
        return await number

    def close(self) -> None:
        """Give out nothing more."""
        for task in self._tasks.values():
            task.cancel()

    async def _give(self, path: str) -> None:
        """Take numbers for those who wait, and for those who came meanwhile, until none is left."""
        stored: Versioned | None = None
        try:
            while path in self._waiting:
                waiting = self._waiting.pop(path)
                try:
                    first, stored = await self._take(path, waiting, stored)
                except EngineError as error:
                    stored = None
                    for number in waiting:
                        if not number.done():
                            number.set_exception(error)
                    continue
                for place, number in enumerate(waiting):
                    if not number.done():
                        number.set_result(first + place)
        finally:
            del self._tasks[path]

    async def _take(
        self, path: str, waiting: Waiting, stored: Versioned | None
    ) -> tuple[int, Versioned | None]:
        """Raise the counter by as many as wait; returns the first number, and what is stored."""
        client = self._client
        while any(not number.done() for number in waiting):
            try:
                stored = stored or await client.get(path)
                reached = int(stored.value)
                value = b"%d" % (reached + len(waiting))
                version = await client.set(path, value, stored.version)
                return reached + 1, Versioned(value, version)
            except VersionConflict:
                stored = None
            except NotFound:
                # Only a set finds the node gone that was there before: read again.
                if stored is not None:
                    stored = None
                    continue
                value = b"%d" % len(waiting)
                try:
                    await client.create(path, value)
                    return 1, Versioned(value, 0)
                except KeyExists:
                    continue
        return 0, None

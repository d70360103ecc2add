"""What a folder and a cluster have in common for programs without an event loop.

Invariants:
- All of it runs on the one background loop of the process.
- What its program forgets is closed when the process ends; in a forked child closing does nothing.
"""

import atexit
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Self

from blobit import Blobs
from engine.ports.system_loop import background_loop
from herd.connection import Connection
from herd.hopping import Hopper
from herd.opening import Herd
from herd.store import DEFAULT

if TYPE_CHECKING:
    from broker.sync import Tasks
    from herdbook.book import AsyncBook
    from herdbook.connecting import AsyncCluster


class Opened:
    """Blobs, tables and tasks as long as they are open; a context manager."""

    def __init__(self, opening: "AbstractAsyncContextManager[AsyncBook | AsyncCluster]") -> None:
        self._loop = background_loop()
        self._opening = opening
        self._book = self._loop.run(opening.__aenter__)
        self._closed = False
        self._tasks: Tasks | None = None
        self.blobs = Blobs(self._book.blobs, self._loop)
        """Buckets of named objects, and objects by id."""
        self.herd = Herd(self._book.herd, Hopper(self._loop))
        """Tablespaces: tables by SQL and by key."""
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """What another process opens it by, too: a folder's absolute path, or a cluster's url."""
        return self._book.url

    @property
    def tasks(self) -> "Tasks":
        """Tasks: submit, wait, schedule; a folder's run, too. Raises `BrokerUnavailable`."""
        if self._tasks is None:
            # Loaded on first use, like all of the broker: most programs have no tasks.
            from broker.sync import Tasks

            self._tasks = Tasks(self._loop.run(self._book.tasks), self._loop)
        return self._tasks

    def sql(self, tablespace: str = DEFAULT, *, autocommit: bool = False) -> Connection:
        """A connection of PEP 249 to a tablespace. Close it. Raises what is in `herd.errors`."""
        return self.herd.connect(tablespace, autocommit=autocommit)

    def close(self) -> None:
        """Let go of it. May be called twice; in a forked child it does nothing."""
        atexit.unregister(self.close)
        if not self._closed and self._loop.usable:
            self._closed = True
            self._loop.run(self._end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _end(self) -> None:
        await self._opening.__aexit__(None, None, None)

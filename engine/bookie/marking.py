"""Marks that a running bookie sets, so that a copy of its folder made earlier is told as old.

A start alone would tell only copies from before it. A mark raises the folder's age too: now and
then while the bookie runs, and last of all when it has ended well. A copy that lacks the newest
mark does not start any more.

Invariants:
- A mark stands durably in the folder before the metadata store remembers it.
- The last mark comes after the last byte of the journal.
- If the store refuses a mark because it has a newer start or mark, another copy of the folder runs:
  `on_superseded` is called.
- After a write of the folder that failed no mark is set any more: what is there is not known.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from engine.bookie.folder import FolderIdentity, write_identity
from engine.errors import EngineError, FolderRolledBack
from engine.metadata.bookies import Bookies
from engine.ports.disk import Disk
from engine.ports.workers import Workers


class Marker:
    """Sets the marks of one start of a folder. `interval_ms` lies between two."""

    def __init__(
        self,
        disk: Disk,
        workers: Workers,
        bookies: Bookies,
        identity: FolderIdentity,
        interval_ms: int,
    ) -> None:
        self._disk = disk
        self._workers = workers
        self._bookies = bookies
        self._identity = identity
        self._interval_s = interval_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[bool] | None = None
        self._broken = False
        self.on_superseded: Callable[[EngineError], None] = not_told

    def start(self) -> None:
        """Begin to set marks."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Set no more marks; a write of the folder that is under way ends first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._writing is not None:
            await self._writing

    async def mark(self) -> None:
        """Set one mark, if that can be done. What cannot be said leaves the folder as good."""
        if self._broken:
            return
        self._identity = msgspec.structs.replace(self._identity, mark=self._identity.mark + 1)
        # A write in its thread cannot be called back: who stops waits for its end.
        self._writing = asyncio.ensure_future(self._write(self._identity))
        if not await asyncio.shield(self._writing):
            return
        try:
            await self._bookies.raise_age(self._identity.bookie_id, self._identity.age)
        except FolderRolledBack as error:
            self._broken = True
            self.on_superseded(error)
        except EngineError:
            # Only a later mark will reach the store.
            return

    async def _write(self, identity: FolderIdentity) -> bool:
        try:
            await self._workers.run(partial(write_identity, self._disk, identity))
        except OSError:
            self._broken = True
        return not self._broken

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.mark()


def not_told(error: Exception) -> None:
    """The default callback: do nothing, because there is nothing to stop yet."""

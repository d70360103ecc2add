"""A metadata store in a folder: the same tree as in memory, made durable by a log.

Invariants:
- The tree holds durable values only: a change is made in it after its batch was synced.
- Writes that come while a batch is in the disk make the next batch: one sync for all of them.
- After a failed sync the store writes nothing more; what it knows to be durable stays readable.
  When a batch cannot be written (a full disk), only its callers are refused.
- A write whose caller was cancelled continues.
- A rewrite begins only while nothing is in the disk: the tree is then what the log says.
"""

import asyncio
import errno
import random
from collections import deque
from functools import partial
from typing import Final

import msgspec

from engine.errors import DiskFull, FolderDamaged, MetadataUnavailable
from engine.limits import MIB
from engine.metadata.facts_log import FactsLog, open_log
from engine.metadata.session import Numbers, TreeSession
from engine.metadata.tree import Change, Put, Tree
from engine.ports.disk import Disk
from engine.ports.workers import Workers

_QUEUE_BYTES_MAX: Final = 16 * MIB
_IDLE_MARK_S: Final = 1.0


class LocalStore(TreeSession):
    """A `MetadataStore` in a folder, and the sessions of whoever else uses the folder.

    The store itself is its owner's session; `session()` gives every other opener one.
    """

    def __init__(self, shared: "LocalTree") -> None:
        super().__init__(shared, owner=0)
        self._local = shared

    @staticmethod
    async def open(disk: Disk, workers: Workers, rng: random.Random) -> "LocalStore":
        """Open the store in a disk's root, or make one there.

        Raises `FolderDamaged`, `FolderMismatch` and `FormatTooNew`, with nothing changed, and
        `MetadataUnavailable` if the folder cannot be read or written.
        """
        fresh_cluster_id = f"{rng.getrandbits(128):032x}"
        try:
            log, tree = await workers.run(partial(open_log, disk, fresh_cluster_id))
        except DiskFull:
            raise
        except OSError as error:
            if error.errno == errno.EIO:
                raise FolderDamaged(f"the metadata log cannot be read: {error}") from error
            raise MetadataUnavailable(f"the metadata folder cannot be used: {error}") from error
        return LocalStore(LocalTree(log, tree, workers))

    def session(self) -> TreeSession:
        """One more session; its ephemeral keys go with it."""
        return self._local.session()

    async def close(self) -> None:
        """Finish the writes on their way and end every session. May be called twice."""
        await self._local.close()
        await super().close()


class _Write:
    """A change, and who waits for it."""

    __slots__ = ("answer", "change", "name", "size_bytes")

    def __init__(self, name: str, change: Change, answer: "asyncio.Future[None]") -> None:
        self.name = name
        self.change = change
        self.answer = answer
        self.size_bytes = 64 + (len(change.value) if isinstance(change, Put) else 0)


class _Rewrite(msgspec.Struct, frozen=True):
    """Asks for a new log that says just this."""

    changes: list[Change]


class _Mark(msgspec.Struct, frozen=True):
    """Asks for a mark: what was synced is then known to have been."""


_Job = _Write | _Rewrite | _Mark


class LocalTree:
    """The tree that the sessions of a folder share, and the way its changes take to the disk."""

    def __init__(self, log: FactsLog, tree: Tree, workers: Workers) -> None:
        self.cluster_id = log.cluster_id
        self.tree = tree
        self.numbers = Numbers()
        self.closed = False
        self._failure: str | None = None
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._batcher = workers.batcher("metadata-log", partial(_commit, log), self._done)
        self._sessions = 0
        self._writes: dict[str, asyncio.Future[None]] = {}
        self._held: deque[_Write] = deque()
        self._in_disk = 0
        self._rewrite_due = True
        self._queued_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._batches = 0
        self._mark_timer: asyncio.TimerHandle | None = None

    def session(self) -> TreeSession:
        """A new session."""
        self._sessions += 1
        return TreeSession(self, self._sessions)

    async def turn(self, name: str) -> None:
        """Return when no write of this name is on its way and the queue has room."""
        while True:
            self._check_running()
            blocker = self._writes.get(name)
            if blocker is None and self._queued_bytes > _QUEUE_BYTES_MAX:
                self._room = self._room or self._loop.create_future()
                blocker = self._room
            if blocker is None:
                return
            await asyncio.wait([blocker])

    def write(self, name: str, change: Change) -> "asyncio.Future[None]":
        """Begin to make a change durable, then visible. Raises `MetadataUnavailable`."""
        self._check_running()
        assert name not in self._writes, name
        job = _Write(name, change, self._loop.create_future())
        self._writes[name] = job.answer
        self._queued_bytes += job.size_bytes
        if self._rewrite_due:
            self._held.append(job)
            self._rewrite_if_quiet()
        else:
            self._put(job)
        return job.answer

    async def close(self) -> None:
        """Finish what is on its way, mark the log's end and close it. May be called twice."""
        was_closed, self.closed = self.closed, True
        while self._writes:
            await asyncio.wait(list(self._writes.values()))
        if not was_closed:
            if self._mark_timer is not None:
                self._mark_timer.cancel()
            self._mark_if_quiet()
        await self._batcher.close()
        self._log.close()

    def _put(self, job: _Job) -> None:
        self._in_disk += 1
        self._batcher.put(job)

    def _rewrite_if_quiet(self) -> None:
        """Queue the rewrite, and behind it what was held for it, if the disk has nothing else."""
        if self._in_disk == 0:
            self._rewrite_due = False
            self._put(_Rewrite(list(self.tree.lasting())))
            while self._held:
                self._put(self._held.popleft())

    def _done(self, jobs: list[_Job], done: bool | None, error: BaseException | None) -> None:
        """Hear from the disk that a batch is durable, or was not written, or that all is over."""
        self._in_disk -= len(jobs)
        self._batches += 1
        writes = [job for job in jobs if isinstance(job, _Write)]
        refusal = None if done else "the metadata folder takes no writes at the moment"
        if error is not None:
            self._failure = refusal = f"the metadata store has stopped: {error}"
            writes += self._held
            self._held.clear()
        self._answer(writes, refusal)
        if self._failure is not None:
            return
        self._rewrite_due = self._rewrite_due or self._log.needs_rewrite
        if self._held:
            self._rewrite_if_quiet()
        if self._mark_timer is None:
            self._mark_later(self._batches)

    def _answer(self, writes: list[_Write], refusal: str | None) -> None:
        for write in writes:
            del self._writes[write.name]
            self._queued_bytes -= write.size_bytes
            if refusal is None:
                self.tree.make(write.change)
                write.answer.set_result(None)
            else:
                write.answer.set_exception(MetadataUnavailable(refusal))
                # Who waited may be gone; then nobody is left to be told, and that is fine.
                write.answer.exception()
        if self._room is not None and self._queued_bytes <= _QUEUE_BYTES_MAX:
            self._room.set_result(None)
            self._room = None

    def _mark_later(self, batches: int) -> None:
        """Mark the log's end when the disk has been idle for a while."""

        def wake() -> None:
            self._mark_timer = None
            if self._batches == batches:
                self._mark_if_quiet()
            else:
                self._mark_later(self._batches)

        if not self.closed and self._lacks_mark():
            self._mark_timer = self._loop.call_later(_IDLE_MARK_S, wake)

    def _mark_if_quiet(self) -> None:
        if self._in_disk == 0 and self._failure is None and self._lacks_mark():
            self._put(_Mark())

    def _lacks_mark(self) -> bool:
        # A log that is to be rewritten takes none, and gets one with the rewrite.
        return not self._log.has_mark and not self._rewrite_due

    def _check_running(self) -> None:
        if self.closed or self._failure is not None:
            raise MetadataUnavailable(self._failure or "the metadata store is closed")


def _commit(log: FactsLog, jobs: list[_Job]) -> bool:
    """Make jobs durable in one sync; False if they were not written. Runs in the log's thread."""
    if isinstance(jobs[0], _Rewrite):
        try:
            log.rewrite(jobs[0].changes)
        except OSError:
            return False
    changes = [job.change for job in jobs if isinstance(job, _Write)]
    if changes or isinstance(jobs[-1], _Mark):
        return log.append(changes)
    return True

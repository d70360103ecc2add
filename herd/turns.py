"""Process many rows on the event loop without blocking it.

    async for row in in_turns(rows):
        ...

A leader that does not respond for a second loses its lease, so no statement blocks the event loop
for longer than a few hundred rows take.

Invariants:
- Other tasks may run between two rows, so anything that was read before may have changed, unless a
  lock protects it.
- The long statements of one user are parsed one at a time, so that a statement of another user
  waits for at most one statement of each user.
- A thread that parses a long statement pauses often. A thread that never pauses would get the
  interpreter lock as often as the event loop does, and slow down everything in the event loop.
"""

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from engine.ports.workers import Workers
from herd.permits import asked_by

T = TypeVar("T")

ROWS_AT_ONCE: Final = 500
"""The number of rows that are processed before other tasks may run."""


async def in_turns(rows: Iterable[T]) -> AsyncIterator[T]:
    """Yield the rows one by one, and let other tasks run after every `ROWS_AT_ONCE` rows."""
    left = ROWS_AT_ONCE
    for row in rows:
        if not left:
            await asyncio.sleep(0)
            left = ROWS_AT_ONCE
        left -= 1
        yield row


async def in_parts(rows: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Yield slices of `ROWS_AT_ONCE` rows: cheaper if each row needs little work."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        yield rows[start : start + ROWS_AT_ONCE]


_LONG_AT_ONCE: Final = 2
_long: Final["weakref.WeakKeyDictionary[Workers, _Long]"] = weakref.WeakKeyDictionary()


class _Long:
    """Limits how many long statements are parsed at once in the threads of some workers."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(_LONG_AT_ONCE)
        self._of: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def of(self, user: str) -> asyncio.Lock:
        """The lock of a user. If there is no user, each statement gets a lock of its own."""
        if not user:
            return asyncio.Lock()
        return self._of.setdefault(user, asyncio.Lock())


_here: Final = threading.local()
_PAUSE_S: Final = 0.0003


def give_way() -> None:
    """Let other threads run for a moment; outside of `read_long`, this does nothing."""
    if getattr(_here, "reads_long", False):
        time.sleep(_PAUSE_S)  # noqa: TID251 (in a worker's thread, for other threads)


def _giving_way(work: Callable[[], T]) -> T:
    _here.reads_long = True
    try:
        return work()
    finally:
        _here.reads_long = False


async def read_long(workers: Workers, work: Callable[[], T], user: str | None = None) -> T:
    """Parse or plan a long statement in a thread; at most two at a time, so that threads stay free.

    If `user` is None, the statement belongs to the user of the current request.
    """
    long = _long.get(workers)
    if long is None:
        long = _long[workers] = _Long()
    if user is None:
        asking = asked_by.get()
        user = "" if asking is None else asking.user
    room, own = long.room, long.of(user)
    await own.acquire()
    try:
        await room.acquire()
    except BaseException:
        own.release()
        raise
    job = asyncio.ensure_future(workers.run(partial(_giving_way, work)))

    def done(job: "asyncio.Future[T]") -> None:
        # The thread continues to its end, whether or not somebody still waits for it.
        room.release()
        own.release()
        if not job.cancelled():
            job.exception()

    job.add_done_callback(done)
    return await asyncio.shield(job)


async def until_done(job: "asyncio.Future[T]") -> None:
    """Wait until a job has ended, even if the waiting task is cancelled, once or repeatedly."""
    while not job.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([job])

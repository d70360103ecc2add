"""Many rows, worked through on the event loop without keeping it.

    async for row in in_turns(rows):
        ...

A leader that answers nobody for a second loses its lease, so no statement keeps the loop longer
than some hundreds of rows take.

Invariants:
- Others run between two rows, so what was looked at before a row may have changed by then, unless
  a lock keeps it.
"""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, TypeVar

from engine.ports.workers import Workers

T = TypeVar("T")

ROWS_AT_ONCE: Final = 500
"""So many rows are worked through without letting others run."""


async def in_turns(rows: Iterable[T]) -> AsyncIterator[T]:
    """The rows, one by one, with a pause for others after each `ROWS_AT_ONCE`."""
    left = ROWS_AT_ONCE
    for row in rows:
        if not left:
            await asyncio.sleep(0)
            left = ROWS_AT_ONCE
        left -= 1
        yield row


async def in_parts(rows: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The same in parts of `ROWS_AT_ONCE`, which cost less where a row needs little work."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        yield rows[start : start + ROWS_AT_ONCE]


_LONG_AT_ONCE: Final = 2
_long: Final["weakref.WeakKeyDictionary[Workers, asyncio.Semaphore]"] = weakref.WeakKeyDictionary()


async def read_long(workers: Workers, work: Callable[[], T]) -> T:
    """Parse or plan a long statement in a thread, at most two at a time, to keep others free."""
    room = _long.get(workers)
    if room is None:
        room = _long[workers] = asyncio.Semaphore(_LONG_AT_ONCE)
    await room.acquire()
    job = asyncio.ensure_future(workers.run(work))

    def done(job: "asyncio.Future[T]") -> None:
        # The thread continues to its end, whether or not somebody still waits for it.
        room.release()
        if not job.cancelled():
            job.exception()

    job.add_done_callback(done)
    return await asyncio.shield(job)


async def until_done(job: "asyncio.Future[T]") -> None:
    """Wait until a job has ended, even if the waiting task is cancelled, once or repeatedly."""
    while not job.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([job])

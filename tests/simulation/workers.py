"""Threads in virtual time: the batches of a journal and an index, and reads in a pool.

Invariants:
- A batcher takes all that is queued when its thread is free; meanwhile the next batch gathers.
- `work` runs at one instant, some disk time after the batch was taken; `done` follows later.
- Half of the batches that may be begun are, when they are taken.
- Jobs of a dead process call nothing. `cut_power` leaves the disk in the middle of a batch.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from tests.simulation.disk import PowerLoss, SimDisk
from tests.simulation.loop import Process, SimLoop

T = TypeVar("T")
R = TypeVar("R")

SYNC_S: Final = 0.002
READ_S: Final = 0.0005
_OPERATIONS_TO_TEAR: Final = 4


class SimBatcher(Generic[T]):
    """One imagined thread."""

    def __init__(
        self,
        workers: "SimWorkers",
        name: str,
        work: Callable[[list[T]], Any],
        done: Callable[[list[T], Any, BaseException | None], None],
        begin: Callable[[list[T]], None] | None,
    ) -> None:
        self.name = name
        self._begin = begin
        self._workers = workers
        self._work = work
        self._done = done
        self._queue: deque[T] = deque()
        self._busy = False
        self._closed = False
        self._taken: list[T] | None = None
        self._idle: asyncio.Future[None] | None = None

    def put(self, job: T) -> None:
        assert not self._closed, "put after close"
        self._queue.append(job)
        if not self._busy:
            self._busy = True
            self._workers.after(0.0, self._take)

    async def close(self) -> None:
        self._closed = True
        if self._busy:
            if self._idle is None:
                self._idle = self._workers.loop.create_future()
            await asyncio.shield(self._idle)

    def tear(self) -> None:
        """Run the batch in hand up to some operation of the disk, where the machine ends."""
        if self._taken is None:
            return
        disk, rng = self._workers.disk, self._workers.rng
        disk.lose_power_after = rng.randrange(_OPERATIONS_TO_TEAR)
        try:
            self._work(self._taken)
        except (PowerLoss, OSError):
            return

    def _take(self) -> None:
        jobs = list(self._queue)
        self._queue.clear()
        self._taken = jobs
        if self._begin is not None and self._workers.rng.random() < 0.5:
            self._begin(jobs)
        self._workers.after(self._workers.disk_time_s(SYNC_S), self._run, jobs)

    def _run(self, jobs: list[T]) -> None:
        self._taken = None
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._work(jobs)
        except Exception as raised:
            error = raised
        self._workers.after(
            self._workers.disk_time_s(SYNC_S) / 4, self._finish, jobs, result, error
        )

    def _finish(self, jobs: list[T], result: Any, error: BaseException | None) -> None:
        self._done(jobs, result, error)
        if self._queue:
            self._workers.after(0.0, self._take)
        else:
            self._busy = False
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)


class SimWorkers:
    """The threads of one process; implements `engine.ports.workers.Workers`."""

    def __init__(self, loop: SimLoop, process: Process, disk: SimDisk, rng: random.Random) -> None:
        self.loop = loop
        self.disk = disk
        self.rng = rng
        self.slowness = 1.0
        self._process = process
        self._batchers: list[SimBatcher[Any]] = []

    def batcher(
        self,
        name: str,
        work: Callable[[list[T]], R],
        done: Callable[[list[T], R | None, BaseException | None], None],
        *,
        lone_ms: float = 0.0,
        begin: Callable[[list[T]], None] | None = None,
    ) -> SimBatcher[T]:
        """Start an imagined thread."""
        batcher = SimBatcher(self, name, work, done, begin)
        self._batchers.append(batcher)
        return batcher

    async def run(self, work: Callable[[], R]) -> R:
        """Run a function after the time a read takes."""
        arrived: asyncio.Future[None] = self.loop.create_future()
        self.after(self.disk_time_s(READ_S), _wake, arrived)
        await arrived
        return work()

    def cut_power(self) -> None:
        """Leave every batch in hand where the machine happens to end."""
        for batcher in self._batchers:
            batcher.tear()

    def disk_time_s(self, usual_s: float) -> float:
        """How long one operation takes: rarely much longer than usual."""
        draw = self.rng.random()
        return usual_s * self.slowness * (0.2 + 1.6 * draw + (10.0 if draw > 0.99 else 0.0))

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Go on in this process, later."""
        self.loop.deliver_at(self.loop.now + delay_s, self._process, callback, *args)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

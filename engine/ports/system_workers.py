"""The machine's threads as `Workers`.

Invariants:
- A batch costs one hop to its thread and one back: `SimpleQueue` in, `call_soon_threadsafe` out.
- `done` hears of the batches in the order in which they were worked, each once.
- A loop that was closed meanwhile hears nothing more and harms no thread.
- Threads are daemons: a forgotten batcher does not keep the process alive.
- A batcher works in one place at a time: on the loop only while its thread has nothing. In one turn
  at most two batchers work on the loop; those beside them wake their threads before.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_POOL_THREADS_MAX: Final = 4
_ALONE_TO_BEGIN: Final = 8
"""So many jobs in a row must have been alone before one is worked on the loop."""
_HERE_MAX: Final = 2
"""So many batchers work on the loop in one turn: what more would do there is quicker in threads."""
_LATEST_SHARE: Final = 0.1
"""What the latest lone job counts for in the mean of how long they take."""


class _End:
    """Queued behind the last job."""


_END: Final = _End()


class ThreadWorkers:
    """`Workers` for one event loop: a thread a batcher, a small pool for everything else."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool_threads_max: int = _POOL_THREADS_MAX,
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`seconds` tells how long a batch takes."""
        assert pool_threads_max >= 1
        self._loop = loop
        self._seconds = seconds
        self._pool_threads_max = pool_threads_max
        self._calls: SimpleQueue[_Call | _End] = SimpleQueue()
        self._threads: list[asyncio.Future[None]] = []
        self._calls_pending = 0
        self._closed = False
        self._gathered: list[ThreadBatcher[Any]] = []

    def batcher(
        self,
        name: str,
        work: Callable[[list[T]], R],
        done: Callable[[list[T], R | None, BaseException | None], None],
        *,
        lone_ms: float = 0.0,
        begin: Callable[[list[T]], None] | None = None,
    ) -> "ThreadBatcher[T]":
        """Start a batcher; see `Workers.batcher`. Its owner closes it."""
        duty = _Duty(work, done, begin, self._seconds)
        return ThreadBatcher(self._loop, name, duty, lone_ms / 1000, self._gather)

    def _gather(self, batcher: "ThreadBatcher[Any]") -> None:
        """See to a batcher's jobs when this turn of the loop is over."""
        self._gathered.append(batcher)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        batchers, self._gathered = self._gathered, []
        here: list[ThreadBatcher[Any]] = []
        for batcher in batchers:
            if len(here) < _HERE_MAX and batcher.may_work_here:
                here.append(batcher)
            else:
                batcher.hand_over()
        for batcher in here if len(here) > 1 else ():
            batcher.begin_here()
        for batcher in here:
            batcher.work_here()

    async def run(self, work: Callable[[], R]) -> R:
        """Run a function in a pool thread and wait for its result, or raise what it raised.

        Cancelling the wait abandons the result; the function runs to its end.
        """
        assert not self._closed, "run after close"
        answer: asyncio.Future[R] = self._loop.create_future()
        self._calls_pending += 1
        if self._calls_pending > len(self._threads) < self._pool_threads_max:
            self._start_thread()
        self._calls.put(_Call(work, answer))
        return await answer

    async def close(self) -> None:
        """End the pool's threads once their calls are done. Batchers are their owners' to close."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._calls.put(_END)
        if self._threads:
            await asyncio.wait(self._threads)

    def _start_thread(self) -> None:
        ended: asyncio.Future[None] = self._loop.create_future()
        name = f"pool-{len(self._threads)}"
        self._threads.append(ended)
        threading.Thread(target=self._serve, args=(ended,), name=name, daemon=True).start()

    def _serve(self, ended: "asyncio.Future[None]") -> None:
        while not isinstance(call := self._calls.get(), _End):
            result: Any = None
            failure: BaseException | None = None
            try:
                result = call.work()
            except BaseException as error:
                failure = error
            _tell(self._loop, self._settle, call.answer, result, failure)
            # The thread waits next, perhaps for long: nothing of this call may stay alive in it.
            del call, result, failure
        _tell(self._loop, _finish, ended)

    def _settle(
        self, answer: "asyncio.Future[Any]", result: Any, failure: BaseException | None
    ) -> None:
        self._calls_pending -= 1
        if answer.done():
            return
        if failure is None:
            answer.set_result(result)
        elif isinstance(failure, StopIteration):
            # A future refuses this one, and the caller would wait for ever.
            answer.set_exception(RuntimeError("the function raised StopIteration"))
        else:
            answer.set_exception(failure)


class _Call:
    """One function for the pool, and who waits for it."""

    __slots__ = ("answer", "work")

    def __init__(self, work: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        self.work = work
        self.answer = answer


class _Duty(Generic[T]):
    """What a batcher does with a batch, wherever it does it, and whom it tells."""

    __slots__ = ("_begin", "_seconds", "_work", "done")

    def __init__(
        self,
        work: Callable[[list[T]], Any],
        done: Callable[[list[T], Any, BaseException | None], None],
        begin: Callable[[list[T]], None] | None,
        seconds: Callable[[], float],
    ) -> None:
        self._work = work
        self.done = done
        self._begin = begin
        self._seconds = seconds

    def begin_with(self, jobs: list[T]) -> float:
        """Begin with a batch that `do` is to follow on; how many seconds that took."""
        if self._begin is None:
            return 0.0
        begun_s = self._seconds()
        self._begin(jobs)
        return self._seconds() - begun_s

    def do(self, jobs: list[T]) -> tuple[Any, BaseException | None, float]:
        """What a batch came to, what failed, and how many seconds it took."""
        begun_s = self._seconds()
        result: Any = None
        failure: BaseException | None = None
        try:
            result = self._work(jobs)
        except BaseException as error:
            failure = error
        return result, failure, self._seconds() - begun_s


class ThreadBatcher(Generic[T]):
    """One thread that works off whatever is queued, as one batch; see `ports.workers.Batcher`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        duty: "_Duty[T]",
        lone_s: float,
        gather: "Callable[[ThreadBatcher[T]], None]",
    ) -> None:
        """`gather` is told of the first job that waits on the loop."""
        self._loop = loop
        self._duty = duty
        self._lone_s = lone_s
        self._gather = gather
        self._queue: SimpleQueue[T | _End] = SimpleQueue()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._closing = False
        self._waiting: list[T] = []
        self._in_thread = 0
        self._alone = 0
        self._mean_s = 2 * lone_s
        self._begun_s = 0.0
        arguments = (self._queue, loop, duty, self._worked, self._ended)
        threading.Thread(target=_batch, args=arguments, name=name, daemon=True).start()

    def put(self, job: T) -> None:
        """Queue a job. Called on the event loop; never blocks."""
        assert not self._closing, "put after close"
        if self._in_thread or not self._lone_s:
            self._in_thread += 1
            self._queue.put(job)
            return
        self._waiting.append(job)
        if len(self._waiting) == 1:
            self._gather(self)

    async def close(self) -> None:
        """Finish what is queued, then end the thread. May be called twice."""
        if not self._closing:
            self._closing = True
            self.hand_over()
            self._queue.put(_END)
        await asyncio.shield(self._ended)

    @property
    def may_work_here(self) -> bool:
        """Whether what waits is one job, and the like of it is quick."""
        alone = len(self._waiting) == 1 and self._alone >= _ALONE_TO_BEGIN
        return alone and self._mean_s <= self._lone_s

    def hand_over(self) -> None:
        """Give what waits to the thread."""
        jobs, self._waiting = self._waiting, []
        self._in_thread += len(jobs)
        for job in jobs:
            self._queue.put(job)

    def begin_here(self) -> None:
        """Begin with the one job that waits; `work_here` follows in this turn."""
        self._begun_s = self._duty.begin_with(self._waiting)

    def work_here(self) -> None:
        """Work the one job that waits, on the loop."""
        assert not self._in_thread
        jobs, self._waiting = self._waiting, []
        result, failure, took_s = self._duty.do(jobs)
        begun_s, self._begun_s = self._begun_s, 0.0
        self._duty.done(jobs, result, failure)
        self._measure(jobs, begun_s + took_s)

    def _worked(
        self, jobs: list[T], result: Any, failure: BaseException | None, took_s: float
    ) -> None:
        self._in_thread -= len(jobs)
        self._measure(jobs, took_s)
        self._duty.done(jobs, result, failure)

    def _measure(self, jobs: list[T], took_s: float) -> None:
        if len(jobs) > 1:
            self._alone = 0
            return
        self._alone += 1
        self._mean_s += _LATEST_SHARE * (took_s - self._mean_s)


def _batch(
    queue: "SimpleQueue[Any]",
    loop: asyncio.AbstractEventLoop,
    duty: "_Duty[Any]",
    worked: Callable[[list[Any], Any, BaseException | None, float], None],
    ended: "asyncio.Future[None]",
) -> None:
    """The thread of a batcher. It alone takes from the queue, so `qsize()` never overstates."""
    take = queue.get
    ending = False
    while not ending:
        jobs = [take()]
        jobs += [take() for _ in range(queue.qsize())]
        if jobs[-1] is _END:
            ending = True
            jobs.pop()
        if jobs:
            result, failure, took_s = duty.do(jobs)
            _tell(loop, worked, jobs, result, failure, took_s)
            # The thread waits next, perhaps for long: nothing of this batch may stay alive in it.
            del result, failure
        del jobs
    _tell(loop, _finish, ended)


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Call on the loop; a loop that is closed has nobody left who wants to know."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        assert loop.is_closed()


def _finish(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)

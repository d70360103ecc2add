"""The machine's threads as `Workers`.

Invariants:
- A batch costs one hop to its thread and one back: `SimpleQueue` in, `call_soon_threadsafe` out.
- `done` hears of the batches in the order in which they were worked, each once.
- A loop that was closed meanwhile hears nothing more and harms no thread.
- Threads are daemons: a forgotten batcher does not keep the process alive.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_POOL_THREADS_MAX: Final = 4


class _End:
    """Queued behind the last job."""


_END: Final = _End()


class ThreadWorkers:
    """`Workers` for one event loop: a thread a batcher, a small pool for everything else."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pool_threads_max: int = _POOL_THREADS_MAX
    ) -> None:
        assert pool_threads_max >= 1
        self._loop = loop
        self._pool_threads_max = pool_threads_max
        self._calls: SimpleQueue[_Call | _End] = SimpleQueue()
        self._threads: list[asyncio.Future[None]] = []
        self._calls_pending = 0
        self._closed = False

    def batcher(
        self,
        name: str,
        work: Callable[[list[T]], R],
        done: Callable[[list[T], R | None, BaseException | None], None],
    ) -> "ThreadBatcher[T]":
        """Start a batcher; see `Workers.batcher`. Its owner closes it."""
        return ThreadBatcher(self._loop, name, work, done)

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


class ThreadBatcher(Generic[T]):
    """One thread that works off whatever is queued, as one batch; see `ports.workers.Batcher`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        work: Callable[[list[T]], R],
        done: Callable[[list[T], R | None, BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._queue: SimpleQueue[T | _End] = SimpleQueue()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._closing = False
        arguments = (self._queue, loop, work, done, self._ended)
        threading.Thread(target=_batch, args=arguments, name=name, daemon=True).start()

    def put(self, job: T) -> None:
        """Queue a job. Called on the event loop; never blocks."""
        assert not self._closing, "put after close"
        self._queue.put(job)

    async def close(self) -> None:
        """Finish what is queued, then end the thread. May be called twice."""
        if not self._closing:
            self._closing = True
            self._queue.put(_END)
        await asyncio.shield(self._ended)


def _batch(
    queue: "SimpleQueue[Any]",
    loop: asyncio.AbstractEventLoop,
    work: Callable[[list[Any]], Any],
    done: Callable[[list[Any], Any, BaseException | None], None],
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
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work(jobs)
            except BaseException as error:
                failure = error
            _tell(loop, done, jobs, result, failure)
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

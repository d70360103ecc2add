"""How a child process runs functions: plain ones in threads, coroutines on one event loop.

Plain functions run one after the other in the first thread, which costs nothing to hand over. Only
where one takes longer than a tick while others wait do more threads join in, up to the places.

Invariants:
- Every attempt that comes is answered by one completion, whatever its function raises.
- A result that is ready waits at most one tick for others, even behind a slow function.
- Never more plain functions run at once than there are places.
- What begins is marked as begun before its first line runs.
- What a function of a task does to its thread ends with its thread or stays in this process.
"""

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from broker.connection import Attempt, Completion, Ended, Run
from broker.errors import InvalidTask
from broker.task import ERROR_LENGTH_MAX, PAYLOAD_BYTES_MAX
from broker.worker.frames import Report
from broker.worker.registry import GiveUp, TaskFunction, TryLater, encode_result

Find = Callable[[Run], TaskFunction]
"""The function of a run. Raises `InvalidTask`."""

_TICK_S: Final = 0.002
_JOIN_MAX: Final = 8
_IDLE_S: Final = 0.1


class MutableMarks(Protocol):
    """A byte for each mark."""

    def __setitem__(self, mark: int, value: int, /) -> None: ...


class Outbox:
    """What has ended and is to be told. Filled by all threads, emptied by whoever has time."""

    def __init__(self, write: Callable[[Report], None]) -> None:
        self._write = write
        self._writing = threading.Lock()
        self._begun: deque[Attempt] = deque()
        self._ended: deque[Completion] = deque()
        self.add = self._ended.append
        self.begin = self._begun.append

    def flush(self) -> None:
        """Tell all that gathered."""
        if not self._ended and not self._begun:
            return
        with self._writing:
            # Others add meanwhile: what is told is what was there at one moment.
            ended = [self._ended.popleft() for _ in range(len(self._ended))]
            begun = [self._begun.popleft() for _ in range(len(self._begun))]
            self._write(Report(begun, ended))


class Begun:
    """Memory that the worker reads when this process is gone: what had begun in it.

    A mark below 0 is none.
    """

    def __init__(self, memory: MutableMarks) -> None:
        self._memory = memory

    def set(self, mark: int) -> None:
        """Say that the attempt of that mark begins."""
        if mark >= 0:
            self._memory[mark] = 1


class _Place:
    """One thread, and what runs in it."""

    __slots__ = ("run", "told")

    def __init__(self) -> None:
        self.run: Run | None = None
        self.told = False


class Threads:
    """Runs plain functions."""

    def __init__(
        self,
        find: Find,
        outbox: Outbox,
        begun: Begun,
        at_once: int,
        result_bytes_max: int = PAYLOAD_BYTES_MAX,
    ) -> None:
        self._find = find
        self._result_bytes_max = result_bytes_max
        self._outbox = outbox
        self._begun = begun
        self._at_once = at_once
        self._queue: SimpleQueue[tuple[Run, int]] = SimpleQueue()
        self._places: list[_Place] = []
        self._taken = 0
        self._busy = threading.Event()
        self._cancelled: set[Attempt] = set()

    def start(self, items: list[tuple[Run, int]]) -> None:
        """Run these, each with its mark. Called by the thread that reads."""
        put = self._queue.put
        for item in items:
            put(item)
        self._busy.set()

    def cancel(self, attempts: list[Attempt]) -> None:
        """Do not begin these. Called by the thread that reads."""
        self._cancelled.update(attempts)

    def give_back(self) -> None:
        """Begin nothing that has not begun. Called by the thread that reads."""
        try:
            while True:
                run, _ = self._queue.get_nowait()
                self._outbox.add(Completion(run.id, run.attempt, Ended.HANDED_BACK))
        except Empty:
            self._outbox.flush()

    def serve(self) -> None:
        """Run what comes, for ever, in this thread; another one watches it."""
        place = self._place()
        start_thread(self._watch, "watch")
        self._work(place, None)

    def _place(self) -> _Place:
        """A place, counted before its thread runs: that may take longer than the next look."""
        place = _Place()
        self._places.append(place)
        return place

    def _work(self, place: _Place, idle_s: float | None) -> None:
        queue, outbox, begun = self._queue, self._outbox, self._begun
        try:
            while True:
                if queue.empty():
                    outbox.flush()
                    # Nothing waits that somebody could have meant.
                    self._cancelled.clear()
                run, mark = queue.get(timeout=idle_s)
                self._taken += 1
                if self._cancelled and self._was_cancelled(run):
                    continue
                place.told = False
                place.run = run
                if run.time_limit_ms:
                    self._busy.set()
                begun.set(mark)
                outbox.add(self._perform(run))
                place.run = None
                # The thread waits next, perhaps for long: nothing of the task may stay alive in it.
                del run
        except Empty:
            return
        finally:
            self._places.remove(place)

    def _was_cancelled(self, run: Run) -> bool:
        attempt = (run.id, run.attempt)
        if attempt not in self._cancelled:
            return False
        self._cancelled.discard(attempt)
        self._outbox.add(Completion(run.id, run.attempt, Ended.INTERRUPTED))
        return True

    def _perform(self, run: Run) -> Completion:
        function = None
        try:
            function = self._find(run)
            return succeeded(run, function.call(run), self._result_bytes_max)
        except BaseException as error:
            return failed(run, error, function)

    def _watch(self) -> None:
        seen = 0
        while True:
            self._busy.wait()
            time.sleep(_TICK_S)  # noqa: TID251 (a process of its own)
            # Cleared before the look: whoever sets it later has changed what is looked at.
            self._busy.clear()
            if self._taken == seen:
                self._join_in()
            seen = self._taken
            slow = self._tell_slow()
            self._outbox.flush()
            if slow or not self._queue.empty():
                self._busy.set()

    def _join_in(self) -> None:
        more = min(self._queue.qsize(), _JOIN_MAX, self._at_once - len(self._places))
        for _ in range(more):
            start_thread(partial(self._work, self._place(), _IDLE_S), "work")

    def _tell_slow(self) -> bool:
        """Tell what has begun and has a time limit; whether one was told."""
        told = False
        for place in list(self._places):
            run = place.run
            if run is not None and not place.told:
                place.told = told = True
                if run.time_limit_ms:
                    self._outbox.begin((run.id, run.attempt))
        return told


class Coroutines:
    """Runs async functions, all on one event loop in a thread that starts with the first."""

    def __init__(
        self,
        find: Find,
        outbox: Outbox,
        begun: Begun,
        at_once: int,
        make_loop: Callable[[], asyncio.AbstractEventLoop],
        result_bytes_max: int = PAYLOAD_BYTES_MAX,
    ) -> None:
        self._find = find
        self._result_bytes_max = result_bytes_max
        self._outbox = outbox
        self._begun = begun
        self._at_once = at_once
        self._make_loop = make_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[Run, int]] = deque()
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._cancelled: set[Attempt] = set()
        self._flushing = False

    def start(self, items: list[tuple[Run, int]]) -> None:
        """Run these, each with its mark. Called by the thread that reads."""
        if self._loop is None:
            self._loop = self._make_loop()
            start_thread(self._loop.run_forever, "loop")
        self._loop.call_soon_threadsafe(self._start, items)

    def cancel(self, attempts: list[Attempt]) -> None:
        """Cancel what of these is here. Called by the thread that reads."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_soon, attempts)

    def give_back(self) -> None:
        """Begin nothing that has not begun. Called by the thread that reads."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._give_back)

    def _start(self, items: list[tuple[Run, int]]) -> None:
        self._waiting += items
        self._begin()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        waiting, tasks = self._waiting, self._tasks
        while waiting and len(tasks) < self._at_once:
            run, mark = waiting.popleft()
            attempt = (run.id, run.attempt)
            if run.time_limit_ms:
                self._outbox.begin(attempt)
                self._flush_soon()
            self._begun.set(mark)
            tasks[attempt] = loop.create_task(self._perform(run, attempt))

    def _give_back(self) -> None:
        for run, _ in self._waiting:
            self._outbox.add(Completion(run.id, run.attempt, Ended.HANDED_BACK))
        self._waiting.clear()
        self._flush_soon()

    def _cancel_soon(self, attempts: list[Attempt]) -> None:
        # A task that was cancelled before its first step would end without a word.
        asyncio.get_running_loop().call_soon(self._cancel, attempts)

    def _cancel(self, attempts: list[Attempt]) -> None:
        unbegun = set(attempts).difference(self._tasks)
        for run, mark in [
            each for each in self._waiting if (each[0].id, each[0].attempt) in unbegun
        ]:
            self._waiting.remove((run, mark))
            self._outbox.add(Completion(run.id, run.attempt, Ended.INTERRUPTED))
            self._flush_soon()
        for attempt in attempts:
            running = self._tasks.get(attempt)
            if running is not None:
                self._cancelled.add(attempt)
                running.cancel()

    async def _perform(self, run: Run, attempt: Attempt) -> None:
        function = None
        try:
            function = self._find(run)
            call: Coroutine[Any, Any, Any] = function.call(run)
            completion = succeeded(run, await call, self._result_bytes_max)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and attempt in self._cancelled:
                completion = Completion(run.id, run.attempt, Ended.INTERRUPTED)
            else:
                completion = failed(run, error, function)
        del self._tasks[attempt]
        self._cancelled.discard(attempt)
        self._outbox.add(completion)
        if self._waiting:
            self._begin()
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            loop = asyncio.get_running_loop()
            if self._waiting:
                # There is other work to do: what ends meanwhile is told together with this.
                loop.call_later(_TICK_S, self._flush)
            else:
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._outbox.flush()


def start_thread(work: Callable[[], None], name: str) -> None:
    """Run something in a thread that ends with the process. Only child processes do."""
    threading.Thread(target=work, name=name, daemon=True).start()  # noqa: TID251 (see above)


def succeeded(run: Run, result: Any, bytes_max: int = PAYLOAD_BYTES_MAX) -> Completion:
    """The end of an attempt that returned. Raises `InvalidTask` for what cannot be stored."""
    data = encode_result(result)
    if len(data) > bytes_max:
        raise InvalidTask(
            f"the result has {len(data)} bytes, and a task's result at most {bytes_max} here: "
            "store it as an object and return its id"
        )
    return Completion(run.id, run.attempt, Ended.FINISHED, data)


def failed(run: Run, error: BaseException, function: TaskFunction | None) -> Completion:
    """The end of an attempt that raised."""
    hopeless: tuple[type[BaseException], ...] = (GiveUp, InvalidTask)
    if function is not None:
        hopeless += function.options.give_up_on
    return Completion(
        run.id,
        run.attempt,
        Ended.FAILED,
        error=error_text(error),
        retry_after_ms=error.after_ms if isinstance(error, TryLater) else None,
        no_retry=isinstance(error, hopeless),
    )


def error_text(error: BaseException) -> str:
    """What was raised, in its first line, and where, without what is ours."""
    try:
        summary = "".join(traceback.format_exception_only(error)).strip()
        frames = traceback.extract_tb(error.__traceback__)
        ours = [at for at, place in enumerate(frames) if place.filename.startswith(_OURS)]
        where = "".join(traceback.format_list(frames[ours[-1] + 1 if ours else 0 :]))
    except Exception:
        # What a user's exception says of itself may itself raise.
        summary, where = type(error).__name__, ""
    text = f"{summary}\n{where}".strip().encode("utf-8", "replace").decode()
    return text if len(text) <= ERROR_LENGTH_MAX else text[: ERROR_LENGTH_MAX - 4] + " ..."


_OURS: Final = __file__.rpartition("/")[0]

"""A deterministic event loop in virtual time, without sockets.

It runs the unchanged asyncio code of several processes (`Process`) of one imagined cluster. Time
stands still while callbacks run and jumps to the next timer when none is ready.

Invariants:
- The same seed gives the same order of callbacks: it depends on no clock, no hash and no address.
- Callbacks made ready in one instant run in the order in which they were scheduled.
- A callback belongs to the process that scheduled it, or to the one named. Those of a paused
  process wait until it goes on; those of a dead one never run.
- A timer never fires early. It may fire a little late, as real ones do.
"""

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from sys import set_asyncgen_hooks
from typing import Any, Final

from tests.simulation.ending import end_tasks

START_S: Final = 1_000.0
TIMER_LATE_S_MAX: Final = 0.002


class Deadlock(AssertionError):
    """Nothing is ready and nothing is scheduled, yet the main task has not ended."""


class RanTooLong(AssertionError):
    """The main task had not ended at the end of the virtual time given to it."""


class Process:
    """One process of a node: all its callbacks and tasks, which end together."""

    __slots__ = (
        "_tidy_at",
        "alive",
        "name",
        "on_pause",
        "on_resume",
        "parked",
        "paused",
        "steps",
        "stop_here",
        "tasks",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.parked: list[SimHandle] = []
        self.steps = 0
        """How many callbacks are left until `stop_here` is called; 0: never."""
        self.stop_here: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] = _nothing
        self.on_resume: Callable[[], None] = _nothing
        """Called before the process is paused, and before it goes on."""
        # Strong references: a dead process's coroutines must not be finalised in mid-run.
        self.tasks: list[asyncio.Task[Any]] = []
        self._tidy_at = 256

    def own(self, task: asyncio.Task[Any]) -> None:
        """Keep a task alive as long as the process is."""
        self.tasks.append(task)
        if len(self.tasks) >= self._tidy_at:
            self.tasks = [kept for kept in self.tasks if not kept.done()]
            self._tidy_at = 2 * len(self.tasks) + 256


def _nothing() -> None:
    """The default callback: do nothing."""


class SimHandle:
    """One callback to run."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "process", "time")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        process: Process,
        time: float,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.process = process
        self.time = time
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not run it."""
        self.is_cancelled = True
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.is_cancelled

    def when(self) -> float:
        """The virtual time at which a timer fires."""
        return self.time


def new_loop(seed: int) -> "SimLoop":
    """A fresh loop. It lacks sockets, signals and subprocesses on purpose."""
    return SimLoop(seed)  # type: ignore[abstract]


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. Use `run(main)`; a loop runs one main coroutine."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = Process("world")
        self.current = self.world
        self.acting_for: Process | None = None
        """The process whose call the metadata store is carrying out."""
        self.now = START_S
        self.callbacks_run = 0
        self.on_callback: Callable[[], None] | None = None
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._sequence = 0
        self._errors: list[dict[str, Any]] = []
        self._running = False
        self._closed = False

    # Time and callbacks

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        handle = SimHandle(callback, args, context, self.current, self.now)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        when = max(when, self.now) + self.rng.random() * TIMER_LATE_S_MAX
        return self._push(when, SimHandle(callback, args, context, self.current, when))

    def deliver_at(
        self, when: float, process: Process, callback: Callable[..., object], *args: Any
    ) -> SimHandle:
        """Run a callback in another process at exactly `when`: a message arrives."""
        return self._push(when, SimHandle(callback, args, None, process, when))

    def _push(self, when: float, handle: SimHandle) -> SimHandle:
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    # Processes

    def spawn(
        self, process: Process, coroutine: Coroutine[Any, Any, Any], name: str
    ) -> asyncio.Task[Any]:
        """Start a task in another process."""
        before, self.current = self.current, process
        try:
            return self.create_task(coroutine, name=name)
        finally:
            self.current = before

    def pause(self, process: Process) -> None:
        """Stop a process at once, as SIGSTOP does. Time goes on for all others."""
        process.on_pause()
        process.paused = True

    def pause_at_step(self, process: Process, steps: int, stop: Callable[[], None]) -> None:
        """Call `stop`, which may pause the process, just before its callback after so many more."""
        process.steps, process.stop_here = steps, stop

    def resume(self, process: Process) -> None:
        """Let a paused process go on with all that waits for it."""
        if process.paused and process.alive:
            process.on_resume()
        process.paused = False
        if process.alive:
            self._ready.extend(process.parked)
            process.parked = []

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: nothing of it runs again, not even a `finally`."""
        process.alive = False

    # Futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        if self._closed:
            coro.close()
            raise RuntimeError("the loop is closed")
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.current.own(task)
        return task

    # Running

    def run(self, main: Coroutine[Any, Any, Any], *, until_s: float) -> Any:
        """Run a coroutine to its end and return its result.

        Raises `Deadlock` when nothing can ever happen again before it has ended, `RanTooLong` at
        `until_s` of virtual time, and what an unhandled callback or the coroutine itself raised.
        """
        assert not self._running and not self._closed
        self._running = True
        asyncio._set_running_loop(self)
        set_asyncgen_hooks(finalizer=self._finalise)
        task = self.create_task(main, name="main")
        try:
            while not task.done():
                if not self._ready and not self._advance(START_S + until_s):
                    raise Deadlock(f"nothing can happen any more; waiting: {self.waiting()}")
                self._run_ready()
                if self._errors:
                    raise AssertionError(f"unhandled in a callback: {self._errors[0]}") from (
                        self._errors[0].get("exception")
                    )
            return task.result()
        finally:
            set_asyncgen_hooks(finalizer=None)
            asyncio._set_running_loop(None)
            self._running = False

    def _advance(self, end: float) -> bool:
        """Jump to the next instant at which something happens; False if there is none."""
        timers = self._timers
        while timers:
            when, _, handle = timers[0]
            if handle.is_cancelled or not handle.process.alive:
                heapq.heappop(timers)
                continue
            if when > end:
                raise RanTooLong(f"virtual time is up; waiting: {self.waiting()}")
            self.now = max(self.now, when)
            break
        while timers and timers[0][0] <= self.now:
            self._ready.append(heapq.heappop(timers)[2])
        return bool(self._ready)

    def _run_ready(self) -> None:
        ready, pop = self._ready, self._ready.popleft
        count = 0
        while ready:
            handle = pop()
            callback = handle.callback
            if callback is None:
                continue
            process = handle.process
            if process.paused or not process.alive:
                # Callbacks of a dead process are kept, so that their futures are never finalised.
                process.parked.append(handle)
                continue
            if process.steps and self._stopped_at_step(process):
                process.parked.append(handle)
                continue
            self.current = process
            count += 1
            context = handle.context
            if context is None:
                callback(*handle.args)
            else:
                context.run(callback, *handle.args)
        self.current = self.world
        self.callbacks_run += count

    def _stopped_at_step(self, process: Process) -> bool:
        """Count a step; whether the process was paused, or died, before it."""
        process.steps -= 1
        if process.steps == 0 and process.stop_here is not None:
            stop, process.stop_here = process.stop_here, None
            self.current = self.world
            stop()
        return process.paused or not process.alive

    def waiting(self) -> list[str]:
        """The names of the tasks that have not ended in processes that live."""
        tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
        return sorted(f"{task.get_name()} {task.get_coro()}" for task in tasks)[:20]

    # What asyncio asks of a loop

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        end_tasks(self)
        self._ready.clear()
        self._timers.clear()

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        assert not enabled, "debug mode reads real clocks"

    def get_exception_handler(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody retrieved: a defect of the code under test."""
        self._errors.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def _finalise(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())

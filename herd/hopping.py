"""The cheap way from many threads to the one event loop: calls gather, one wake-up takes them all.

A thread appends its call to a queue and wakes the loop only if nobody else has since the loop
looked last; then it waits on a lock of its own. Answered threads wake one after the other: the loop
wakes the first, each that has woken wakes the next. Threads that all wake at once would fight over
the interpreter, and each of those that wait for it asks for it again every switch interval.

Invariants:
- A call that is queued is seen: the loop forgets that it was woken before it empties the queue.
- While answers wait for their threads, exactly one thread has been woken and has not yet run: it
  wakes the next. One that was interrupted is passed over by the loop.
- A call on the loop's own thread, or in a forked child, raises at once; it never waits for itself.
- An interrupted wait cancels the waiting, never what was handed to the disk.
- What a call raised is raised in the thread that made it.
"""

import asyncio
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import iscoroutine
from typing import Any, Final, TypeVar

from engine.errors import EngineError, InvalidRequest
from engine.ports.system_loop import BackgroundLoop
from herd.errors import InterfaceError, OperationalError
from herd.translating import translated

R = TypeVar("R")


class _Call:
    """One call, who waits for it, and its answer."""

    __slots__ = (
        "abandoned",
        "arguments",
        "error",
        "function",
        "future",
        "lock",
        "result",
        "woken",
    )

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.lock: LockType = allocate_lock()
        self.lock.acquire()
        self.future: asyncio.Future[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.woken = False
        self.abandoned = False


class Hopper:
    """Runs functions on a loop for threads that have none. Any number of threads may use one."""

    def __init__(self, background: BackgroundLoop) -> None:
        self._background = background
        self._check = background.check
        self._loop = background.loop
        self._wake = background.loop.call_soon_threadsafe
        self._calls: deque[_Call] = deque()
        self._awake = False
        self._answered: deque[_Call] = deque()
        self._passing = False

    @property
    def usable(self) -> bool:
        """Whether this process is the one that the loop runs in."""
        return self._background.usable

    def call(self, function: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """Call a function on the loop, await what it returns, and return that result here.

        `function` returns a coroutine or a future; a future costs no task. Raises what the function
        raises, and `InterfaceError` in a forked child and on the loop's own thread.
        """
        try:
            self._check()
        except InvalidRequest as error:
            raise InterfaceError(str(error)) from None
        call = _Call(function, arguments)
        try:
            self._calls.append(call)
            if not self._awake:
                self._awake = True
                self._wake(self._take)
            call.lock.acquire()
            self._pass_on()
        except BaseException:
            # An interrupt may have come before the loop was woken: nobody else would wake it.
            self._wake(self._take)
            self._wake(self._abandon, call)
            raise
        if call.error is None:
            result: R = call.result
            return result
        try:
            raise call.error
        finally:
            # The error holds this frame, which must not hold the error: nothing would free them.
            del call

    def _take(self) -> None:
        """On the loop: begin every call that has gathered."""
        self._awake = False
        calls = self._calls
        while calls:
            call = calls.popleft()
            try:
                begun = call.function(*call.arguments)
                if iscoroutine(begun):
                    begun = self._loop.create_task(begun)
            except BaseException as error:
                self._answer(call, None, error)
                continue
            call.future = begun
            begun.add_done_callback(partial(self._done, call))

    def _done(self, call: _Call, future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            ended = OperationalError("closed while the call was under way", hint=_HINT)
            self._answer(call, None, ended)
        elif (error := future.exception()) is not None:
            known = translated(error) if isinstance(error, EngineError) else error
            self._answer(call, None, known)
        else:
            self._answer(call, future.result(), None)

    def _answer(self, call: _Call, result: Any, error: BaseException | None) -> None:
        call.result = result
        call.error = error
        self._answered.append(call)
        if not self._passing:
            self._passing = True
            self._pass_on()

    def _pass_on(self) -> None:
        """Wake the next thread whose answer is there. On the loop, or in the one woken last."""
        answered = self._answered
        while True:
            try:
                call = answered.popleft()
            except IndexError:
                self._passing = False
                # An answer may have come between the two looks, and found that somebody passes on.
                if not answered:
                    return
                self._passing = True
                continue
            # In this order: whoever abandons it looks the other way round, so one of the two sees.
            call.woken = True
            if not call.abandoned:
                call.lock.release()
                return

    def _abandon(self, call: _Call) -> None:
        """On the loop: nobody waits for this one any more."""
        call.abandoned = True
        if call.woken:
            self._pass_on()
        elif call.future is not None:
            call.future.cancel()
        elif call in self._calls:
            self._calls.remove(call)


_HINT: Final = "what it changed may or may not be there: open it again and look"

"""One event loop in the background, for callers that have none.

Every synchronous face of the engine hands its calls to the one loop of its process and waits.

Invariants:
- A process has at most one such loop and one such thread; it starts with the first call.
- A call on the loop's own thread would wait for itself: it raises instead.
- A forked child has no such thread: what the parent opened raises there, and opening again starts
  a loop of the child's own.
- An interrupted wait cancels the waiting, never what was handed to the disk.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from engine.errors import InvalidRequest

R = TypeVar("R")


class BackgroundLoop:
    """The loop and its thread. Take it from `background_loop()`."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="herdbook-loop", daemon=True
        )
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether this process is the one that started the loop."""
        return self._process == os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop itself, for who has a way of its own to hand calls over."""
        return self._loop

    @property
    def thread_id(self) -> int:
        """What `threading.get_ident` says on the loop's thread."""
        return self._thread.ident or 0

    def check(self) -> None:
        """Raise `InvalidRequest` in a forked child and on the loop's own thread."""
        if not self.usable:
            raise InvalidRequest("opened before a fork: open it again in this process")
        if threading.get_ident() == self._thread.ident:
            raise InvalidRequest("a blocking call on the event loop's thread: use the async one")

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the loop and wait for its result, or raise what it raised.

        Raises `InvalidRequest` in a forked child and on the loop's own thread.
        """
        self.check()
        waiting = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise


_current: BackgroundLoop | None = None
_starting = threading.Lock()


def background_loop() -> BackgroundLoop:
    """The loop of this process; started if there is none."""
    global _current
    with _starting:
        if _current is None or not _current.usable:
            _current = BackgroundLoop()
        return _current


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of the quickest kind that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _after_fork() -> None:
    """The parent may have forked while another thread held the lock."""
    global _starting
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

"""The newest position that any replica has acknowledged to a caller.

Invariants:
- A position counts from the turn of the event loop in which its proposal is answered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from engine.errors import EngineError
from engine.log.position import START
from engine.replica.leading import Waiter
from engine.replica.replica import Replica


class Acknowledged:
    """The newest acknowledged position, and the process that acknowledged it."""

    def __init__(self) -> None:
        self.position = START
        self.by = ""

    def note(self, replica: Replica, process: str) -> None:
        """A proposal was answered just now: all that its replica has applied is acknowledged."""
        if replica.position > self.position:
            self.position, self.by = replica.position, process

    def listen(self, replica: Replica, process: str) -> None:
        """Record every answer of a replica."""
        propose, propose_for = replica.propose, replica.propose_for

        def told(done: "asyncio.Future[bytes]") -> None:
            if not done.cancelled() and done.exception() is None:
                self.note(replica, process)

        def noting(*arguments: Any, **options: Any) -> Awaitable[bytes]:
            future = propose(*arguments, **options)
            if isinstance(future, asyncio.Future):
                future.add_done_callback(told)
            return future

        def noting_for(command: bytes, waiter: Waiter, level: int = 1) -> None:
            propose_for(command, _Noting(waiter, lambda: self.note(replica, process)), level)

        replica.propose = noting  # type: ignore[method-assign]
        replica.propose_for = noting_for  # type: ignore[method-assign]


class _Noting:
    """A waiter that reports when it gets a result."""

    def __init__(self, waiter: Waiter, heard: Callable[[], None]) -> None:
        self._waiter = waiter
        self._heard = heard

    def done(self) -> bool:
        """See `Waiter`."""
        return self._waiter.done()

    def set_result(self, result: bytes, /) -> None:
        """See `Waiter`."""
        self._heard()
        self._waiter.set_result(result)

    def set_exception(self, error: EngineError, /) -> None:
        """See `Waiter`."""
        self._waiter.set_exception(error)

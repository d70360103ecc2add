"""Memory that many connections share: who may hold how much, and who waits.

Invariants:
- What was granted and not given back is at most the limit, unless one request alone is over it, or
  somebody took what he already had in his hands.
- The last `urgent_bytes` are granted to urgent requests only; and an urgent one that waits goes
  before all others that wait.
- Requests of one kind are granted in the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple


class _Waiting(NamedTuple):
    size_bytes: int
    granted: Callable[[], None]


class Allowance:
    """So many bytes for all, of which `urgent_bytes` are kept free for what is urgent.

    >>> allowance = Allowance(100, urgent_bytes=20)
    >>> allowance.ask(80, print), allowance.ask(20, print), allowance.ask(20, print, urgent=True)
    (True, False, True)
    """

    def __init__(self, limit_bytes: int, urgent_bytes: int = 0) -> None:
        assert 0 <= urgent_bytes < limit_bytes
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._urgent_bytes = urgent_bytes
        self._urgent: deque[_Waiting] = deque()
        self._usual: deque[_Waiting] = deque()
        self._granting = False

    @property
    def exhausted(self) -> bool:
        """Whether all is taken that is not kept for urgent requests."""
        return self.taken_bytes >= self.limit_bytes - self._urgent_bytes

    def ask(self, size_bytes: int, granted: Callable[[], None], *, urgent: bool = False) -> bool:
        """Take bytes now, if they are free; else call `granted` once they were taken, later."""
        queue = self._urgent if urgent else self._usual
        if not queue and self._has_room(size_bytes, urgent):
            self.taken_bytes += size_bytes
            return True
        queue.append(_Waiting(size_bytes, granted))
        return False

    async def acquire(self, size_bytes: int, *, urgent: bool = False) -> None:
        """Take bytes as soon as they are free. Who is cancelled meanwhile holds none."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if granted.cancelled():
                self.give_back(size_bytes)
            else:
                granted.set_result(None)

        if self.ask(size_bytes, grant, urgent=urgent):
            return
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(size_bytes)
            else:
                self.withdraw(grant)
            raise

    def take(self, size_bytes: int) -> bool:
        """Count bytes that are here already; tell whether that exhausts it."""
        self.taken_bytes += size_bytes
        return self.taken_bytes >= self.limit_bytes - self._urgent_bytes

    def give_back(self, size_bytes: int) -> None:
        """Bytes are free again: grant them to who waits."""
        assert 0 <= size_bytes <= self.taken_bytes, (size_bytes, self.taken_bytes)
        self.taken_bytes -= size_bytes
        if self._granting or not (self._urgent or self._usual):
            # Who was just granted has no use for it: the loop below goes on with the next.
            return
        self._granting = True
        try:
            for waiting in self._next():
                self.taken_bytes += waiting.size_bytes
                waiting.granted()
        finally:
            self._granting = False

    def withdraw(self, granted: Callable[[], None]) -> bool:
        """Wait no more. Tells whether it still waited; else it was granted."""
        for queue in (self._urgent, self._usual):
            for waiting in queue:
                if waiting.granted == granted:
                    queue.remove(waiting)
                    return True
        return False

    def _next(self) -> Iterator[_Waiting]:
        while self._urgent and self._has_room(self._urgent[0].size_bytes, True):
            yield self._urgent.popleft()
        while self._usual and self._has_room(self._usual[0].size_bytes, False):
            yield self._usual.popleft()

    def _has_room(self, size_bytes: int, urgent: bool) -> bool:
        kept_bytes = 0 if urgent else self._urgent_bytes
        left_bytes = self.limit_bytes - kept_bytes - self.taken_bytes
        return not self.taken_bytes or (left_bytes > 0 and size_bytes <= left_bytes)

"""Who waits for a replica to come somewhere.

Invariants:
- Whoever waits for a position is woken when it is applied, or when the replica ends.
- A change costs nothing when nobody waits. Most of those that are kept still wait; to give up costs
  the same however many they are.
"""

import asyncio
import heapq
from itertools import count

from engine.errors import EngineError
from engine.log.position import Position


class Waiting:
    """Waits for positions, and for any change of role."""

    def __init__(self) -> None:
        self._positions: list[tuple[Position, int, asyncio.Future[None]]] = []
        self._given_up = 0
        """How many of those positions nobody waits for any more."""
        self._changes: dict[asyncio.Future[None], None] = {}
        self._number = count()
        self._ended: EngineError | None = None

    async def for_position(self, position: Position, cursor: Position) -> None:
        """Return when `reached` told of this position or a later one."""
        if cursor >= position:
            return
        future = self._future()
        waiter = (position, next(self._number), future)
        heapq.heappush(self._positions, waiter)
        try:
            await future
        except asyncio.CancelledError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        self._given_up += 1
        if 2 * self._given_up > len(self._positions):
            self._positions = [each for each in self._positions if not each[2].done()]
            heapq.heapify(self._positions)
            self._given_up = 0

    async def for_change(self) -> None:
        """Return after the next change."""
        future = self._future()
        self._changes[future] = None
        try:
            await future
        except asyncio.CancelledError:
            self._changes.pop(future, None)
            raise

    def reached(self, cursor: Position) -> None:
        """The log is applied up to here."""
        while self._positions and self._positions[0][0] <= cursor:
            _wake(heapq.heappop(self._positions)[2])

    def changed(self) -> None:
        """The role is another one."""
        waiting, self._changes = self._changes, {}
        for future in waiting:
            _wake(future)

    def end(self, error: EngineError) -> None:
        """Nothing will be reached any more."""
        self._ended = error
        waiting = [*(future for _, _, future in self._positions), *self._changes]
        self._positions, self._changes = [], {}
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    def _future(self) -> asyncio.Future[None]:
        if self._ended is not None:
            raise self._ended
        return asyncio.get_running_loop().create_future()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

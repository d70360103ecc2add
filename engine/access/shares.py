"""How much each user holds of something that a server has for all.

Invariants:
- All together never hold more than there is. Users leave a sixteenth of it to administrators and
  parts of the cluster, who are no users here: `""`.
- One user has at most a quarter of what the other users leave. So a user who comes finds room,
  however many others came before and took all that they may.
- Who waits is let in when there is room, first the user who holds least; of one user in the order
  of asking.
"""

import asyncio
from collections import Counter, deque
from typing import Final

PARTS: Final = 4
"""One user has at most one part in so many of what others leave."""
LEFT_TO_PARTS: Final = 16
"""Users leave one part in so many to administrators and parts of the cluster."""


def left_to_users(most: int) -> int:
    """How much all users may hold together of `most`."""
    return most - most // LEFT_TO_PARTS


def part_of(most: int, others: int, parts: int = PARTS, least: int = 1) -> int:
    """How much one user may hold of `most` while other users hold `others`.

    It is `least` where a part would be smaller, but no more than half of what is left.

    >>> part_of(64, 0), part_of(64, 30), part_of(64, 58), part_of(64, 60)
    (15, 7, 1, 0)
    >>> part_of(64, 0, least=20), part_of(64, 30, least=20)
    (20, 15)
    """
    left = max(0, left_to_users(most) - others)
    return max(left // parts, min((left + 1) // 2, least))


class Shares:
    """`most` for all, of which a user has a part; `least` as in `part_of`."""

    def __init__(self, most: int, least: int = 1) -> None:
        self._most = most
        self._least = least
        self._held: Counter[str] = Counter()
        self._total = 0
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def held(self) -> int:
        """What all hold together."""
        return self._total

    def held_by(self, user: str) -> int:
        """What one user holds."""
        return self._held[user]

    def has_room(self, user: str, count: int = 1) -> bool:
        """Whether a user may hold more."""
        if self._total + count > self._most:
            return False
        if not user:
            return True
        own = self._held[user]
        others = self._total - self._held[""] - own
        return own + count <= part_of(self._most, others, least=self._least)

    def take(self, user: str, count: int = 1) -> bool:
        """Let a user hold more; False, and nothing taken, where there is no room for that."""
        if not self.has_room(user, count):
            return False
        self.count(user, count)
        return True

    def count(self, user: str, count: int) -> None:
        """A user holds more already, whether there is room for it or not."""
        self._held[user] += count
        self._total += count

    async def acquire(self, user: str, count: int = 1) -> None:
        """Wait for room, and take it. Who is cancelled meanwhile holds nothing."""
        queue = self._waiting.get(user)
        if queue is None and self.take(user, count):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(user, count)
            else:
                # Whoever waits behind may have room, once this turn is out of the way.
                self._let_in()
            raise

    def give_back(self, user: str, count: int = 1) -> None:
        """A user holds less."""
        self._held[user] -= count
        self._total -= count
        assert self._held[user] >= 0
        if not self._held[user]:
            del self._held[user]
        if self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        """Let those in who wait and have room, each time the one who holds least."""
        let_in = True
        while let_in:
            let_in = False
            for user in sorted(self._waiting, key=self._held.__getitem__):
                let_in = self._let_one_in(user)
                if let_in:
                    break

    def _let_one_in(self, user: str) -> bool:
        queue = self._waiting[user]
        while queue:
            count, turn = queue[0]
            if not turn.done():
                if not self.take(user, count):
                    return False
                turn.set_result(None)
            queue.popleft()
            if not queue:
                del self._waiting[user]
            if not turn.cancelled():
                return True
        self._waiting.pop(user, None)
        return False


class Share:
    """What one user holds of it, for those who know no users."""

    def __init__(self, shares: Shares, user: str) -> None:
        self._shares = shares
        self._user = user

    async def acquire(self, count: int) -> None:
        """See `Shares`."""
        await self._shares.acquire(self._user, count)

    def take(self, count: int) -> None:
        """It is held already."""
        self._shares.count(self._user, count)

    def give_back(self, count: int) -> None:
        """See `Shares`."""
        self._shares.give_back(self._user, count)

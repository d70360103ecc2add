"""Which logs a process takes over first, when the process that led hundreds of them is gone.

Invariants:
- At most `at_once` logs are taken over at a time. If all ran at once, each would take as long as
  all together. A log with a single replica is led without a turn.
- Logs that this process should lead go first; those that it leads only if nobody else does come
  after them, and logs whose last takeover failed come last. Within each of these groups, the log
  that was written last goes first: its users are waiting for it.
- Every fourth turn goes to the log that has waited longest. So no log waits for ever, whatever
  comes after it.
- A log that another process has taken over meanwhile leaves the queue and costs nothing further.
- Work that can wait never holds more than half of the turns, and none while a takeover waits.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

_LONGEST_EVERY: Final = 4


class Takeovers:
    """Turns for takeovers. All methods are called on one event loop."""

    def __init__(self, at_once: int) -> None:
        self.free = at_once
        """Free turns."""
        self._at_once = at_once
        self._waiting: dict[Place, _Rank] = {}
        """In order of arrival; the smallest rank goes first."""
        self._passed_on = 0

    @contextmanager
    def spare_turn(self) -> Iterator[bool]:
        """Hold a turn for the block if more than half are free, and say whether that is so.

        For work that can be left until later: if it got no turn, the caller asks again later.
        """
        spare = self.free > self._at_once // 2
        self.free -= spare
        try:
            yield spare
        finally:
            if spare:
                self._pass_on()

    def _wait(self, place: "Place", rank: "_Rank") -> bool:
        """Give this place a turn if one is free, otherwise let it wait."""
        if self.free:
            self.free -= 1
            return True
        self._waiting[place] = rank
        return False

    def _forget(self, place: "Place") -> None:
        self._waiting.pop(place, None)

    def _pass_on(self) -> None:
        if not self._waiting:
            self.free += 1
            return
        self._passed_on += 1
        if self._passed_on % _LONGEST_EVERY == 0:
            place = next(iter(self._waiting))
        else:
            place = min(self._waiting, key=self._waiting.__getitem__)
        self._forget(place)
        place.grant()


class _Rank(NamedTuple):
    failed: bool
    of_another: bool
    idle_s: float


class Place:
    """One log's place in the queue: waiting, holding a turn, or neither.

    Always call `leave` when done.
    """

    def __init__(self, takeovers: Takeovers, granted: Callable[[], None]) -> None:
        self.has_turn = False
        self._takeovers = takeovers
        self._granted = granted

    def ask(self, written_s: float, *, first: bool) -> bool:
        """Take a turn if one is free, and return whether this place holds one.

        Otherwise it queues, and `granted` is called once it holds one. `written_s` is when the log
        was written last, as far as is known; `-inf` if its last takeover failed. `first` says
        whether this process is the one that should lead the log.
        """
        if not self.has_turn:
            rank = _Rank(math.isinf(written_s), not first, -written_s)
            self.has_turn = self._takeovers._wait(self, rank)
        return self.has_turn

    def grant(self) -> None:
        """Hold a turn from now on."""
        self.has_turn = True
        self._granted()

    def leave(self) -> None:
        """Pass the turn on if it holds one; otherwise leave the queue."""
        if self.has_turn:
            self.has_turn = False
            self._takeovers._pass_on()
        else:
            self._takeovers._forget(self)

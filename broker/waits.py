"""Who waits for tasks at a server, in number: nobody's waits keep all others out.

Invariants:
- There are at most `most` waits. One user has at most a quarter of them; administrators and parts
  of the cluster are no users here.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.access import Asking
from broker.errors import Overloaded

_SHARE: Final = 4


class Waits:
    """The waits of one server."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: Counter[str] = Counter()

    @contextmanager
    def some(self, who: Asking, count: int = 1) -> Iterator[None]:
        """Count some waits as long as the block lasts. Raises `Overloaded`."""
        user = "" if who.admin else who.name
        if self._of.total() + count > self._most:
            raise Overloaded(f"{self._of.total():,} calls wait for tasks already")
        if user and self._of[user] + count > max(1, self._most // _SHARE):
            raise Overloaded(f"{self._of[user]:,} calls of {user} wait for tasks already")
        self._of[user] += count
        try:
            yield
        finally:
            self._of[user] -= count
            if not self._of[user]:
                del self._of[user]

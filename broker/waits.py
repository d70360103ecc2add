"""Limits the waits for tasks at a server, so that one user cannot lock out the others.

Invariants:
- There are at most `most` waits. One user may have a quarter of them; this does not apply to
  administrators and parts of the cluster.
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
        """Count `count` waits as long as the block lasts. Raises `Overloaded`."""
        user = "" if who.admin else who.name
        if self._of.total() + count > self._most:
            raise Overloaded(f"{self._of.total():,} calls already wait for tasks")
        if user and self._of[user] + count > max(1, self._most // _SHARE):
            raise Overloaded(f"{self._of[user]:,} calls of {user} already wait for tasks")
        self._of[user] += count
        try:
            yield
        finally:
            self._of[user] -= count
            if not self._of[user]:
                del self._of[user]

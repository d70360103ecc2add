"""Limits the waits for tasks at a server, so that one user cannot lock out the others.

Invariants:
- There are at most `most` waits, of which a user has a share.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from broker.access import Asking
from broker.errors import Overloaded
from engine.access.shares import Shares


class Waits:
    """The waits of one server."""

    def __init__(self, most: int) -> None:
        self._waits = Shares(most)

    @contextmanager
    def some(self, who: Asking, count: int = 1) -> Iterator[None]:
        """Count `count` waits as long as the block lasts. Raises `Overloaded`."""
        user = "" if who.admin else who.name
        if not self._waits.take(user, count):
            of_user = f", {self._waits.held_by(user):,} of {user}" if user else ""
            raise Overloaded(f"{self._waits.held:,} calls already wait for tasks{of_user}")
        try:
            yield
        finally:
            self._waits.give_back(user, count)

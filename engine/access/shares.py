"""How much each user holds of something that a server has for all.

Invariants:
- All together never hold more than there is, and one user no more than a share. Administrators and
  parts of the cluster are no users here: `""`.
"""

from collections import Counter
from typing import Final

PARTS: Final = 4
"""One user has at most one part in so many."""


class Shares:
    """`most` for all, and for one user a quarter of it, at least `least`."""

    def __init__(self, most: int, least: int = 1) -> None:
        self._most = most
        self._of_user_max = max(least, most // PARTS)
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """What all hold together."""
        return self._held.total()

    def has_room(self, user: str, count: int = 1) -> bool:
        """Whether a user may hold more."""
        if self.held + count > self._most:
            return False
        return not user or self._held[user] + count <= self._of_user_max

    def take(self, user: str, count: int = 1) -> bool:
        """Let a user hold more; False, and nothing taken, where there is no room for that."""
        if not self.has_room(user, count):
            return False
        self._held[user] += count
        return True

    def give_back(self, user: str, count: int = 1) -> None:
        """A user holds less."""
        self._held[user] -= count
        assert self._held[user] >= 0
        if not self._held[user]:
            del self._held[user]

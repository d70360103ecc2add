"""A channel to tablespaces of this very process, for sessions that began when they ran elsewhere.

Invariants:
- A call goes the way that a remote one goes, without a wire: it means the same.
"""

from herd.errors import SessionLost
from herd.wire.guest import Guest


class LocalChannel:
    """A `Channel` to a guest of this process."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._over = False

    @property
    def over(self) -> bool:
        """Whether the tablespaces were closed here."""
        return self._over

    async def ask(self, message: bytes) -> bytes:
        """The answer to a call; see `Channel`."""
        if self._over:
            raise SessionLost("the tablespaces were closed", hint="open the folder again")
        reply = self._guest.handle(message)
        return reply if isinstance(reply, bytes) else await reply

    async def close(self) -> None:
        """End what was begun over it."""
        self._over = True
        await self._guest.close()

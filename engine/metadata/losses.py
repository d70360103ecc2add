"""Who wants to hear that a session with the metadata store was lost.

Invariants:
- Each is told once a loss, on the loop, never within the call that noticed it.
- Who ended its watch hears nothing more, not even of a loss that was already on its way.
"""

import asyncio
from collections.abc import Callable

Told = Callable[[], None]


class Losses:
    """The watchers of one store's sessions."""

    def __init__(self) -> None:
        self._watchers: dict[object, Told] = {}

    def watch(self, lost: Told) -> Callable[[], None]:
        """Call `lost` after each loss; returns a function that ends the watch."""
        identity = object()
        self._watchers[identity] = lost

        def end() -> None:
            self._watchers.pop(identity, None)

        return end

    def tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """The session was lost: tell everyone, at the loop's next turn."""
        for identity in list(self._watchers):
            loop.call_soon(self._tell_one, identity)

    def _tell_one(self, identity: object) -> None:
        lost = self._watchers.get(identity)
        if lost is not None:
            lost()

"""What the time may be, by this machine's clock and by that of the metadata store's server.

Times of expiry are written by one machine and looked at by another one (`engine.expiry`), which
allows for clocks that differ a little. A clock that is further away is wrong, or the server's is:
nobody can tell which. So until both agree again the earlier one says what is over, and the later
one from when on something lasts.

Invariants:
- By a single wrong clock, of a machine or of the server, nothing is over before its time.
- The server is asked when somebody wants to know, at most once a minute. In between its time goes
  on with the monotonic clock, so a clock that is set meanwhile is noticed at once.
- A known time is only replaced by a newer one. While there is none, the server is asked at most
  once a second, however many callers wait for it and whether or not they are cancelled.
- Where no other machine can be asked, this machine's clock alone counts.
"""

import asyncio
import logging
import math
from typing import Final

from engine.errors import AccessRefused, MetadataUnavailable
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.metadata.contract import MetadataStore, ServerClock
from engine.ports.clock import Clock

ASK_S: Final = 60.0
"""How long an answer of the server counts."""
_AGAIN_S: Final = 1.0
"""The pause after a question without an answer, as long as there has been none."""

_logger: Final = logging.getLogger(__name__)


class ClusterTime:
    """The time for expiry, in milliseconds since 1970."""

    def __init__(self, clock: Clock, store: MetadataStore) -> None:
        self.clock = clock
        self._store = store
        self._asking = asyncio.Lock()
        self._due_s = -math.inf
        """When the server is to be asked again, by the monotonic clock."""
        self._silent = False
        """Whether it did not answer the last question."""
        self._server_ms: float | None = None
        """The server's time when the monotonic clock was at 0."""
        self._told_ms = 0

    async def earliest_ms(self) -> int:
        """The time for looking whether something is over."""
        return min(await self._times_ms())

    async def latest_ms(self) -> int:
        """The time from which on something is to last."""
        return max(await self._times_ms())

    def ahead_ms(self) -> int:
        """How far this machine's clock is ahead of the server's; 0 as long as nobody asked."""
        if self._server_ms is None:
            return 0
        return round(self.clock.wall_ms() - self._server_ms - self.clock.monotonic() * 1000)

    async def server_ms(self) -> int | None:
        """The time by the server's clock; None if no other machine can be asked.

        Raises `MetadataUnavailable` if the server has not answered yet.
        """
        await self._ask_if_due()
        if self._server_ms is None:
            if self._silent:
                raise MetadataUnavailable("the metadata store has not told its time yet")
            return None
        return round(self._server_ms + self.clock.monotonic() * 1000)

    async def _times_ms(self) -> tuple[int, int]:
        """This machine's and the server's; twice the same where they agree, or nobody answers."""
        await self._ask_if_due()
        ahead_ms = self.ahead_ms()
        own_ms = self.clock.wall_ms()
        if abs(ahead_ms) <= CLOCK_DIFFERENCE_MS:
            self._told_ms = 0
            return own_ms, own_ms
        if abs(ahead_ms - self._told_ms) > CLOCK_DIFFERENCE_MS:
            self._told_ms = ahead_ms
            _logger.warning(
                "the clocks of this machine and of the metadata store's server differ by %d s: one "
                "of them is wrong; until they agree nothing expires before both say so",
                round(ahead_ms / 1000),
            )
        return own_ms, own_ms - ahead_ms

    async def _ask_if_due(self) -> None:
        async with self._asking:
            if self.clock.monotonic() >= self._due_s:
                await self._ask()

    async def _ask(self) -> None:
        before_s = self.clock.monotonic()
        if isinstance(self._store, ServerClock):
            # It stays like this if the question has no answer, or its caller is cancelled.
            self._silent, self._due_s = True, before_s + _AGAIN_S
            try:
                server_ms = await self._store.server_ms()
            except (MetadataUnavailable, AccessRefused):
                # A former answer still holds, as well as the monotonic clock goes.
                if self._server_ms is not None:
                    self._due_s = before_s + ASK_S
                return
            self._silent = False
            if server_ms is not None:
                after_s = self.clock.monotonic()
                self._server_ms = server_ms - (before_s + after_s) * 500
        self._due_s = before_s + ASK_S

"""A connection of HTTP that does not wait for ever, and of one address no more than a share.

Invariants:
- The head of a request is whole `head_s` after its connection was accepted, or after its first
  byte on one that stays open; else the connection is closed.
- No address has more connections than one may have; one more is closed at once.
"""

import asyncio
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Places:
    """How many connections each address has."""

    def __init__(self, of_address_max: int) -> None:
        assert of_address_max > 0
        self._of_address_max = of_address_max
        self._taken: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Count one more; False: that address has all that it may have already."""
        if self._taken[address] >= self._of_address_max:
            return False
        self._taken[address] += 1
        return True

    def give_back(self, address: str) -> None:
        """One that was counted has ended."""
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]


class Connection(H11Protocol):
    """One of `places`. `ended` is done when it has ended."""

    def __init__(
        self, places: Places, head_s: float, ended: "asyncio.Future[None]", **more: Any
    ) -> None:
        super().__init__(**more)
        self._places = places
        self._head_s = head_s
        self._ended = ended
        self._address = ""
        self._placed = False
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio`."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._placed = self._places.take(self._address)
        if self._placed:
            self._watch()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio`."""
        if not self._placed:
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio`."""
        super().connection_lost(exc)
        self._watch_no_more()
        if self._placed:
            self._placed = False
            self._places.give_back(self._address)
        if not self._ended.done():
            self._ended.set_result(None)

    def _watch(self) -> None:
        """Bound how long a head takes, from its first byte on."""
        if self.conn.their_state is not h11.IDLE:
            self._watch_no_more()
        elif self._late is None:
            self._late = self.loop.call_later(self._head_s, self.transport.abort)

    def _watch_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

"""A connection of HTTP that does not wait for ever.

Invariants:
- The head of a request is whole `head_s` after its connection was made, or after its first byte on
  one that stays open; else the connection is closed.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """One connection. `ended` is done when it has ended."""

    def __init__(self, head_s: float, ended: "asyncio.Future[None]", **more: Any) -> None:
        super().__init__(**more)
        self._head_s = head_s
        self._ended = ended
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio`."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """See `asyncio`."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio`."""
        super().connection_lost(exc)
        self._watch_no_more()
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

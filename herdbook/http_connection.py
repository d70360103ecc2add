"""An HTTP connection with limits on time and on work, so that it cannot block others.

Invariants:
- The head of a request must be complete `head_s` after its connection was made, or after its first
  byte on one that stays open; otherwise the connection is closed. The same limit applies to the
  rest of a body that nobody reads, after the reply.
- If a client takes nothing of a reply for `idle_s`, the connection is closed and the rest of the
  reply is dropped.
- In one turn of the loop a connection parses few pieces of a body. Connections with more pieces
  take turns, one in each turn of the loop, because a piece costs the same however small it is.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_PIECES_AT_ONCE: Final = 64
_LENGTHS: Final = {b"content-length", b"transfer-encoding"}


class Turns:
    """The queue of connections that have more pieces to parse."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `it` when all that already wait have had their turn."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        go_on()


class _Pieces(h11.Connection):
    """Returns a limited number of pieces of a body, then none until `left` is set again.

    A request that gives the length of its body in two ways is invalid.
    """

    left = _PIECES_AT_ONCE
    stopped = False

    def next_event(self) -> Any:
        """See h11."""
        if self.left <= 0 and self.their_state is h11.SEND_BODY:
            self.stopped = True
            return h11.NEED_DATA
        event = super().next_event()
        if isinstance(event, h11.Data):
            self.left -= 1
        elif isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if names >= _LENGTHS:
                # A proxy may use the other length, and so see other requests than this server.
                raise h11.RemoteProtocolError("a body must have only one length")
        return event


class Connection(H11Protocol):
    """One connection. `ended` is done when it has ended."""

    conn: _Pieces

    def __init__(
        self,
        head_s: float,
        idle_s: float,
        ended: "asyncio.Future[None]",
        turns: Turns,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.conn = _Pieces(h11.SERVER, self.conn._max_incomplete_event_size)
        self._head_s = head_s
        self._idle_s = idle_s
        self._ended = ended
        self._turns = turns
        self._waits = False
        self._late: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._awaited = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio`."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """See `asyncio`."""
        if self._waits:
            self.conn.receive_data(data)
            self.transport.pause_reading()
            return
        super().data_received(data)
        self._watch()

    def handle_events(self) -> None:
        """See uvicorn."""
        super().handle_events()
        if self.conn.stopped and not self._waits:
            self._waits = True
            self.transport.pause_reading()
            self._turns.wait(self._go_on)

    def on_response_complete(self) -> None:
        """See uvicorn."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio`."""
        super().connection_lost(exc)
        self._watch_no_more()
        self.resume_writing()
        if not self._ended.done():
            self._ended.set_result(None)

    def pause_writing(self) -> None:
        """See `asyncio`."""
        super().pause_writing()
        if self._idle is None:
            self._idle = self.loop.call_later(self._idle_s, self.transport.abort)

    def resume_writing(self) -> None:
        """See `asyncio`."""
        super().resume_writing()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def timeout_keep_alive_handler(self) -> None:
        """See uvicorn, which waits for ever for a client to take the rest of a reply."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self._idle_s, self.transport.abort)

    def _go_on(self) -> None:
        self._waits = self.conn.stopped = False
        if self.transport.is_closing():
            return
        self.conn.left = _PIECES_AT_ONCE
        self.handle_events()
        self._watch()
        if not (self._waits or self.flow.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _watch(self) -> None:
        """Limit the time of a head, from its first byte on, and of a body after its reply."""
        state, awaited = self.conn.their_state, ""
        if state is h11.IDLE:
            awaited = "head"
        elif state is h11.SEND_BODY and self.cycle.response_complete:
            awaited = "rest"
        if awaited != self._awaited:
            self._watch_no_more()
            self._awaited = awaited
            if awaited:
                self._late = self.loop.call_later(self._head_s, self.transport.abort)

    def _watch_no_more(self) -> None:
        self._awaited = ""
        if self._late is not None:
            self._late.cancel()
            self._late = None

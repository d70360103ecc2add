"""Connections that are served: who is let in, what is said first, and how they end.

Invariants:
- Nothing but a greeting is listened to before a connection is welcome, and nothing at all from
  another user's process over a Unix socket.
- No more connections are served at once than allowed; one more is told so, if it is not one of
  many. With security on, nobody is served who has not proved what is asked for.
- What is refused, late or cannot be understood is answered by one error, then the connection ends.
- A connection has ended only when all that it began has.
"""

import asyncio
import ssl
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Generic, TypeVar

from engine.errors import (
    AccessRefused,
    BookieUnavailable,
    EngineError,
    FormatTooNew,
    FrameInvalid,
    InvalidRequest,
    KeyExists,
    Overloaded,
    VersionConflict,
)
from engine.transport.address import may_trust, peer_user
from engine.transport.connection import FramedConnection
from engine.transport.frames import (
    GREETING_BYTES_MAX,
    ErrorCode,
    Frame,
    Kind,
    decode_greeting,
    encode_error,
    encode_greeting,
)
from engine.transport.greeting import ServerGreeting
from engine.transport.security import NO_SECURITY, Security

_LINGER_S: Final = 1.0
_TOLD_MAX: Final = 16
_CODES: Final[tuple[tuple[type[EngineError], ErrorCode], ...]] = (
    (FormatTooNew, ErrorCode.FORMAT_TOO_NEW),
    (InvalidRequest, ErrorCode.INVALID_REQUEST),
    (KeyExists, ErrorCode.KEY_EXISTS),
    (VersionConflict, ErrorCode.VERSION_CONFLICT),
    (FrameInvalid, ErrorCode.FRAME_INVALID),
    (Overloaded, ErrorCode.OVERLOADED),
    (AccessRefused, ErrorCode.ACCESS_REFUSED),
)

ConnectionT = TypeVar("ConnectionT", bound="ServedConnection")


class ConnectionServer(Generic[ConnectionT]):
    """Serves connections that `connect()` makes, each greeted within `greeting_ms`.

    Who listens gives `context` to the listener. Raises `InvalidRequest` for security that cannot be
    used.
    """

    def __init__(
        self,
        connect: Callable[[], ConnectionT],
        *,
        greeting_ms: int,
        connections_max: int = sys.maxsize,
        security: Security = NO_SECURITY,
    ) -> None:
        self.connections: dict[ConnectionT, None] = {}
        self.connections_max = connections_max
        self.greeting_s = greeting_ms / 1000
        self.closing = False
        self.context: ssl.SSLContext | None = security.server_context()
        self._connect = connect
        self._security = security
        self._binding = security.binding()

    def accept(self) -> FramedConnection:
        """The protocol of one more connection, for `loop.create_server` and its like."""
        return self._connect().wire

    def accept_counted(self) -> tuple[FramedConnection, "asyncio.Future[None]"]:
        """The same for a `Listener`, with what is done when the connection has ended."""
        connection = self._connect()
        return connection.wire, connection.ended

    @property
    def sockets_max(self) -> int:
        """How many may be open at once, with those that are only told that they are too many."""
        return self.connections_max + _TOLD_MAX

    def refusal(self) -> EngineError | None:
        """Why one more connection is not served, if it is not."""
        if self.closing:
            return BookieUnavailable("the server is ending: ask another")
        if len(self.connections) >= self.connections_max:
            return Overloaded("too many connections: close some, or try again later")
        return None

    def greeting(self) -> ServerGreeting:
        """What one more connection has to prove."""
        return ServerGreeting(self._security, self._binding)

    async def close(self) -> None:
        """End all connections, after what they owe has been sent, and what they began."""
        self.closing = True
        connections = list(self.connections)
        for connection in connections:
            connection.finish()
        if connections:
            await asyncio.wait([each.ended for each in connections], timeout=_LINGER_S)
        for connection in connections:
            connection.wire.abort()
        if connections:
            await asyncio.wait([each.ended for each in connections])


class ServedConnection:
    """What a server knows of one connection. Who extends it welcomes, and hears what follows."""

    _server: ConnectionServer[Any]

    def __init__(
        self,
        server: ConnectionServer[Any],
        arriving: Callable[[int, bool], None] | None = None,
    ) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.wire = FramedConnection(
            self._greet,
            self._on_lost,
            self._on_made,
            garbled=self._end_with,
            arriving=arriving,
            frame_bytes_max=GREETING_BYTES_MAX,
        )
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._greeting = server.greeting()
        self._greeted = False
        self._options: dict[str, Any] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def finish(self) -> None:
        """Send what is owed, then end the connection."""
        self.wire.close()

    def _welcome(self, options: dict[str, Any]) -> dict[str, Any]:
        """What WELCOME says to who greets with these. Raises `EngineError` to refuse."""
        raise NotImplementedError

    def _receive(self, frame: Frame) -> None:
        """Take a frame that follows the greeting."""
        raise NotImplementedError

    async def _let_go(self) -> None:
        """End what the connection began. It is lost already."""

    def _on_made(self, wire: FramedConnection) -> None:
        if not may_trust(peer_user(wire.transport)):
            wire.abort()
            return
        self._deadline = self._loop.call_later(self._server.greeting_s, self._greeting_late)
        refusal = self._server.refusal()
        if refusal is not None:
            self._end_with(refusal)
            return
        self._server.connections[self] = None

    def _greeting_late(self) -> None:
        self._end_with(FrameInvalid("no greeting came in time"))

    def _on_lost(self, failure: EngineError | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            await self._let_go()
        finally:
            self._server.connections.pop(self, None)
            self.ended.set_result(None)

    def _end_with(self, error: EngineError) -> None:
        """Tell the peer what is wrong, then hear nothing more of it."""
        kind = Kind.ERROR if self._greeted else Kind.REFUSED
        self.wire.send(kind, encode_error(code_of(error), str(error)))
        self.wire.close(error)
        self._loop.call_later(_LINGER_S, self.wire.abort)

    def _greet(self, frame: Frame) -> None:
        try:
            said = self._proved(frame)
            if said is None:
                return
            assert self._options is not None and self._deadline is not None
            told = self._welcome(self._options)
        except EngineError as error:
            self._end_with(error)
            return
        self._greeted = True
        self._deadline.cancel()
        self.wire.hand_to(self._receive)
        self.wire.send(Kind.WELCOME, encode_greeting(told | said))

    def _proved(self, frame: Frame) -> dict[str, Any] | None:
        """What WELCOME says of the proof; None while it is waited for."""
        if self._options is not None:
            if frame.kind != Kind.PROOF:
                raise FrameInvalid("a challenge is answered by a proof")
            return self._greeting.check(frame.head)
        if frame.kind != Kind.HELLO:
            raise FrameInvalid("a connection begins with a greeting")
        self._options = decode_greeting(frame.head).options
        challenge = self._greeting.challenge(self._options)
        if challenge is None:
            return {}
        self.wire.send(Kind.CHALLENGE, challenge)
        return None


class ServedCalls(ServedConnection):
    """A connection whose calls are told apart by their request."""

    def __init__(self, server: ConnectionServer[Any]) -> None:
        super().__init__(server)
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def _begin(self, request: int, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do it beside the connection. Raises `FrameInvalid` if that request is under way."""
        if request in self._tasks:
            work.close()
            raise FrameInvalid(f"request {request} is under way already")
        task = self._tasks[request] = self._loop.create_task(work)
        task.add_done_callback(partial(self._over, request))
        return task

    def _over(self, request: int, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(request, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            told = {"message": "a call could not be answered", "exception": error}
            self._loop.call_exception_handler(told)
            self.wire.abort()

    async def _let_go(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def code_of(error: Exception) -> ErrorCode:
    """What an error is called on the wire."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNAVAILABLE)

"""Sessions over framed connections: the server's side, over a Unix socket or TCP.

Frames are those of `herd.wire.framing`.

Invariants:
- Calls of one connection begin in the order in which they came.
- Nothing but a greeting is listened to before the connection is welcome, and nothing at all from
  another user's process over a Unix socket.
- A connection of which nothing was heard for a lease ends, and with it what its guest began.
- What a peer may make the server hold is bounded: calls running, calls arriving, answers not taken.
- What is no frame, or out of turn, is answered by one error, then the connection ends; a call
  that cannot be read is answered like any other that is wrong.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from engine.errors import (
    AccessRefused,
    BookieUnavailable,
    EngineError,
    FormatTooNew,
    FrameInvalid,
    Overloaded,
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
from herd.errors import TooLarge
from herd.wire.failures import failed
from herd.wire.framing import ANSWER, CALL, CANCEL, HERD, LEASE, MORE, PART, send_parts
from herd.wire.guest import Guest
from herd.wire.messages import FORMAT_MAJOR, FORMAT_MINOR, encode
from herd.wire.service import HerdService

_FRAME_OVERHEAD_BYTES: Final = 4_096
_LINGER_S: Final = 1.0
_TOLD_MAX: Final = 16
_CODES: Final[tuple[tuple[type[EngineError], ErrorCode], ...]] = (
    (FormatTooNew, ErrorCode.FORMAT_TOO_NEW),
    (FrameInvalid, ErrorCode.FRAME_INVALID),
    (Overloaded, ErrorCode.OVERLOADED),
    (AccessRefused, ErrorCode.ACCESS_REFUSED),
    (BookieUnavailable, ErrorCode.UNAVAILABLE),
)


class SessionServer:
    """Serves sessions. `accept` makes the protocol of a new connection.

    `admit(options)` looks at a greeting's options and raises to refuse. Who listens gives `context`
    to the listener. Raises `InvalidRequest` for security that cannot be used.
    """

    def __init__(
        self,
        service: HerdService,
        *,
        admit: Callable[[dict[str, Any]], None] | None = None,
        security: Security = NO_SECURITY,
    ) -> None:
        self.service = service
        self.settings = service.settings
        self.admit = admit
        self.arriving_bytes = 0
        self.connections: dict[SessionConnection, None] = {}
        self.context = security.server_context()
        self._security = security
        self._binding = security.binding()
        self._closed = False

    def accept(self) -> FramedConnection:
        """The protocol of one more connection, for `loop.create_unix_server` and its like."""
        return SessionConnection(self).wire

    def accept_counted(self) -> tuple[FramedConnection, "asyncio.Future[None]"]:
        """The same for a `Listener`, with what is done when the connection has ended."""
        connection = SessionConnection(self)
        return connection.wire, connection.ended

    @property
    def sockets_max(self) -> int:
        """How many may be open at once, with those that are only told that they are too many."""
        return self.settings.connections_max + _TOLD_MAX

    @property
    def closing(self) -> bool:
        """Whether nobody is served any more."""
        return self._closed

    def may_accept(self) -> bool:
        """Whether one more connection is within bounds."""
        return len(self.connections) < self.settings.connections_max

    def greeting(self) -> ServerGreeting:
        """What one more connection has to prove."""
        return ServerGreeting(self._security, self._binding)

    async def close(self) -> None:
        """End all connections and what they began; commits under way are finished first."""
        self._closed = True
        connections = list(self.connections)
        for connection in connections:
            connection.wire.close()
        if connections:
            await asyncio.wait([connection.ended for connection in connections], timeout=_LINGER_S)
        for connection in connections:
            connection.wire.abort()
        if connections:
            await asyncio.wait([connection.ended for connection in connections])


class SessionConnection:
    """What the server knows of one connection."""

    def __init__(self, server: SessionServer) -> None:
        self._server = server
        self._settings = server.settings
        self._loop = asyncio.get_running_loop()
        self.wire = FramedConnection(
            self._receive,
            self._on_lost,
            self._on_made,
            garbled=self._end_with,
            frame_bytes_max=GREETING_BYTES_MAX,
        )
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._guest = Guest(server.service)
        self._greeting = server.greeting()
        self._options: dict[str, Any] | None = None
        self._greeted = False
        self._deadline: asyncio.TimerHandle | None = None
        self._heard_frames = 0
        self._parts: dict[int, list[bytes]] = {}
        self._parts_bytes = 0
        self._refused: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._held_for_calls = False
        self._held_for_answers = False

    # The connection

    def _on_made(self, wire: FramedConnection) -> None:
        if not may_trust(peer_user(wire.transport)):
            wire.abort()
            return
        patience_s = self._settings.connect_timeout_ms / 1000
        self._deadline = self._loop.call_later(patience_s, self._greeting_late)
        if self._server.closing:
            self._end_with(BookieUnavailable("the server is ending: ask another"))
            return
        if not self._server.may_accept():
            self._end_with(Overloaded("too many connections: close some, or try again later"))
            return
        self._server.connections[self] = None

    def _greeting_late(self) -> None:
        self._end_with(FrameInvalid("no greeting came in time"))

    def _on_lost(self, failure: EngineError | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.arriving_bytes -= self._parts_bytes
        self._parts.clear()
        self._parts_bytes = 0
        if not self.ended.done():
            self._loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._guest.close()
        finally:
            self._server.connections.pop(self, None)
            self.ended.set_result(None)

    def _end_with(self, error: EngineError) -> None:
        """Tell the peer what is wrong, then hear nothing more of it."""
        kind = Kind.ERROR if self._greeted else Kind.REFUSED
        self.wire.send(kind, encode_error(_code_of(error), str(error)))
        self.wire.close(error)
        self._loop.call_later(_LINGER_S, self.wire.abort)

    def _receive(self, frame: Frame) -> None:
        if self._greeted:
            if frame.kind == CALL:
                self._call(frame)
            elif frame.kind == CANCEL:
                self._cancel(frame.request)
            elif frame.request:
                text = f"frames of kind {frame.kind} are unknown here"
                head = encode_error(ErrorCode.INVALID_REQUEST, text)
                self.wire.send(Kind.ERROR, head, request=frame.request)
            return
        try:
            self._greet(frame)
        except EngineError as error:
            self._end_with(error)

    def _greet(self, frame: Frame) -> None:
        if self._options is None:
            if frame.kind != Kind.HELLO:
                raise FrameInvalid("a connection begins with a greeting")
            self._options = decode_greeting(frame.head).options
            challenge = self._greeting.challenge(self._options)
            if challenge is None:
                self._welcome(self._options, {})
            else:
                self.wire.send(Kind.CHALLENGE, challenge)
        elif frame.kind == Kind.PROOF:
            self._welcome(self._options, self._greeting.check(frame.head))
        else:
            raise FrameInvalid("a challenge is answered by a proof")

    def _welcome(self, options: dict[str, Any], said: dict[str, Any]) -> None:
        if self._server.admit is not None:
            self._server.admit(options)
        major = _major_of(options)
        if major > FORMAT_MAJOR:
            raise FormatTooNew(f"the client's calls are of format {major}, here of {FORMAT_MAJOR}")
        self._greeted = True
        self.wire.take_frames_up_to(self._settings.part_bytes + _FRAME_OVERHEAD_BYTES)
        told = {
            HERD: [FORMAT_MAJOR, FORMAT_MINOR],
            LEASE: self._settings.lease_ms,
            PART: self._settings.part_bytes,
        }
        self.wire.send(Kind.WELCOME, encode_greeting(told | said))
        assert self._deadline is not None
        self._deadline.cancel()
        self._watch()

    def _watch(self) -> None:
        """Look after a lease whether anything was heard; what this side held back counts."""
        self._heard_frames = self.wire.received_frames
        self._deadline = self._loop.call_later(self._settings.lease_ms / 1000, self._look)

    def _look(self) -> None:
        if self.wire.received_frames == self._heard_frames and not self.wire.held:
            self.wire.abort(FrameInvalid("nothing was heard for a whole lease"))
        else:
            self._watch()

    # Calls

    def _call(self, frame: Frame) -> None:
        request = frame.request
        if frame.target == MORE or request in self._parts or request in self._refused:
            data = self._joined(frame)
            if data is None:
                return
        else:
            data = frame.head
        reply = self._guest.handle(data)
        if isinstance(reply, bytes):
            self._send(request, reply)
            if self.wire.queued_bytes > self._settings.queued_bytes_max:
                self._hold_for_answers()
        else:
            self._begin(request, reply)

    def _joined(self, frame: Frame) -> bytes | None:
        """A call of several parts, once it is whole."""
        request, size_bytes = frame.request, len(frame.head)
        if request in self._refused:
            if frame.target != MORE:
                self._refused.discard(request)
            return None
        parts = self._parts.setdefault(request, [])
        if len(self._parts) + len(self._refused) > self._settings.calls_max:
            raise FrameInvalid("too many calls were begun and not finished")
        parts.append(frame.head)
        self._count(size_bytes)
        held_bytes = sum(map(len, parts))
        limit = self._settings.call_bytes_max
        full = self._server.arriving_bytes > self._settings.calls_bytes_max
        if held_bytes > limit or full:
            self._forget_parts(request)
            if frame.target == MORE:
                self._refused.add(request)
            text = f"a call has at most {limit} bytes" if not full else "too much arrives at once"
            self._send(request, encode(failed(TooLarge(text, hint="do it in parts"))))
            return None
        if frame.target == MORE:
            return None
        self._forget_parts(request)
        return b"".join(parts)

    def _forget_parts(self, request: int) -> None:
        self._count(-sum(map(len, self._parts.pop(request))))

    def _count(self, size_bytes: int) -> None:
        self._parts_bytes += size_bytes
        self._server.arriving_bytes += size_bytes

    def _begin(self, request: int, work: Coroutine[Any, Any, bytes]) -> None:
        if request in self._tasks:
            work.close()
            raise FrameInvalid(f"request {request} is under way already")
        task = self._loop.create_task(self._answer(request, work))
        self._tasks[request] = task
        task.add_done_callback(partial(self._ended, request))
        # One that is cancelled before it has begun would never begin this.
        task.add_done_callback(lambda _: work.close())
        if len(self._tasks) >= self._settings.calls_max and not self._held_for_calls:
            self._held_for_calls = True
            self.wire.hold()

    async def _answer(self, request: int, work: Coroutine[Any, Any, bytes]) -> None:
        data = await work
        while self.wire.queued_bytes > self._settings.queued_bytes_max and not self.wire.over:
            await self._taken()
        self._send(request, data)

    async def _taken(self) -> None:
        taken: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            if not taken.done():
                taken.set_result(None)

        self.wire.when_empty(tell)
        await taken

    def _ended(self, request: int, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(request, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            told = {"message": "a call could not be answered", "exception": error}
            self._loop.call_exception_handler(told)
            self.wire.abort()
        if self._held_for_calls and len(self._tasks) <= self._settings.calls_max // 2:
            self._held_for_calls = False
            if not self.wire.over:
                self.wire.release()

    def _cancel(self, request: int) -> None:
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()
        elif request in self._parts:
            self._forget_parts(request)
            # The rest of it may be on its way.
            self._refused.add(request)

    def _hold_for_answers(self) -> None:
        if self._held_for_answers:
            return
        self._held_for_answers = True
        self.wire.hold()

        def go_on() -> None:
            self._held_for_answers = False
            if not self.wire.over:
                self.wire.release()

        self.wire.when_empty(go_on)

    def _send(self, request: int, data: bytes) -> None:
        send_parts(self.wire, ANSWER, request, data, self._settings.part_bytes)


def _major_of(options: dict[str, Any]) -> int:
    said = options.get(HERD)
    if not isinstance(said, list) or not said or not isinstance(said[0], int):
        raise FrameInvalid("sessions in tablespaces are served here, and nothing else")
    return said[0]


def _code_of(error: Exception) -> ErrorCode:
    return next(
        (code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.INVALID_REQUEST
    )

"""Connections that are served: who is let in, what is said first, and how they end.

Invariants:
- Nothing but a greeting is listened to before a connection is welcome, and nothing at all from
  another user's process over a Unix socket.
- No more connections are served at once than allowed; one more is told so, if it is not one of
  many. With security on, nobody is served who has not proved what is asked for.
- A user who is not welcome any more is sent away, whatever they do at the moment.
- What is refused, late or cannot be understood is answered by one error, then the connection ends.
- A connection has ended only when all that it began has.
"""

import asyncio
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Generic, TypeVar

from engine.access.door import BY_ANYBODY, BY_SECRET, CHECK_S, Caller, Door
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
from engine.ports.system_files import are_short, told_short
from engine.transport.address import join_host_port, may_trust, peer_user
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
from engine.transport.greeting import LOGIN, LoginGreeting, ServerGreeting, token_of
from engine.transport.listening import Accepted
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

    Pass `context` to the listener: each connection uses the credentials that were current when it
    was accepted. A `door` lets in clients that do not know the secret; without a secret it is not
    asked. Raises `InvalidRequest` for security that cannot be used.
    """

    def __init__(
        self,
        connect: Callable[[], ConnectionT],
        *,
        greeting_ms: int,
        connections_max: int = sys.maxsize,
        security: Security = NO_SECURITY,
        door: Door | None = None,
    ) -> None:
        self.connections: dict[ConnectionT, None] = {}
        self.connections_max = connections_max
        self.greeting_s = greeting_ms / 1000
        self.closing = False
        self.door = door if security.secret else None
        self._connect = connect
        self._security = security
        self.context()
        security.binding()

    def context(self) -> ssl.SSLContext | None:
        """TLS for the next connection, None without."""
        return self.security.server_context(strangers=self.door is not None)

    @property
    def security(self) -> Security:
        """What the next connection has to prove."""
        return self._security.now

    def accept(self) -> FramedConnection:
        """The protocol of one more connection, for `loop.create_server` and its like."""
        return self._connect().wire

    def accept_counted(self) -> Accepted:
        """Accept a connection from a `Listener`."""
        connection = self._connect()
        return Accepted(connection.wire, connection.ended, connection.shared)

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
        if are_short():
            return Overloaded(told_short())
        return None

    def known(self, wire: FramedConnection) -> Caller:
        """Who has proved the secret, where there is one. Raises `AccessRefused`."""
        if not self._security.on:
            return BY_ANYBODY
        if self._security.authorities is not None and not _has_certificate(wire):
            raise AccessRefused("this server wants a certificate of its cluster, or a user's login")
        return BY_SECRET

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
        self.shared: asyncio.Future[None] = self._loop.create_future()
        """Done once it is a part of the cluster, or has ended: see `Accepted`."""
        self.caller = BY_ANYBODY
        """Who is at the other end, once they are welcome."""
        security = server.security
        self._binding = security.binding()
        self._greeting = ServerGreeting(security, self._binding)
        self._login: LoginGreeting | None = None
        self._looking: asyncio.Task[None] | asyncio.TimerHandle | None = None
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
        if not may_trust(peer_user(wire.transport)) or are_short(wire.descriptor(), reserves=0.5):
            # Who is told why keeps the socket until then: there are none left for that.
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
        if self._looking is not None:
            self._looking.cancel()
        self._loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            await self._let_go()
        finally:
            self._server.connections.pop(self, None)
            self.ended.set_result(None)
            self._leave_share()

    def _leave_share(self) -> None:
        if not self.shared.done():
            self.shared.set_result(None)

    def _end_with(self, error: EngineError) -> None:
        """Tell the peer what is wrong, then hear nothing more of it."""
        kind = Kind.ERROR if self._greeted else Kind.REFUSED
        self.wire.send(kind, encode_error(code_of(error), str(error)))
        self.wire.close(error)
        self._loop.call_later(_LINGER_S, self.wire.abort)

    def _greet(self, frame: Frame) -> None:
        try:
            if self._login is not None:
                self._prove_login(self._login, frame)
                return
            said = self._proved(frame)
            if said is not None:
                self._admit(self._server.known(self.wire), said)
        except EngineError as error:
            self._end_with(error)

    def _proved(self, frame: Frame) -> dict[str, Any] | None:
        """What WELCOME says of the proof; None while it is waited for."""
        if self._options is not None:
            if frame.kind != Kind.PROOF:
                raise FrameInvalid("a challenge is answered by a proof")
            return self._greeting.check(frame.head)
        if frame.kind != Kind.HELLO:
            raise FrameInvalid("a connection begins with a greeting")
        options = self._options = decode_greeting(frame.head).options
        door = self._server.door
        if door is not None:
            token = token_of(options)
            if token is not None:
                self._ask("", partial(self._admit_by, door.by_token, token, {}))
                return None
            if LOGIN in options:
                self._begin_login(door, options[LOGIN])
                return None
        challenge = self._greeting.challenge(options)
        if challenge is None:
            return {}
        self.wire.send(Kind.CHALLENGE, challenge)
        return None

    # Users

    def _begin_login(self, door: Door, first: object) -> None:
        login = self._login = LoginGreeting(self._binding)
        user = login.begin(first)

        async def challenge() -> None:
            verifier = await door.verifier(user, self._peer)
            self.wire.send(Kind.CHALLENGE, login.challenge(verifier))

        self._ask(user, challenge)

    def _prove_login(self, login: LoginGreeting, frame: Frame) -> None:
        if frame.kind != Kind.PROOF:
            raise FrameInvalid("a challenge is answered by a proof")
        door = self._server.door
        assert door is not None
        try:
            with door.judging(login.user, self._peer):
                said = login.check(frame.head)
        except EngineError as error:
            door.refused(login.user, self._peer, error)
            raise
        letting = partial(door.by_proof, proved=login.verifier)
        self._ask(login.user, partial(self._admit_by, letting, login.user, said))

    async def _admit_by(
        self, letting: Callable[[str, str], Awaitable[Caller]], shown: str, said: dict[str, Any]
    ) -> None:
        self._admit(await letting(shown, self._peer), said)

    def _ask(self, who: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what takes time; nothing more is heard meanwhile."""
        door = self._server.door
        assert door is not None

        async def ask() -> None:
            try:
                await work()
            except EngineError as error:
                door.refused(who, self._peer, error)
                self._end_with(error)
            finally:
                if not self.wire.over:
                    self.wire.release()

        self.wire.hold()
        self._looking = self._loop.create_task(ask())

    @property
    def _peer(self) -> str:
        """Where the other end is, for the audit."""
        end = None if self.wire.over else self.wire.transport.get_extra_info("peername")
        return join_host_port(*end[:2]) if isinstance(end, tuple) else ""

    def _admit(self, caller: Caller, said: dict[str, Any]) -> None:
        assert self._options is not None and self._deadline is not None
        self.caller = caller
        told = self._welcome(self._options)
        self._greeted = True
        self._deadline.cancel()
        self.wire.hand_to(self._receive)
        self.wire.send(Kind.WELCOME, encode_greeting(told | said))
        if caller.passing:
            self._look_soon()
        else:
            self._leave_share()

    def _look_soon(self) -> None:
        def look() -> None:
            self._looking = self._loop.create_task(self._look_again())

        self._looking = self._loop.call_later(CHECK_S, look)

    async def _look_again(self) -> None:
        try:
            await self.caller.now()
        except EngineError as error:
            self._end_with(error)
        else:
            self._look_soon()


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


def _has_certificate(wire: FramedConnection) -> bool:
    """Whether the other end showed a certificate; TLS has judged it then."""
    end = wire.transport.get_extra_info("ssl_object")
    return end is not None and bool(end.getpeercert(binary_form=True))

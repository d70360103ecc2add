"""The client's end of a framed connection: requests out, each answered once.

Invariants:
- Every request is answered once: by its reply, by `BookieUnavailable` when the connection is lost
  or the answer is late, by what the other side said was wrong.
- A request leaves after all that were made before it on the same connection.
- A connection is handed out only after the server proved what the client's security asks for.
- A connection that answers nothing for a whole request time is given up; a check that itself comes
  late proves a busy loop, not a dead peer, and blames nobody.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

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
from engine.ports.clock import Clock
from engine.transport.address import TCP, is_loopback, open_connection, parse_host_port
from engine.transport.connection import FramedConnection
from engine.transport.contract import AppendReply, Status
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import (
    ErrorCode,
    Frame,
    Greeting,
    Kind,
    decode_error,
    decode_greeting,
    encode_greeting,
)
from engine.transport.greeting import ClientGreeting
from engine.transport.messages import STATUSES, decode_append_replies
from engine.transport.security import NO_SECURITY, Security, binding_of

_ERRORS: Final[dict[int, type[EngineError]]] = {
    ErrorCode.FORMAT_TOO_NEW: FormatTooNew,
    ErrorCode.INVALID_REQUEST: InvalidRequest,
    ErrorCode.KEY_EXISTS: KeyExists,
    ErrorCode.VERSION_CONFLICT: VersionConflict,
    ErrorCode.FRAME_INVALID: FrameInvalid,
    ErrorCode.OVERLOADED: Overloaded,
    ErrorCode.ACCESS_REFUSED: AccessRefused,
}


class PendingAppend(msgspec.Struct, eq=False):
    """An append that waits for its row of replies."""

    reply: Callable[[AppendReply], None]
    bookie_id: str
    ledger_id: int
    first: int
    last: int
    deadline: float

    def answer(self, status: Status, boot: int = 0) -> None:
        """Tell the caller."""
        self.reply(AppendReply(status, self.ledger_id, self.first, self.last, self.bookie_id, boot))

    def give_up(self, error: EngineError) -> None:
        """There will be no answer."""
        self.answer(Status.UNAVAILABLE)


class PendingCall:
    """A request that waits for one frame."""

    __slots__ = ("abandoned", "deadline", "lasts", "reply")

    def __init__(self, reply: "asyncio.Future[Frame]", deadline: float) -> None:
        self.reply = reply
        self.deadline = deadline
        self.lasts = False
        """Whether the answer is still expected when it is late."""
        self.abandoned = False
        """Whether the caller was cancelled, so that nobody waits for a time-out error."""

    def answer(self, frame: Frame) -> None:
        """Hand the frame to the caller, who may have gone."""
        if not self.reply.done():
            self.reply.set_result(frame)

    def give_up(self, error: EngineError) -> None:
        """There will be no answer."""
        if not self.reply.done():
            self.reply.set_exception(error)


class ClientConnection:
    """A connection that was greeted. Made by `ClientConnection.dial`."""

    def __init__(
        self,
        address: str,
        clock: Clock,
        settings: FramedSettings,
        security: Security = NO_SECURITY,
    ) -> None:
        self.address = address
        self.settings = settings
        self.welcome = Greeting(0, 0, {})
        self.gone_targets: set[int] = set()
        self._clock = clock
        self._patience_s = settings.request_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._security = security.now
        self._greeting = ClientGreeting(self._security)
        self._greeted: asyncio.Future[Greeting] = self._loop.create_future()
        self._pending: dict[int, PendingAppend | PendingCall] = {}
        self._next_request = 1
        self._ticker: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._heard_frames = 0
        self._lost_calls: list[Callable[[], None]] = []
        self._changed: Callable[[int], None] | None = None
        self.wire = FramedConnection(self._receive, self._on_lost)

    @classmethod
    async def dial(
        cls,
        address: str,
        options: dict[str, Any],
        clock: Clock,
        settings: FramedSettings,
        security: Security = NO_SECURITY,
    ) -> "ClientConnection":
        """Connect and greet, over TLS if `security` says so.

        Raises `BookieUnavailable`, `AccessRefused`, `FormatTooNew`, `InvalidRequest`.
        """
        made = cls(address, clock, settings, security)
        try:
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                context = made._security.client_context()
                await open_connection(address, lambda: made.wire, context)
                made._check_clear()
                hello = encode_greeting(options | made._greeting.options(made._binding()))
                made.wire.send(Kind.HELLO, hello)
                made.welcome = await made._greeted
        except TimeoutError as error:
            made.wire.abort()
            raise BookieUnavailable(f"{address} did not greet in time") from error
        except BaseException:
            made.wire.abort()
            raise
        return made

    @property
    def over(self) -> bool:
        """Whether the connection is lost for good."""
        return self.wire.over

    @property
    def full(self) -> bool:
        """Whether more waits to be sent than is allowed."""
        return self.wire.queued_bytes > self.settings.send_bytes_max

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call once when the connection is lost, soon if it is already."""
        if self.over:
            self._loop.call_soon(call)
        else:
            self._lost_calls.append(call)

    def when_changed(self, call: Callable[[int], None]) -> None:
        """Call with the number of each watch that fires."""
        self._changed = call

    def post(self, kind: Kind, head: bytes, *, target: int = 0, request: int = 0) -> None:
        """Send what wants no answer."""
        self.wire.send(kind, head, target=target, request=request, posted=True)

    async def call(
        self, kind: Kind, head: bytes, *, target: int = 0, patience_ms: int = 0
    ) -> Frame:
        """Send a request and wait for its answer, `patience_ms` longer than usual.

        Raises `BookieUnavailable`, or what the other side answered.
        """
        request, pending = self._ask(kind, head, target, patience_ms)
        try:
            frame = await pending.reply
        finally:
            self._pending.pop(request, None)
        return self._answered(frame)

    async def call_through(
        self, kind: Kind, head: bytes, abandon: "Callable[[asyncio.Future[Frame]], None]"
    ) -> Frame:
        """As `call`; if the caller is cancelled, `abandon` is called with the pending answer.

        That future ends only when the answer has arrived or cannot arrive any more: no time-out.
        """
        request, pending = self._ask(kind, head)
        pending.lasts = True
        try:
            frame = await pending.reply
        except asyncio.CancelledError:
            if request in self._pending:
                # The old future was cancelled or has timed out, so it cannot be used again.
                pending.reply = self._loop.create_future()
                pending.abandoned = True
                abandon(pending.reply)
            raise
        except EngineError:
            self._pending.pop(request, None)
            raise
        return self._answered(frame)

    def append(
        self,
        head: bytes,
        body: list[bytes],
        target: int,
        pending: PendingAppend,
        *,
        urgent: bool = False,
    ) -> None:
        """Send an append; `pending` is answered once."""
        pending.deadline = self._clock.monotonic() + self._patience_s
        request = self._register(pending)
        self.wire.send(Kind.APPEND, head, target=target, request=request, body=body, urgent=urgent)

    def error_of(self, frame: Frame) -> EngineError:
        """The error that an ERROR or REFUSED frame tells of."""
        try:
            code, text = decode_error(frame.head)
        except FrameInvalid as error:
            self.wire.abort(error)
            return error
        return _ERRORS.get(code, BookieUnavailable)(text)

    def abort(self, error: EngineError) -> None:
        """Give the connection up: the other side does not keep to the protocol."""
        self.wire.abort(error)

    def close(self) -> None:
        """End the connection; what is pending is answered as unavailable."""
        self.wire.close()

    # Inside

    def _ask(
        self, kind: Kind, head: bytes, target: int = 0, patience_ms: int = 0
    ) -> tuple[int, PendingCall]:
        """Send a request. Returns its number and the pending call."""
        if self.over:
            raise BookieUnavailable(f"the connection to {self.address} is lost")
        if self.full:
            raise Overloaded(f"the send queue to {self.address} is full")
        pending = PendingCall(self._loop.create_future(), self._deadline(patience_ms))
        request = self._register(pending)
        self.wire.send(kind, head, target=target, request=request)
        return request, pending

    def _answered(self, frame: Frame) -> Frame:
        if frame.kind == Kind.ERROR:
            raise self.error_of(frame)
        return frame

    def _deadline(self, patience_ms: int) -> float:
        return self._clock.monotonic() + (self.settings.request_timeout_ms + patience_ms) / 1000

    def _register(self, pending: PendingAppend | PendingCall) -> int:
        request = self._next_request
        self._next_request += 1
        self._pending[request] = pending
        if self._ticker is None:
            self._arm()
        return request

    def _receive(self, frame: Frame) -> None:
        if frame.kind == Kind.APPEND_REPLIES:
            for request, status, _, _, _, boot in decode_append_replies(frame.head):
                pending = self._pending.pop(request, None)
                if isinstance(pending, PendingAppend):
                    pending.answer(STATUSES.get(status, Status.UNAVAILABLE), boot)
        elif frame.kind == Kind.WELCOME:
            self._greet(frame)
        elif frame.kind == Kind.CHALLENGE:
            self._prove(frame)
        elif frame.kind == Kind.REFUSED:
            if not self._greeted.done():
                self._greeted.set_exception(self.error_of(frame))
        elif frame.kind == Kind.ERROR and not frame.request:
            self.wire.abort(self.error_of(frame))
        elif frame.kind == Kind.GONE:
            self.gone_targets.add(frame.target)
        elif frame.kind == Kind.CHANGED:
            if self._changed is not None:
                self._changed(frame.request)
        elif frame.request:
            pending = self._pending.pop(frame.request, None)
            if isinstance(pending, PendingCall):
                pending.answer(frame)
            elif pending is not None:
                pending.give_up(self.error_of(frame))

    def _greet(self, frame: Frame) -> None:
        if self._greeted.done():
            raise FrameInvalid("a second greeting")
        try:
            welcome = decode_greeting(frame.head)
            self._greeting.check(welcome.options)
            self._greeted.set_result(welcome)
        except (AccessRefused, FormatTooNew) as error:
            self._greeted.set_exception(error)

    def _prove(self, frame: Frame) -> None:
        if self._greeted.done():
            raise FrameInvalid("a challenge after the greeting")
        try:
            self.wire.send(Kind.PROOF, self._greeting.answer(frame.head, self._binding()))
        except AccessRefused as error:
            self._greeted.set_exception(error)

    def _binding(self) -> bytes:
        """The hash of the certificate that the server has shown."""
        end = self.wire.transport.get_extra_info("ssl_object")
        return binding_of(end.getpeercert(binary_form=True) if end is not None else None)

    def _check_clear(self) -> None:
        """Raise `InvalidRequest` where a token would cross a network in the clear."""
        clear = self._greeting.in_the_clear and not self.wire.encrypted
        if clear and self.address.startswith(TCP):
            host, _ = parse_host_port(self.address.removeprefix(TCP))
            if not is_loopback(host):
                raise InvalidRequest(
                    f"{self.address}: users and tokens log in only over TLS or within the machine; "
                    "name the authorities"
                )

    def _on_lost(self, failure: EngineError | None) -> None:
        why = f": {failure}" if failure is not None else ""
        error = BookieUnavailable(f"the connection to {self.address} was lost{why}")
        if not self._greeted.done():
            if failure is None and self.wire.encrypted:
                # Python's TLS hangs up on a bad certificate without saying so.
                failure = AccessRefused(
                    f"{self.address} hung up after the handshake of TLS: it does not accept this "
                    "client's certificate, or was just stopped"
                )
            elif failure is None and self.address.startswith(TCP):
                failure = AccessRefused(
                    f"{self.address} hung up before it greeted: perhaps it wants TLS, and this "
                    "client was given no authorities; or it was just stopped"
                )
            self._greeted.set_exception(failure or error)
            self._greeted.exception()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        pending, self._pending = list(self._pending.values()), {}
        for waiting in pending:
            waiting.give_up(error)
        calls, self._lost_calls = self._lost_calls, []
        for call in calls:
            call()

    def _arm(self) -> None:
        interval_s = self.settings.request_timeout_ms / 4000
        self._tick_due = self._clock.monotonic() + interval_s
        self._ticker = self._loop.call_later(interval_s, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        now = self._clock.monotonic()
        if now - self._tick_due < self.settings.request_timeout_ms / 4000:
            late = [number for number, waits in self._pending.items() if waits.deadline < now]
            if late and self.wire.received_frames == self._heard_frames:
                self.wire.abort(BookieUnavailable("no answer in time"))
                return
            for number in late:
                self._give_up_late(number, now)
        self._heard_frames = self.wire.received_frames
        if self._pending:
            self._arm()

    def _give_up_late(self, number: int, now: float) -> None:
        waits = self._pending[number]
        if isinstance(waits, PendingCall) and waits.abandoned:
            waits.deadline = now + self._patience_s
            return
        if not isinstance(waits, PendingCall) or not waits.lasts:
            del self._pending[number]
        waits.give_up(BookieUnavailable(f"{self.address} did not answer in time"))


def refuse(pending: PendingAppend, status: Status) -> None:
    """Answer an append that was not sent, later, as the contract wants it."""
    asyncio.get_running_loop().call_soon(partial(pending.answer, status))


async def speaks_frames(
    address: str, clock: Clock, settings: FramedSettings, security: Security = NO_SECURITY
) -> bool:
    """Whether a server of framed connections listens at an address. This does not log in.

    Raises `InvalidRequest` for certificates that cannot be used.
    """
    tls = replace(
        security.now,
        user="",
        password="",
        token="",
        read_token="",
        secret=b"",
        other_secret=b"",
        source=None,
    )
    made = ClientConnection(address, clock, settings, tls)
    context = security.client_context()
    with contextlib.suppress(EngineError, TimeoutError):
        async with asyncio.timeout(settings.connect_timeout_ms / 1000):
            await open_connection(address, lambda: made.wire, context)
            made.wire.send(Kind.HELLO, encode_greeting({}))
            await made._greeted
    made.wire.abort()
    return made.wire.received_frames > 0

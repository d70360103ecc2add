"""A channel over a framed connection.

Invariants:
- Every call is answered, or raises `SessionLost` when the connection is lost.
- The server hears something at least three times a lease, and is given up when it says nothing for
  one.
- An answer is handed out whole.
"""

import asyncio
import math
from dataclasses import replace
from typing import Any, Final

import msgspec

from engine.errors import (
    AccessRefused,
    BookieUnavailable,
    EngineError,
    FormatTooNew,
    FrameInvalid,
    InvalidRequest,
    Overloaded,
)
from engine.ports.clock import Clock
from engine.transport.framed_client import ClientConnection, PendingCall
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import Frame, Kind
from engine.transport.security import NO_SECURITY, Security
from herd.errors import (
    AccessDenied,
    Error,
    InterfaceError,
    LeaderUnavailable,
    SessionLost,
    TooLarge,
    TooManySessions,
)
from herd.wire.framing import ANSWER, CALL, CANCEL, HERD, LEASE, MORE, PART, send_parts
from herd.wire.messages import FORMAT_MAJOR, FORMAT_MINOR, Renew, encode
from herd.wire.settings import WireSettings

_RENEW: Final = encode(Renew())
_ANSWER_BYTES_MAX: Final = 1 << 30


class FramedChannel(ClientConnection):
    """A connection to a `SessionServer`. Made by `dial_sessions`."""

    def __init__(
        self,
        address: str,
        clock: Clock,
        settings: FramedSettings,
        security: Security = NO_SECURITY,
    ) -> None:
        super().__init__(address, clock, settings, security)
        self._bounds = WireSettings()
        self._parts: dict[int, list[bytes]] = {}
        self._parts_bytes = 0
        self._renewing: asyncio.TimerHandle | None = None
        self._renew_s = 0.0

    def begin(self, settings: WireSettings, lease_ms: int) -> None:
        """Hold the lease from now on."""
        self._bounds = settings
        self._renew_s = lease_ms / 3000
        self._renewing = self._loop.call_later(self._renew_s, self._renew)
        self.when_lost(self._stop_renewing)

    async def ask(self, message: bytes) -> bytes:
        """The answer to a call; see `Channel`.

        Raises `SessionLost`, `TooLarge`, `InterfaceError`.
        """
        limit = self._bounds.call_bytes_max
        if len(message) > limit:
            raise TooLarge(f"a call has {len(message)} bytes; {limit} fit", hint="do it in parts")
        while self.wire.queued_bytes > self._bounds.queued_bytes_max:
            await self.wire.taken()
        if self.over:
            raise SessionLost(f"the connection to {self.address} is lost", hint="connect again")
        reply: asyncio.Future[Frame] = self._loop.create_future()
        request = self._register(PendingCall(reply, math.inf))
        send_parts(self.wire, CALL, request, message, self._bounds.part_bytes)
        try:
            frame = await reply
        except asyncio.CancelledError:
            self.wire.send(CANCEL, b"", request=request)
            raise
        except EngineError as error:
            raise SessionLost(f"{error}", hint="connect again") from error
        finally:
            self._pending.pop(request, None)
        if frame.kind == Kind.ERROR:
            raise InterfaceError(str(self.error_of(frame)))
        return frame.head

    @property
    def owed(self) -> bool:
        """Whether a call waits for its answer."""
        return bool(self._pending)

    @property
    def heard(self) -> int:
        """How many frames have come."""
        return self.wire.received_frames

    def give_up(self, why: str) -> None:
        """End the connection at once: who waits for an answer hears that it is lost."""
        self.wire.abort(BookieUnavailable(f"{self.address}: {why}"))

    def close(self) -> None:
        """End the connection, and with it all that was begun over it."""
        self._stop_renewing()
        super().close()

    # Inside

    def _receive(self, frame: Frame) -> None:
        if frame.kind != ANSWER:
            super()._receive(frame)
            return
        if frame.target == MORE:
            self._parts.setdefault(frame.request, []).append(frame.head)
            self._parts_bytes += len(frame.head)
            if self._parts_bytes > _ANSWER_BYTES_MAX:
                raise FrameInvalid("an answer is larger than any that is asked for")
            return
        parts = self._parts.pop(frame.request, None)
        if parts is not None:
            self._parts_bytes -= sum(map(len, parts))
            frame = msgspec.structs.replace(frame, head=b"".join([*parts, frame.head]))
        pending = self._pending.pop(frame.request, None)
        if isinstance(pending, PendingCall):
            pending.answer(frame)

    def _renew(self) -> None:
        if self.over:
            return
        reply: asyncio.Future[Frame] = self._loop.create_future()
        # Nobody awaits it: when it is late and nothing else is heard, the connection is given up.
        reply.add_done_callback(_heard)
        request = self._register(PendingCall(reply, self._deadline(0)))
        self.wire.send(CALL, _RENEW, request=request)
        self._renewing = self._loop.call_later(self._renew_s, self._renew)

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None


def _heard(reply: "asyncio.Future[Frame]") -> None:
    if not reply.cancelled():
        reply.exception()


async def dial_sessions(
    address: str,
    clock: Clock,
    *,
    options: dict[str, Any] | None = None,
    settings: WireSettings | None = None,
    security: Security = NO_SECURITY,
) -> FramedChannel:
    """Connect to a server of sessions.

    Raises `LeaderUnavailable` if nobody answers there, `AccessDenied`, `TooManySessions`,
    `InterfaceError` for a server of something else.
    """
    settings = settings or WireSettings()
    greeting = (options or {}) | {HERD: [FORMAT_MAJOR, FORMAT_MINOR]}
    framed = FramedSettings(
        request_timeout_ms=settings.lease_ms, connect_timeout_ms=settings.connect_timeout_ms
    )
    try:
        channel = await FramedChannel.dial(address, greeting, clock, framed, security)
    except EngineError as error:
        raise _refused(address, error) from error
    assert isinstance(channel, FramedChannel)
    said = channel.welcome.options
    lease_ms, part_bytes = _number(said.get(LEASE)), _number(said.get(PART))
    if HERD not in said or lease_ms <= 0 or part_bytes <= 0:
        channel.close()
        raise InterfaceError(f"{address} serves no sessions", hint="ask a node of tablespaces")
    bounds = replace(settings, part_bytes=min(settings.part_bytes, part_bytes))
    channel.begin(bounds, lease_ms)
    return channel


def _number(said: object) -> int:
    return said if isinstance(said, int) else 0


def _refused(address: str, error: EngineError) -> Error:
    if isinstance(error, AccessRefused):
        return AccessDenied(f"{address}: {error}", hint="give the secret or the certificate")
    if isinstance(error, Overloaded):
        return TooManySessions(f"{address}: {error}")
    if isinstance(error, FormatTooNew | InvalidRequest | FrameInvalid):
        return InterfaceError(f"{address}: {error}")
    assert isinstance(error, BookieUnavailable | EngineError)
    return LeaderUnavailable(f"{address}: {error}", hint="try again")

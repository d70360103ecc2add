"""Objects on their way in or out: how many at a time, how slow, and how much of them is in memory.

Invariants:
- Who sends or takes bytes by the drop loses the connection: nobody keeps others out by waiting.
- No byte of an object is read from its connection before there is room for it.
- One user has a share of the places, and of that room.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request

from blobit.settings import BlobSettings
from broker.http.bodies import BodyLate
from engine.access.shares import Shares
from engine.ports.clock import Clock
from herdbook.http.errors import HttpError
from herdbook.http.settings import WebSettings

SMALL_BYTES_MAX: Final = BlobSettings().shared_object_bytes_max
"""The most room that one object asks for."""
LIMIT: Final = "herdbook.limit"
"""In a request's scope: the time-out that its answer has."""


def give_time(request: Request, timeout_ms: int) -> None:
    """Let a request's answer take so long from now on: what goes in is bounded by its own rate."""
    limit: asyncio.Timeout | None = request.scope.get(LIMIT)
    if limit is not None and not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time() + timeout_ms / 1000)


class Room:
    """What one object on its way in may hold in memory, of what a user's may."""

    def __init__(self, rooms: Shares, user: str, size_bytes: int) -> None:
        self._rooms = rooms
        self._user = user
        self._size_bytes = size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Give back what is over so many bytes."""
        surplus_bytes = max(0, self._size_bytes - size_bytes)
        self._size_bytes -= surplus_bytes
        self._rooms.give_back(self._user, surplus_bytes)


class Transfers:
    """Counts and times them."""

    def __init__(self, settings: WebSettings, clock: Clock) -> None:
        self.settings = settings
        self._running = Shares(settings.transfers_max)
        self._clock = clock
        self._incoming = Shares(settings.incoming_bytes_max, SMALL_BYTES_MAX)

    @property
    def running(self) -> int:
        """How many there are."""
        return self._running.held

    @contextmanager
    def one(self, user: str = "") -> Iterator[None]:
        """One of a user's, as long as the block lasts. Raises `HttpError` 503."""
        if not self._running.take(user):
            raise HttpError(
                503, "overloaded", "as many objects as may be are on their way already", retry_s=1
            )
        try:
            yield
        finally:
            self._running.give_back(user)

    @asynccontextmanager
    async def room(self, size_bytes: int, user: str = "") -> AsyncIterator[Room]:
        """Room for so many bytes of an object, as long as the block lasts, in the order of asking.

        Raises `HttpError` 503 where there is none for as long as a sender may be silent.
        """
        try:
            async with asyncio.timeout(self.settings.transfer_idle_ms / 1000):
                await self._incoming.acquire(user, size_bytes)
        except TimeoutError:
            why = "as many bytes of objects as may be are on their way in already"
            raise HttpError(503, "overloaded", why, retry_s=1) from None
        room = Room(self._incoming, user, size_bytes)
        try:
            yield room
        finally:
            room.shrink(0)

    def time_s(self, length: int) -> float:
        """How long so many bytes may take."""
        settings = self.settings
        return settings.transfer_grace_ms / 1000 + length / settings.transfer_bytes_a_second

    async def incoming(self, request: Request) -> AsyncGenerator[bytes, None]:
        """A request's body in pieces, as they come.

        Raises `BodyLate`, `HttpError` 413, and Starlette's `ClientDisconnect` for one that is cut
        off: what came of it is not all of it.
        """
        begun_s, idle_s = self._clock.monotonic(), self.settings.transfer_idle_ms / 1000
        stream = request.stream()
        taken = 0
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    piece = await anext(stream, None)
            except TimeoutError:
                raise BodyLate from None
            if piece is None:
                break
            taken += len(piece)
            if taken > self.settings.object_bytes_max:
                raise too_long(self.settings)
            if self._clock.monotonic() - begun_s > self.time_s(taken):
                raise BodyLate
            give_time(request, self.settings.request_timeout_ms)
            if piece:
                yield piece
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) != taken:
            raise ClientDisconnect


def too_long(settings: WebSettings) -> HttpError:
    """Why an object is refused."""
    most = f"an object has at most {settings.object_bytes_max:,} bytes"
    return HttpError(413, "too_large", most, remedy="put it in parts, by the command")

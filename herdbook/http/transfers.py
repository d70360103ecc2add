"""Objects on their way in or out: how many at a time, and how slow they may be.

Invariants:
- Who sends or takes bytes by the drop loses the connection: nobody keeps others out by waiting.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from broker.http.bodies import BodyLate
from engine.ports.clock import Clock
from herdbook.http.errors import HttpError
from herdbook.http.settings import WebSettings


class Transfers:
    """Counts and times them."""

    def __init__(self, settings: WebSettings, clock: Clock) -> None:
        self.settings = settings
        self.running = 0
        self._clock = clock

    @contextmanager
    def one(self) -> Iterator[None]:
        """One of them, as long as the block lasts. Raises `HttpError` 503."""
        if self.running >= self.settings.transfers_max:
            raise HttpError(
                503, "overloaded", f"{self.running:,} objects are on their way already", retry_s=1
            )
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def time_s(self, length: int) -> float:
        """How long so many bytes may take."""
        settings = self.settings
        return settings.transfer_grace_ms / 1000 + length / settings.transfer_bytes_a_second

    async def incoming(self, request: Request, piece_bytes: int) -> AsyncGenerator[bytes, None]:
        """A request's body in pieces of about that size.

        Raises `BodyLate`, `HttpError` 413, and Starlette's `ClientDisconnect` for one that is cut
        off: what came of it is not all of it.
        """
        begun_s, idle_s = self._clock.monotonic(), self.settings.transfer_idle_ms / 1000
        stream = request.stream()
        parts: list[bytes] = []
        gathered = taken = 0
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    part = await anext(stream, None)
            except TimeoutError:
                raise BodyLate from None
            if part is None:
                break
            parts.append(part)
            gathered, taken = gathered + len(part), taken + len(part)
            if taken > self.settings.object_bytes_max:
                raise too_long(self.settings)
            if self._clock.monotonic() - begun_s > self.time_s(taken):
                raise BodyLate
            if gathered >= piece_bytes:
                yield b"".join(parts)
                parts, gathered = [], 0
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) != taken:
            raise ClientDisconnect
        if parts:
            yield b"".join(parts)


def too_long(settings: WebSettings) -> HttpError:
    """Why an object is refused."""
    most = f"an object has at most {settings.object_bytes_max:,} bytes"
    return HttpError(413, "too_large", most, remedy="put it in parts, by the command")

"""Reading the bodies of requests within bounds.

Invariants:
- A body is refused by its announced length before a byte of it is read, and cut off where it grows
  over its bound; all bodies that are being read together are bounded too, and those of one user.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from broker.errors import Overloaded, TooLarge
from engine.access.shares import Shares


class BodyLate(Exception):
    """A body did not come in time; nothing was done."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Bounds. Of one body, of all bodies that are being read, and of long polls, in number.

    One user's bodies have a share of that together, or room for one.

    A body has to come within `body_timeout_ms`: who dribbles it would keep others out.
    """

    body_bytes_max: int = 8 * 1024 * 1024
    bodies_bytes_max: int = 64 * 1024 * 1024
    body_timeout_ms: int = 30_000
    waits_max: int = 1_000

    def __post_init__(self) -> None:
        assert 0 < self.body_bytes_max <= self.bodies_bytes_max
        assert self.waits_max > 0 and self.body_timeout_ms > 0


class Bodies:
    """The bodies of requests that are being answered."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._reading = Shares(settings.bodies_bytes_max, settings.body_bytes_max)

    @asynccontextmanager
    async def of(self, request: Request, user: str = "") -> AsyncIterator[bytes]:
        """The body of a user's request, which counts as long as the block lasts.

        Raises `TooLarge`, `Overloaded`, `BodyLate`, Starlette's `ClientDisconnect`.
        """
        taken = 0
        settings = self._settings

        def grow(size_bytes: int) -> None:
            nonlocal taken
            if taken + size_bytes > settings.body_bytes_max:
                raise TooLarge(f"a body has at most {settings.body_bytes_max:,} bytes")
            if not self._reading.take(user, size_bytes):
                raise Overloaded("as many bytes as may be are being read already")
            taken += size_bytes

        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and len(announced) < 20:
            if int(announced) > settings.body_bytes_max:
                raise TooLarge(f"a body has at most {settings.body_bytes_max:,} bytes")
        try:
            yield await self._read(request, grow)
        finally:
            self._reading.give_back(user, taken)

    async def _read(self, request: Request, grow: Callable[[int], None]) -> bytes:
        parts = []
        try:
            async with asyncio.timeout(self._settings.body_timeout_ms / 1000):
                async for part in request.stream():
                    grow(len(part))
                    parts.append(part)
        except TimeoutError:
            raise BodyLate from None
        return b"".join(parts)

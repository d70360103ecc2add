"""Reading ahead of a slow caller, within bounds.

Invariants:
- Pieces come in order, each once; an error comes after the pieces before it.
- Held ahead are at most `bytes_max` and one piece; then the source waits.
- When the caller stops early, the source is closed.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing


async def read_ahead(
    source: AsyncGenerator[bytes, None], bytes_max: int
) -> AsyncGenerator[bytes, None]:
    """The pieces of a source, fetched while the caller works on the ones before."""
    ahead = _Ahead(bytes_max)
    filling = asyncio.get_running_loop().create_task(ahead.fill(source))
    try:
        while (piece := await ahead.take()) is not None:
            yield piece
        await filling
    finally:
        filling.cancel()
        await asyncio.wait([filling])


class _Ahead:
    """The pieces between the two sides."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pieces: deque[bytes | None] = deque()
        self._held_bytes = 0
        self._filled = asyncio.Event()
        self._room = asyncio.Event()

    async def fill(self, source: AsyncGenerator[bytes, None]) -> None:
        """Take from the source to its end; None in the queue marks it, errors too."""
        try:
            async with aclosing(source):
                async for piece in source:
                    self._pieces.append(piece)
                    self._held_bytes += len(piece)
                    self._filled.set()
                    while self._held_bytes >= self._bytes_max:
                        self._room.clear()
                        await self._room.wait()
        finally:
            self._pieces.append(None)
            self._filled.set()

    async def take(self) -> bytes | None:
        """The next piece, or None at the end."""
        while not self._pieces:
            self._filled.clear()
            await self._filled.wait()
        piece = self._pieces.popleft()
        if piece is not None:
            self._held_bytes -= len(piece)
            self._room.set()
        return piece

"""Calls of threads to the event loop on which the blob store works.

Invariants:
- A call on the loop's own thread, or in a forked child, raises `BlobsClosed`; it never hangs.
- An interrupted wait abandons the wait.
- What is uploaded in pieces is read in its caller's thread, one hop a piece.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from blobit.errors import BlobsClosed
from blobit.sources import FILE_READ_BYTES, ReadableFile
from engine.errors import InvalidRequest
from engine.ports.system_loop import BackgroundLoop

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

SyncSource = bytes | bytearray | memoryview | Iterable[bytes] | ReadableFile
"""What can be put: bytes, pieces of bytes that come one by one, or an open binary file."""

_END: Final = b""


class Uploading(Protocol[R_co]):
    """What takes an object piece by piece."""

    async def write(self, data: bytes) -> None:
        """Take the next bytes."""
        ...

    async def finish(self) -> R_co:
        """All of it is durable."""
        ...

    async def abort(self) -> None:
        """Forget it."""
        ...


class Calls:
    """Runs coroutines on a background loop, for any thread but its own."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """What a coroutine returns or raises. Raises `BlobsClosed` where it cannot run."""
        try:
            return self._loop.run(call)
        except InvalidRequest as error:
            raise BlobsClosed(str(error)) from error

    def upload(self, begin: Callable[[], Uploading[R]], pieces: Iterable[bytes]) -> R:
        """Store what comes in pieces; what they raise is raised, and nothing is stored."""

        async def beginning() -> Uploading[R]:
            return begin()

        upload = self.run(beginning)
        try:
            for piece in pieces:
                self.run(lambda piece=piece: upload.write(piece))  # type: ignore[misc]
            return self.run(upload.finish)
        except BaseException:
            self.run(upload.abort)
            raise

    def stream(self, pieces: AsyncGenerator[bytes, None]) -> Iterator[bytes]:
        """The pieces of a stream of the loop."""
        taking: asyncio.Task[Any] | None = None

        async def following() -> bytes:
            nonlocal taking
            taking = asyncio.current_task()
            return await anext(pieces, _END)

        async def end() -> None:
            # Whoever was interrupted while it waited has left its wait behind.
            if taking is not None and not taking.done():
                taking.cancel()
                await asyncio.wait([taking])
            await pieces.aclose()

        try:
            while piece := self.run(following):
                yield piece
        finally:
            # An iterator thrown away in a wrong place ends without its source being closed.
            with suppress(BlobsClosed):
                self.run(end)


def pieces_of(source: SyncSource) -> Iterator[bytes]:
    """The pieces of a source. Raises `TypeError` for what is no source of bytes."""
    if isinstance(source, bytes | bytearray | memoryview):
        return iter([bytes(source)])
    if isinstance(source, ReadableFile):
        file = source
        return iter(lambda: file.read(FILE_READ_BYTES), _END)
    other: object = source
    if isinstance(other, Iterable) and not isinstance(other, str):
        return iter(other)
    raise TypeError(f"{type(source).__name__} is no source of bytes")

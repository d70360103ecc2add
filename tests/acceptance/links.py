"""A link between two processes that a test can cut, as a switch or a cable would.

Invariants:
- While it is cut, bytes go nowhere and nobody is told: connections neither end nor are refused.
- Healed, it goes on where it was: bytes that were under way arrive, in order.
"""

import asyncio
import contextlib
from typing import Final

_CHUNK_BYTES: Final = 64 * 1024


class Link:
    """Listens on a port of its own and passes everything on to another. Made by `open`."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @staticmethod
    async def open(target_port: int) -> "Link":
        """A link to a port of this machine."""
        link = Link(target_port)
        link._server = await asyncio.start_server(link._serve, "127.0.0.1", 0)
        link.port = link._server.sockets[0].getsockname()[1]
        return link

    def cut(self) -> None:
        """From now on nothing passes."""
        self._whole.clear()

    def heal(self) -> None:
        """From now on everything passes again."""
        self._whole.set()

    async def close(self) -> None:
        """End it and every connection through it."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._whole.wait()
            there_reader, there_writer = await asyncio.open_connection(
                "127.0.0.1", self._target_port
            )
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        ways = [
            asyncio.ensure_future(self._pump(reader, there_writer)),
            asyncio.ensure_future(self._pump(there_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            for way in ways:
                way.cancel()
            writer.transport.abort()
            there_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
            await self._whole.wait()

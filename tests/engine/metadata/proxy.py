"""A TCP proxy that loses replies, or everything, when it is told to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Passes bytes both ways between clients and one server."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._wires: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.swallowing = False
        self.refusing = False
        self.swallowed = asyncio.Event()
        self.hosts = ""

    def cut(self) -> None:
        """End every connection at once."""
        for wire in self._wires:
            wire.transport.abort()
        self._wires.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        if self.refusing:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        self._wires += [writer, server_writer]
        for task in (
            asyncio.create_task(self._pass(reader, server_writer, reply=False)),
            asyncio.create_task(self._pass(server_reader, writer, reply=True)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, reply: bool
    ) -> None:
        try:
            while data := await source.read(65_536):
                if reply and self.swallowing:
                    self.swallowed.set()
                    continue
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()

    async def close(self) -> None:
        """End everything."""
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    """A proxy to "host:port", for as long as the context lasts."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.hosts = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()

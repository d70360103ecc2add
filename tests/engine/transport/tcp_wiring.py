"""A model bookie behind the framed wire over TCP, with any security; and raw ends to it."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.metadata.bookies import Bookies, Registration
from engine.metadata.memory import MemoryTree
from engine.ports.clock import SystemClock
from engine.transport.contract import Bookie
from engine.transport.dialing import DialingSettings, DialingTransport, framed_dial
from engine.transport.framed_server import FramedServer
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import Frame, FrameReader, Kind, encode_greeting, frame_header
from engine.transport.listening import Listener, listen_tcp
from engine.transport.security import NO_SECURITY, Security
from tests.engine.transport.model_bookie import ModelBookie


class TcpHouse:
    """Bookies, their server, and transports to them."""

    def __init__(
        self, bookies: list[Bookie], security: Security, settings: FramedSettings | None
    ) -> None:
        self.bookies = bookies
        self.settings = settings or FramedSettings()
        self.server = FramedServer(cluster_id="c", settings=self.settings, security=security)
        self.port = 0
        self.listener: Listener | None = None
        self._transports: list[DialingTransport] = []
        self._ends: list[RawEnd] = []

    async def start(self, of_address_max: int | None = None) -> None:
        for bookie in self.bookies:
            self.server.add(bookie)
        self.listener = await listen_tcp(
            self.server.accept_counted,
            "127.0.0.1",
            0,
            sockets_max=self.server.sockets_max,
            context=self.server.context,
            handshake_timeout_ms=self.settings.connect_timeout_ms,
            backlog=128,
            # All that these tests dial comes from one address.
            of_address_max=of_address_max or sys.maxsize,
        )
        self.port = self.listener.port

    async def transport(
        self, security: Security = NO_SECURITY, *, host: str = "127.0.0.1"
    ) -> DialingTransport:
        """One more client, which knows `security`, and knows the server as `host`."""
        registry = Bookies(MemoryTree("c").session())
        for bookie in self.bookies:
            address = f"tcp:{host}:{self.port}"
            await registry.register(Registration(bookie.bookie_id, 1, address))
        clock = SystemClock()
        made = DialingTransport(
            registry,
            dial=framed_dial(security, clock, self.settings),
            clock=clock,
            rng=random.Random(1),
            settings=DialingSettings(redial_first_ms=1, redial_max_ms=1),
        )
        self._transports.append(made)
        return made

    async def raw(self, whence: str = "127.0.0.1") -> "RawEnd":
        """A bare connection without TLS, from an address of this machine."""
        end = RawEnd(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=(whence, 0)))
        self._ends.append(end)
        return end

    async def close(self) -> None:
        for end in self._ends:
            end.writer.transport.abort()
        for transport in self._transports:
            await transport.close()
        if self.listener is not None:
            self.listener.close()
        await self.server.close()


class RawEnd:
    """Bytes to a server, frames from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._came: list[Frame] = []

    def send(self, kind: Kind, head: bytes = b"", request: int = 0) -> None:
        self.writer.write(frame_header(kind, 0, request, head) + head)

    def hello(self, **options: object) -> None:
        self.send(Kind.HELLO, encode_greeting(dict(options)))

    async def frame(self) -> Frame | None:
        """The next frame, None if the connection has ended instead."""
        while not self._came:
            data = await self.reader.read(65_536)
            if not data:
                return None
            self._came += self._frames.feed(data)
        return self._came.pop(0)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return


@asynccontextmanager
async def tcp_house(
    security: Security = NO_SECURITY,
    settings: FramedSettings | None = None,
    bookies: list[Bookie] | None = None,
    of_address_max: int | None = None,
) -> AsyncIterator[TcpHouse]:
    """A running house; a model bookie `a` if no bookies are given. One address may have all of its
    sockets, unless `of_address_max` says otherwise.
    """
    made = TcpHouse(bookies or [ModelBookie("a")], security, settings)
    await made.start(of_address_max)
    try:
        yield made
    finally:
        await made.close()

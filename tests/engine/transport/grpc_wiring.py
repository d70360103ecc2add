"""Bookies behind a gRPC server of this process, and a transport that dials them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from engine.metadata.bookies import Registration
from engine.ports.clock import SystemClock
from engine.transport.contract import Bookie
from engine.transport.grpc_client import GrpcBookie, grpc_dial
from engine.transport.grpc_server import GrpcServer
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security
from tests.engine.transport.model_bookie import ModelBookie


class GrpcTransport:
    """Dials each bookie once; `Transport`, without its reconnections."""

    def __init__(
        self, address: str, security: Security = NO_SECURITY, settings: GrpcSettings | None = None
    ) -> None:
        self.address = address
        self._dial: Callable[[Registration], Awaitable[Bookie]] = grpc_dial(
            security, SystemClock(), settings
        )
        self._bookies: dict[str, GrpcBookie] = {}

    async def connect(self, bookie_id: str) -> Bookie:
        known = self._bookies.get(bookie_id)
        if known is not None and not known.gone:
            return known
        if known is not None:
            await known.close()
        bookie = await self._dial(Registration(bookie_id, 1, grpc=self.address))
        assert isinstance(bookie, GrpcBookie)
        self._bookies[bookie_id] = bookie
        return bookie

    async def close(self) -> None:
        for bookie in self._bookies.values():
            await bookie.close()


class Wired:
    """The model bookie `a` behind a server, and a transport to it."""

    def __init__(self, server: GrpcServer, security: Security, settings: GrpcSettings) -> None:
        self.bookie = ModelBookie("a")
        self.bookies: dict[str, Bookie] = {"a": self.bookie}
        self.server = server
        self.settings = settings
        self.transport = GrpcTransport(self.address, security, settings)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def connect(self) -> GrpcBookie:
        bookie = await self.transport.connect("a")
        assert isinstance(bookie, GrpcBookie)
        return bookie


@asynccontextmanager
async def wired(
    settings: GrpcSettings | None = None,
    *,
    server_security: Security = NO_SECURITY,
    client_security: Security | None = None,
) -> AsyncIterator[Wired]:
    settings = settings or GrpcSettings()
    bookies: dict[str, Bookie] = {}
    server = await GrpcServer.start(
        bookies, listen="127.0.0.1:0", security=server_security, settings=settings
    )
    made = Wired(server, server_security if client_security is None else client_security, settings)
    bookies["a"] = made.bookie
    made.bookies = bookies
    try:
        yield made
    finally:
        await made.transport.close()
        await server.close(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something holds. Raises `TimeoutError` if it does not."""
    async with asyncio.timeout(60):
        for _ in itertools.count():
            if condition():
                return
            await asyncio.sleep(0)

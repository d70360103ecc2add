"""The gRPC wire reaches a bookie as every other transport does."""

import uvloop

from engine.transport.contract import Bookie
from engine.transport.grpc_server import GrpcServer
from tests.engine.transport.bookie_contract import BookieContract, Scenario
from tests.engine.transport.grpc_wiring import GrpcTransport
from tests.engine.transport.wired_bookies import WiredBookies, WiredServices


class TestGrpc(WiredBookies, BookieContract):
    async def serve(self, bookies: list[Bookie], scenario: Scenario) -> None:
        server = await GrpcServer.start(
            {bookie.bookie_id: bookie for bookie in bookies}, listen="127.0.0.1:0"
        )
        transport = GrpcTransport(f"127.0.0.1:{server.port}")
        await scenario(transport)
        await transport.close()
        await server.close()


class TestGrpcOverUvloop(TestGrpc):
    new_loop = staticmethod(uvloop.new_event_loop)


class TestServiceOverGrpc(WiredServices, TestGrpc):
    """The real bookie, through the public wire."""

"""A gRPC server in a process of its own, so that its memory can be looked at.

    python -m tests.engine.transport.grpc_server_process

Prints its port, serves the model bookie `a`, and ends when its standard input does.
"""

import asyncio
import sys

from engine.transport.grpc_server import GrpcServer
from engine.transport.grpc_settings import GrpcSettings
from tests.engine.transport.model_bookie import ModelBookie

CONNECT_TIMEOUT_MS = 60_000


async def main() -> None:
    """Serve until nobody holds the other end of standard input."""
    settings = GrpcSettings(connect_timeout_ms=CONNECT_TIMEOUT_MS)
    server = await GrpcServer.start(
        {"a": ModelBookie("a")}, listen="127.0.0.1:0", settings=settings
    )
    print(server.port, flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)
    await server.close(0)


if __name__ == "__main__":
    asyncio.run(main())

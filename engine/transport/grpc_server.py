"""The server of the gRPC wire: several bookies behind one port, with health and reflection.

Invariants:
- Nothing is served before `start` returns, and nothing new after `close` was called.
- What was asked before `close` is answered, as far as the grace time allows.
"""

import errno
from collections.abc import Mapping
from typing import Any

from engine.transport.address import join_host_port, parse_host_port
from engine.transport.contract import Bookie
from engine.transport.grpc_security import secret_gate, server_credentials
from engine.transport.grpc_service import SERVICE, BookieCalls
from engine.transport.grpc_settings import GrpcSettings, server_options
from engine.transport.security import NO_SECURITY, Security


class GrpcServer:
    """Serves bookies over gRPC, on this event loop. Made by `start`."""

    def __init__(self, server: Any, calls: BookieCalls, health: Any, port: int) -> None:
        self.port = port
        self.calls = calls
        self._server = server
        self._health = health
        self._closed = False

    @staticmethod
    async def start(
        bookies: Mapping[str, Bookie],
        *,
        listen: str,
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
    ) -> "GrpcServer":
        """Listen at `host:port` (port 0: a free one) and serve `bookies`, by their ids.

        The mapping is looked into at each request: a bookie is served as long as it stands there.
        Raises `InvalidRequest` for certificates that cannot be used, or a secret without TLS
        beyond this machine; `OSError` where one cannot listen.
        """
        from grpc import aio

        settings = settings or GrpcSettings()
        host, port = parse_host_port(listen)
        credentials = server_credentials(security, listen)
        calls = BookieCalls(bookies, settings)
        server = aio.server(
            handlers=[calls.handlers()],
            interceptors=[secret_gate(security.secret, settings)] if security.secret else [],
            options=server_options(settings),
            maximum_concurrent_rpcs=settings.calls_max,
        )
        health = await _add_health_and_reflection(server)
        address = join_host_port(host, port)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            await server.stop(None)
            raise OSError(errno.EADDRINUSE, f"cannot listen at {address}: {error}") from error
        await server.start()
        return GrpcServer(server, calls, health, port)

    async def close(self, grace_ms: int = 1_000) -> None:
        """Take nothing new, answer what was asked, then end all connections.

        Whatever is not answered after `grace_ms` is cut off. May be called twice.
        """
        if self._closed:
            return
        self._closed = True
        await self._health.enter_graceful_shutdown()
        self.calls.finish()
        await self._server.stop(grace_ms / 1000)


async def _add_health_and_reflection(server: Any) -> Any:
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    from engine.transport.grpc_generated import bookie_pb2

    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    assert bookie_pb2.DESCRIPTOR.services_by_name["Bookie"].full_name == SERVICE
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return servicer

"""The server of the public wire: tablespaces over gRPC, with health and reflection.

Invariants:
- Nothing is served before `start` returns, and nothing new after `close` was called.
- What was asked before `close` is answered, as far as the grace time allows; then all sessions end.
"""

import errno
import random
from typing import Any

from engine.ports.clock import Clock
from engine.transport.address import join_host_port, parse_host_port
from engine.transport.grpc_security import secret_gate, server_credentials
from engine.transport.grpc_settings import GrpcSettings, server_options
from engine.transport.security import NO_SECURITY, Security
from herd.wire.grpc_leases import Leases
from herd.wire.grpc_service import SERVICE, TablespaceCalls
from herd.wire.service import HerdService


class GrpcSessionServer:
    """Serves tablespaces over gRPC, on this event loop. Made by `start`."""

    def __init__(self, server: Any, leases: Leases, health: Any, port: int) -> None:
        self.port = port
        self.leases = leases
        self._server = server
        self._health = health
        self._closed = False

    @staticmethod
    async def start(
        service: HerdService,
        *,
        listen: str,
        clock: Clock,
        rng: random.Random,
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
    ) -> "GrpcSessionServer":
        """Listen at `host:port` (port 0: a free one).

        `rng` draws the sessions' secret tokens. Raises `InvalidRequest`, of the engine, for
        certificates that cannot be used, or a secret without TLS beyond this machine; `OSError`
        where one cannot listen.
        """
        from grpc import aio

        settings = settings or GrpcSettings(calls_max=1_024)
        host, port = parse_host_port(listen)
        credentials = server_credentials(security, listen)
        leases = Leases(service, clock, rng)
        server = aio.server(
            handlers=[TablespaceCalls(leases).handlers()],
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
        return GrpcSessionServer(server, leases, health, port)

    async def close(self, grace_ms: int = 1_000) -> None:
        """Take nothing new, answer what was asked, then end all sessions. May be called twice."""
        if self._closed:
            return
        self._closed = True
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_ms / 1000)
        await self.leases.close()


async def _add_health_and_reflection(server: Any) -> Any:
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    from herd.wire.grpc_generated import herd_pb2

    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    assert herd_pb2.DESCRIPTOR.services_by_name["Tablespaces"].full_name == SERVICE
    reflection.enable_server_reflection(
        (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    return servicer

"""One gRPC service behind one port of this machine, with health and reflection beside it.

Invariants:
- Nothing is served before `open` returns, and nothing new after `close` was called.
- What was asked before `close` is answered, as far as the grace time allows.
"""

import errno
from collections.abc import Callable
from typing import Any

from engine.access.door import Door
from engine.transport.address import join_host_port, parse_host_port
from engine.transport.grpc_login import login_handlers
from engine.transport.grpc_security import gate, server_credentials
from engine.transport.grpc_settings import GrpcSettings, server_options
from engine.transport.security import Security


class GrpcListener:
    """Serves one service on this event loop. Made by `open`."""

    def __init__(self, server: Any, health: Any, port: int) -> None:
        self.port = port
        self._server = server
        self._health = health
        self._closed = False

    @staticmethod
    async def open(
        service: Any,
        handlers: Any,
        *,
        listen: str,
        security: Security,
        settings: GrpcSettings,
        door: Door | None = None,
        logins: bool = False,
    ) -> "GrpcListener":
        """Listen at `host:port` (port 0: a free one) and serve.

        `service` is the service's descriptor, of its generated module; `handlers` its generic
        handler. A `door` lets in callers that do not know the secret. With `logins` they are users,
        who can also log in here, even without a secret, unless a certificate is required. Raises
        `InvalidRequest` for certificates that cannot be used, or for a secret without TLS beyond
        this machine; `OSError` if it cannot listen there.
        """
        from grpc import aio

        host, port = parse_host_port(listen)
        if not security.secret and (security.authorities is not None or not logins):
            door = None
        users = door if logins else None
        credentials = server_credentials(security, listen, strangers=users is not None)
        services = [handlers] if users is None else [handlers, login_handlers(users, settings)]
        server = aio.server(
            handlers=services,
            interceptors=[gate(security, settings, door)],
            options=server_options(settings),
            maximum_concurrent_rpcs=settings.calls_max,
        )
        health = await _add_health_and_reflection(server, service.full_name)
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
        return GrpcListener(server, health, port)

    async def close(self, grace_ms: int, finish: Callable[[], None] | None = None) -> bool:
        """Take nothing new, answer what was asked, then end all connections.

        `finish` is called when nothing new is taken any more. Whatever is not answered after
        `grace_ms` is cut off. May be called twice; whether this was the first time.
        """
        if self._closed:
            return False
        self._closed = True
        await self._health.enter_graceful_shutdown()
        if finish is not None:
            finish()
        await self._server.stop(grace_ms / 1000)
        return True


async def _add_health_and_reflection(server: Any, name: str) -> Any:
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    names = (name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return servicer

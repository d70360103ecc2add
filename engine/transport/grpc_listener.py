"""One gRPC service behind one port of this machine, with health and reflection beside it.

Invariants:
- Nothing is served before `open` returns, and nothing new after `close` was called.
- What was asked before `close` is answered, as far as the grace time allows.
- Health of the service is whether it answers. Whether it takes new data is health of `WRITES`: a
  full disk must not take away the reads, too.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import Any, Final

from engine.access.door import Door
from engine.transport.address import join_host_port, parse_host_port
from engine.transport.grpc_login import login_handlers
from engine.transport.grpc_security import Trusted, gate, server_credentials
from engine.transport.grpc_settings import GrpcSettings, server_options
from engine.transport.security import Security

WRITES: Final = "writes"
"""A name to check the health of: NOT_SERVING while disks are too full for new data."""
_ROOM_LOOK_S: Final = 0.5


class GrpcListener:
    """Serves one service on this event loop. Made by `open`."""

    def __init__(self, server: Any, health: Any, telling: "asyncio.Task[None]", port: int) -> None:
        self.port = port
        self._server = server
        self._health = health
        self._telling = telling
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
        lack: Callable[[], str] | None = None,
        trusted: Trusted | None = None,
    ) -> "GrpcListener":
        """Listen at `host:port` (port 0: a free one) and serve.

        `service` is the service's descriptor, of its generated module; `handlers` its generic
        handler. A `door` lets those in who do not know the secret; with `logins` they are users,
        who log in here, too, also where there is no secret, unless a certificate is asked for.
        `lack` says why new data finds no room, "" if it does. `trusted`: see `gate`.
        Raises `InvalidRequest` for certificates that cannot be used, or a
        secret without TLS beyond this machine; `OSError` where one cannot listen.
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
            interceptors=[gate(security, settings, door, trusted or {})],
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
        lack = lack or str
        await _tell_of_room(health, lack())
        await server.start()
        telling = asyncio.create_task(_keep_telling(health, lack))
        return GrpcListener(server, health, telling, port)

    async def close(self, grace_ms: int, finish: Callable[[], None] | None = None) -> bool:
        """Take nothing new, answer what was asked, then end all connections.

        `finish` is called when nothing new is taken any more. Whatever is not answered after
        `grace_ms` is cut off. May be called twice; whether this was the first time.
        """
        if self._closed:
            return False
        self._closed = True
        self._telling.cancel()
        await self._health.enter_graceful_shutdown()
        if finish is not None:
            finish()
        await self._server.stop(grace_ms / 1000)
        return True


async def _keep_telling(health: Any, lack: Callable[[], str]) -> None:
    while True:
        await asyncio.sleep(_ROOM_LOOK_S)
        await _tell_of_room(health, lack())


async def _tell_of_room(health: Any, lack: str) -> None:
    from grpc_health.v1.health_pb2 import HealthCheckResponse

    await health.set(WRITES, getattr(HealthCheckResponse, "NOT_SERVING" if lack else "SERVING"))


async def _add_health_and_reflection(server: Any, name: str) -> Any:
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    names = (name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return servicer

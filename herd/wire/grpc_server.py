"""The server of the public wire: tablespaces over gRPC, with health and reflection.

Invariants:
- Nothing is served before `start` returns, and nothing new after `close` was called.
- What was asked before `close` is answered, as far as the grace time allows; then all sessions end.
"""

import random
from collections.abc import Callable

from engine.access.door import Door
from engine.ports.clock import Clock
from engine.transport.grpc_listener import GrpcListener
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security
from herd.wire.grpc_leases import Leases
from herd.wire.grpc_service import TablespaceCalls
from herd.wire.service import HerdService


class GrpcSessionServer:
    """Serves tablespaces over gRPC, on this event loop. Made by `start`."""

    def __init__(self, listener: GrpcListener, leases: Leases) -> None:
        self.port = listener.port
        self.leases = leases
        self._listener = listener

    @staticmethod
    async def start(
        service: HerdService,
        *,
        listen: str,
        clock: Clock,
        rng: random.Random,
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
        door: Door | None = None,
        lack: Callable[[], str] | None = None,
    ) -> "GrpcSessionServer":
        """Listen at `host:port` (port 0: a free one).

        `rng` draws the sessions' secret tokens; a `door` lets users in. `lack` says why new data
        finds no room, "" if it does. Raises the engine's `InvalidRequest` for certificates that
        cannot be used, or a secret without TLS beyond this machine; `OSError` where one cannot
        listen.
        """
        from herd.wire.grpc_generated import herd_pb2

        leases = Leases(service, clock, rng)
        listener = await GrpcListener.open(
            herd_pb2.DESCRIPTOR.services_by_name["Tablespaces"],
            TablespaceCalls(leases).handlers(),
            listen=listen,
            security=security,
            settings=settings or GrpcSettings(calls_max=1_024),
            door=door,
            logins=True,
            lack=lack,
        )
        return GrpcSessionServer(listener, leases)

    async def close(self, grace_ms: int = 1_000) -> None:
        """Take nothing new, answer what was asked, then end all sessions. May be called twice."""
        if await self._listener.close(grace_ms):
            await self.leases.close()

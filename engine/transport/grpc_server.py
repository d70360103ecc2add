"""The server of the gRPC wire: several bookies behind one port, with health and reflection.

Invariants:
- Nothing is served before `start` returns, and nothing new after `close` was called.
- What was asked before `close` is answered, as far as the grace time allows.
"""

from collections.abc import Callable, Mapping

from engine.access.door import Door
from engine.transport.contract import Bookie
from engine.transport.grpc_listener import GrpcListener
from engine.transport.grpc_service import BookieCalls
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security


class GrpcServer:
    """Serves bookies over gRPC, on this event loop. Made by `start`."""

    def __init__(self, listener: GrpcListener, calls: BookieCalls) -> None:
        self.port = listener.port
        self.calls = calls
        self._listener = listener

    @staticmethod
    async def start(
        bookies: Mapping[str, Bookie],
        *,
        listen: str,
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
        door: Door | None = None,
        lack: Callable[[], str] | None = None,
    ) -> "GrpcServer":
        """Listen at `host:port` (port 0: a free one) and serve `bookies`, by their ids.

        The mapping is looked into at each request: a bookie is served as long as it stands there.
        A `door` lets readers in. `lack` says why none takes new data; "" if one does.
        Raises `InvalidRequest` for certificates that cannot be used, or a secret without TLS
        beyond this machine; `OSError` where one cannot listen.
        """
        from engine.transport.grpc_generated import bookie_pb2

        settings = settings or GrpcSettings()
        calls = BookieCalls(bookies, settings)
        listener = await GrpcListener.open(
            bookie_pb2.DESCRIPTOR.services_by_name["Bookie"],
            calls.handlers(),
            listen=listen,
            security=security,
            settings=settings,
            door=door,
            lack=lack,
        )
        return GrpcServer(listener, calls)

    async def close(self, grace_ms: int = 1_000) -> None:
        """Take nothing new, answer what was asked, then end all connections.

        Whatever is not answered after `grace_ms` is cut off. May be called twice.
        """
        await self._listener.close(grace_ms, self.calls.finish)

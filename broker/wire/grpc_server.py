"""The server of the broker's public wire, with health and reflection.

Invariants:
- Nothing is served before `start` returns, and nothing new after `close` was called.
- What was asked before `close` is answered, as far as the grace time allows.
"""

from collections.abc import Callable

from broker.access import Asking
from broker.wire.channels import Channels
from broker.wire.forwarding import Forwarder
from broker.wire.grpc_service import WORK_METHOD, BrokerCalls, ServedCalls
from engine.access.audit import NO_AUDIT
from engine.access.door import Door
from engine.transport.grpc_listener import GrpcListener
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security


class GrpcBrokerServer:
    """Serves a broker over gRPC, on this event loop. Made by `start`."""

    def __init__(self, listener: GrpcListener, channels: Channels, calls: BrokerCalls) -> None:
        self.port = listener.port
        self._calls = calls
        self._listener = listener
        self._channels = channels

    @staticmethod
    async def start(
        broker: ServedCalls,
        *,
        listen: str,
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
        door: Door | None = None,
        lack: Callable[[], str] | None = None,
    ) -> "GrpcBrokerServer":
        """Listen at `host:port` (port 0: a free one).

        `broker` is a broker in this process, or a client of another one. A `door` authenticates
        users. `lack` says why new data finds no room, "" if it does. Raises the engine's
        `InvalidRequest` for unusable certificates, or for a secret without TLS beyond this
        machine; `OSError` if it cannot listen.
        """
        from broker.wire.grpc_generated import broker_pb2

        settings = settings or GrpcSettings(calls_max=4_096)
        channels = Channels(security, settings)
        audit = NO_AUDIT if door is None else door.audit
        calls = BrokerCalls(broker, Forwarder(channels), audit)
        listener = await GrpcListener.open(
            broker_pb2.DESCRIPTOR.services_by_name["Broker"],
            calls.handlers(),
            listen=listen,
            security=security,
            settings=settings,
            door=door,
            logins=True,
            lack=lack,
            trusted={WORK_METHOD: lambda principal: Asking.of(principal).everywhere},
        )
        return GrpcBrokerServer(listener, channels, calls)

    async def close(self, grace_ms: int = 1_000) -> None:
        """Take nothing new and answer what was asked. May be called twice."""
        if await self._listener.close(grace_ms, self._calls.streams.finish):
            await self._channels.close()

"""Where workers of other processes connect: `WorkerPort` over gRPC.

Invariants:
- A worker's link is one stream; its end, however it came, is the end of the link.
- Addresses are tried in turn, the leader that somebody named before all others.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from broker.connection import FromBroker, FromWorker, Hello, Refused
from broker.errors import BrokerError, BrokerUnavailable, SessionLost, error_of
from broker.wire.channels import Channels, error_of_call
from broker.wire.worker_messages import WorkerMessages
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security

_SERVICE = "/herdbook.broker.v1.Broker"

_GREETING_TRIES = 3
# If the broker ends a call during a write, gRPC may put this in place of the broker's status.
_HIDDEN = "Internal error from Core"


class GrpcWorkerPort:
    """Connects workers to the brokers at some addresses, each "host:port".

    With none, `follow` has to name one before each connection.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
    ) -> None:
        self._addresses = list(addresses)
        self._channels = Channels(security, settings)
        self._messages = WorkerMessages()
        self._leader = ""
        self._turn = 0

    async def connect(self, hello: Hello) -> "GrpcLink":
        """See `WorkerPort`."""
        address = self._leader
        if not address:
            if not self._addresses:
                raise BrokerUnavailable("no broker's address is known")
            address = self._addresses[self._turn % len(self._addresses)]
            self._turn += 1
        self._leader = ""
        channel = self._channels.get(address)
        metadata = await self._channels.metadata(channel)
        tries = _GREETING_TRIES
        while True:
            stream = channel.stream_stream(f"{_SERVICE}/Work", None, None)(metadata=metadata)
            link = GrpcLink(self, address, stream, self._messages)
            tries -= 1
            try:
                await link.greet(hello)
                return link
            except _ReasonHidden:
                # The next call tells the reason.
                await link.close()
                if not tries:
                    raise
            except BaseException:
                await link.close()
                raise

    def follow(self, leader: str) -> None:
        """Connect there next."""
        self._leader = leader

    async def fetch_code(self, address: str, name: str) -> bytes:
        """A code pool's archive. Raises `UnknownCodePool`, `BrokerUnavailable`."""
        from grpc import aio

        from broker.wire.grpc_generated import broker_pb2

        asked = broker_pb2.FetchCodeRequest(name=name).SerializeToString()
        channel = self._channels.get(address)
        metadata = await self._channels.metadata(channel)
        fetch = channel.unary_stream(f"{_SERVICE}/FetchCode", None, None)
        parts = []
        try:
            async for data in fetch(asked, metadata=metadata):
                reply = broker_pb2.FetchCodeReply.FromString(data)
                if reply.HasField("failure"):
                    raise error_of(reply.failure.code, reply.failure.message)
                parts.append(reply.data)
        except aio.AioRpcError as error:
            raise error_of_call(address, error, reads=True) from error
        return b"".join(parts)

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()


class _ReasonHidden(SessionLost):
    """The broker ended the link, and gRPC hides why."""


class GrpcLink:
    """A `WorkerLink` over one stream. Made by `GrpcWorkerPort.connect`."""

    def __init__(
        self, port: GrpcWorkerPort, address: str, stream: Any, messages: WorkerMessages
    ) -> None:
        self._port = port
        self._address = address
        self._stream = stream
        self._messages = messages
        self._closed = False

    async def greet(self, hello: Hello) -> None:
        """Say who it is. Raises `BrokerError`."""
        await self._write([self._messages.pack_hello(hello)])

    async def receive(self) -> list[FromBroker]:
        """See `WorkerLink`."""
        from grpc import aio

        said: list[FromBroker] = []
        while not said:
            try:
                data = await self._stream.read()
            except aio.AioRpcError as error:
                raise error_of_call(self._address, error, reads=True) from error
            except asyncio.CancelledError:
                raise
            if not isinstance(data, bytes):
                raise await self._why()
            said = self._messages.unpack_from_broker(data)
        for each in said:
            if isinstance(each, Refused) and each.leader:
                self._port.follow(each.leader)
        return said

    async def send(self, messages: list[FromWorker]) -> None:
        """See `WorkerLink`."""
        await self._write(self._messages.pack_from_worker(messages))

    async def fetch_code(self, name: str) -> bytes:
        """See `WorkerLink`."""
        return await self._port.fetch_code(self._address, name)

    async def close(self) -> None:
        """See `WorkerLink`."""
        if not self._closed:
            self._closed = True
            self._stream.cancel()

    async def _write(self, packed: list[bytes]) -> None:
        from grpc import StatusCode, aio

        if self._closed:
            raise SessionLost("the link was closed")
        try:
            for data in packed:
                await self._stream.write(data)
        except aio.AioRpcError as error:
            if error.code() is StatusCode.INTERNAL and error.details() == _HIDDEN:
                raise _ReasonHidden(f"{self._address} ended the link") from error
            raise error_of_call(self._address, error, reads=True) from error
        except asyncio.InvalidStateError as error:
            raise await self._why() from error

    async def _why(self) -> BrokerError:
        """Why the stream has ended."""
        from grpc import StatusCode

        code = await self._stream.code()
        if code is StatusCode.OK:
            return SessionLost(f"{self._address} ended the link")
        return BrokerUnavailable(f"{self._address}: {await self._stream.details() or code.name}")

"""A broker far away: `Calls` over gRPC.

What is asked shares one stream a broker; a long wait, or what is large, is a call of its own.

Invariants:
- What was not taken anywhere is asked again, of the leader if somebody names one, until the time
  for that is up; what may have been done is never asked again here.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

from broker.connection import Hello, WorkerLink
from broker.errors import BrokerError, BrokerUnavailable, NotLeader
from broker.wire.ask_client import AskStream
from broker.wire.asking import METHODS, READS
from broker.wire.calling import WAIT_STEP_MS, CallsByName, error_told
from broker.wire.channels import Channels, error_of_call
from broker.wire.grpc_port import GrpcWorkerPort
from engine.ports.clock import Clock
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import NO_SECURITY, Security

_ASK: Final = "/herdbook.broker.v1.Broker/Ask"
_ASKS: Final = "/herdbook.broker.v1.Broker/Asks"
_STREAMED_BYTES_MAX: Final = 256 * 1024
_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 0.25
"""A failover lasts a second or two; callers notice its end within this time."""


class RemoteCalls(CallsByName):
    """The brokers at some addresses, each "host:port". `leaderless_ms`: how long to look for one
    that leads before a call fails."""

    def __init__(
        self,
        addresses: Sequence[str],
        clock: Clock,
        rng: random.Random,
        *,
        security: Security = NO_SECURITY,
        settings: GrpcSettings | None = None,
        leaderless_ms: int = 10_000,
    ) -> None:
        from broker.wire.grpc_generated import broker_pb2

        self._wire = broker_pb2
        self._addresses = list(addresses)
        super().__init__(clock)
        self._rng = rng
        self._leaderless_ms = leaderless_ms
        self._timeout_s = (settings or GrpcSettings()).request_timeout_ms / 1000
        self._channels = Channels(security, settings)
        self._port = GrpcWorkerPort(addresses, security, settings)
        self._at = self._addresses[0] if self._addresses else ""
        self._streams: dict[str, AskStream] = {}

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(each.close() for each in list(self._streams.values())))
        await self._channels.close()
        await self._port.close()

    async def _ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        method = METHODS[name]
        packed = method.pack(arguments, named)
        until_s = self._clock.monotonic() + self._leaderless_ms / 1000
        pause_s = _PAUSE_S
        while True:
            try:
                answer = await self._ask_at(await self._address(), name, packed)
                break
            except BrokerUnavailable as error:
                if self._clock.monotonic() >= until_s:
                    raise
                await self._elsewhere(error)
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return method.unpack(answer)

    async def _address(self) -> str:
        """Whom to ask. Raises `BrokerUnavailable` if that is not known."""
        if not self._at:
            raise BrokerUnavailable("no broker's address is known")
        return self._at

    async def _elsewhere(self, error: BrokerError) -> None:
        """Ask somebody else next."""
        if isinstance(error, NotLeader) and error.leader and error.leader != self._at:
            self._at = error.leader
            return
        others = [each for each in self._addresses if each != self._at] or self._addresses
        self._at = self._rng.choice(others)

    async def _ask_at(self, address: str, name: str, arguments: bytes) -> bytes:
        if name == "wait" or len(arguments) > _STREAMED_BYTES_MAX:
            reply = await self._call(address, name, arguments)
        else:
            stream = await self._stream_to(address)
            reply = await stream.ask(name, arguments, self._timeout_s)
        if reply.HasField("failure"):
            said = reply.failure
            raise error_told(said.code, said.message, said.task_id, said.leader)
        result: bytes = reply.result
        return result

    async def _stream_to(self, address: str) -> AskStream:
        channel = self._channels.get(address)
        stream = self._streams.get(address)
        if stream is None:
            metadata = await self._channels.metadata(channel)
            # Somebody else may have begun one meanwhile.
            stream = self._streams.get(address)
        if stream is None:
            call = channel.stream_stream(_ASKS, None, None)(metadata=metadata)
            stream = self._streams[address] = AskStream(address, call, self._stream_over)
        return stream

    def _stream_over(self, stream: AskStream) -> None:
        if self._streams.get(stream.address) is stream:
            del self._streams[stream.address]

    async def _call(self, address: str, name: str, arguments: bytes) -> Any:
        """Ask by a call of its own."""
        from grpc import aio

        channel = self._channels.get(address)
        metadata = await self._channels.metadata(channel)
        call = channel.unary_unary(_ASK, None, None)
        data = self._wire.AskRequest(name=name, arguments=arguments).SerializeToString()
        timeout_s = self._timeout_s + WAIT_STEP_MS / 1000 if name == "wait" else self._timeout_s
        try:
            answer = await call(data, metadata=metadata, timeout=timeout_s)
        except aio.AioRpcError as error:
            raise error_of_call(address, error, reads=name in READS) from error
        return self._wire.AskReply.FromString(answer)

    async def connect(self, hello: Hello) -> WorkerLink:
        """See `WorkerPort`."""
        return await self._port.connect(hello)

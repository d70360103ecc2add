"""Passing calls on to who leads.

Invariants:
- A call that was passed on is marked, so that no two brokers pass it to and fro.
- Nothing is asked twice here: a call whose answer got lost is answered by what is known of it.
- A user's call is passed on in that user's name: who leads judges it again.
"""

from typing import Any, Final

from broker.errors import BrokerError, BrokerUnavailable, OutcomeUnknown
from broker.wire.channels import Channels, never_sent
from engine.access.door import CALLER
from engine.errors import EngineError
from engine.transport.grpc_security import bearer

FORWARDED: Final = "herdbook-forwarded"
_TIMEOUT_S: Final = 70.0


def was_forwarded(context: Any) -> bool:
    """Whether a broker passed the call on."""
    return any(name == FORWARDED for name, _ in context.invocation_metadata() or ())


class Forwarder:
    """Asks leaders in place of clients."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def ask(self, address: str, method: str, data: bytes, *, reads: bool) -> bytes | None:
        """The leader's reply, as bytes; None: it was not reached.

        Raises `OutcomeUnknown` if it may have acted; for what only `reads`, `BrokerUnavailable`.
        """
        from grpc import aio

        try:
            channel = self._channels.get(address)
            metadata = await self._metadata(channel)
            reply = await channel.unary_unary(method, None, None)(
                data,
                metadata=(*metadata, (FORWARDED, "1")),
                timeout=_TIMEOUT_S,
            )
        except aio.AioRpcError as error:
            if never_sent(error):
                return None
            kind = BrokerUnavailable if reads else OutcomeUnknown
            raise kind(f"the leader at {address} did not answer") from error
        except BrokerError:
            return None
        assert isinstance(reply, bytes)
        return reply

    async def _metadata(self, channel: Any) -> list[tuple[str, str | bytes]]:
        try:
            token = await CALLER.get().onward()
        except EngineError as error:
            raise BrokerUnavailable(f"the call cannot be passed on: {error}") from error
        return bearer(token) if token else await self._channels.metadata(channel)

"""Channels to brokers, one an address.

Invariants:
- A channel is created when it is first needed, and again after certificates were read again. It is
  closed with all others, or after many newer ones were used, when nobody can need it any more:
  addresses change for as long as a program runs.
- A failed call raises one of the broker's errors, with a message, whatever gRPC raised.
"""

import asyncio
from typing import Any, Final

from broker.errors import (
    AccessDenied,
    BrokerError,
    BrokerUnavailable,
    InvalidTask,
    OutcomeUnknown,
    Overloaded,
)
from engine.errors import AccessRefused, EngineError, InvalidRequest
from engine.ports.clock import SystemClock
from engine.transport.grpc_login import Credentials
from engine.transport.grpc_security import channel_credentials
from engine.transport.grpc_settings import GrpcSettings, client_options
from engine.transport.security import NO_SECURITY, Security, TlsFiles

_NEVER: Final = "failed to connect to all addresses"
_CHANNELS_MAX: Final = 64


class Channels:
    """gRPC channels of one client, by "host:port"."""

    def __init__(self, security: Security = NO_SECURITY, settings: GrpcSettings | None = None):
        self._credentials = Credentials(security, SystemClock())
        self._security = security
        self._settings = settings or GrpcSettings()
        self._channels: dict[tuple[str, TlsFiles | None], Any] = {}
        self._closing: set[asyncio.Future[Any]] = set()

    def get(self, address: str) -> Any:
        """The channel to an address. Raises `InvalidTask` for one that is none."""
        # A channel reconnects by itself, with the certificates that it was created with.
        key = address, self._security.now.tls
        channel = self._channels.pop(key, None)
        if channel is None:
            channel = self._made(address)
        # The one used last stands last.
        self._channels[key] = channel
        if len(self._channels) > _CHANNELS_MAX:
            oldest = self._channels.pop(next(iter(self._channels)))
            closing = asyncio.ensure_future(oldest.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return channel

    async def metadata(self, channel: Any) -> list[tuple[str, str | bytes]]:
        """What a call over a channel carries; a user logs in for it, if need be.

        Raises `AccessDenied`, `BrokerUnavailable`.
        """
        from grpc import aio

        try:
            return await self._credentials.metadata(channel)
        except aio.AioRpcError as error:
            raise error_of_call("the broker", error, reads=True) from error
        except AccessRefused as error:
            raise AccessDenied(str(error)) from error
        except EngineError as error:
            raise InvalidTask(str(error)) from error

    async def close(self) -> None:
        """Close all of them."""
        channels, self._channels = list(self._channels.values()), {}
        closing = [*(each.close() for each in channels), *self._closing]
        await asyncio.gather(*closing, return_exceptions=True)

    def _made(self, address: str) -> Any:
        from grpc import aio

        options = client_options(self._settings)
        try:
            credentials = channel_credentials(self._security, address)
        except InvalidRequest as error:
            raise InvalidTask(str(error)) from error
        if credentials is None:
            return aio.insecure_channel(address, options)
        return aio.secure_channel(address, credentials, options)


def never_sent(error: Any) -> bool:
    """Whether a call that failed cannot have reached anybody: in the words of gRPC itself.

    Proxies speak of connecting, too, when they have passed on a call whose answer got lost.
    """
    from grpc import StatusCode

    return error.code() is StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NEVER)


def error_of_call(address: str, error: Any, *, reads: bool) -> BrokerError:
    """What a call that failed means to its caller.

    Unless it `reads` only, whatever does not say that nothing was done may have been done.
    """
    from grpc import StatusCode

    code = error.code()
    text = f"{address}: {error.details() or code.name}"
    if code is StatusCode.UNAUTHENTICATED:
        return AccessDenied(text)
    if code is StatusCode.INVALID_ARGUMENT:
        return InvalidTask(text)
    if code is StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(text)
    if reads or code is StatusCode.UNIMPLEMENTED or never_sent(error):
        return BrokerUnavailable(text)
    return OutcomeUnknown(text)

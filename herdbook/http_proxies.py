"""Proxies in front of HTTP: the client that they name is the client of a request.

Invariants:
- Only headers from proxies in the settings are trusted; from anybody else they are ignored.
- The header is read from its end, where the nearest proxy has written, so values that a client has
  put there itself are never reached.
"""

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from engine.errors import InvalidRequest
from engine.transport.address import parse_host_port

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_HEADER: Final = b"x-forwarded-for"
_UNKNOWN: Final = "unknown"
"""The client if a proxy names it by something that is not an address."""


class Proxies:
    """Addresses and networks whose header `X-Forwarded-For` is trusted.

    >>> Proxies(["10.0.0.0/8"]).client_of("10.0.0.1", ["192.0.2.7, 198.51.100.9", "10.0.0.2"])
    '198.51.100.9'
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        """Raises `InvalidRequest` for a text that is neither an address nor a network."""
        self._networks = tuple(_network(each) for each in named)

    def know(self, host: str) -> bool:
        """Whether an address is a proxy's."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

    def client_of(self, peer: str, headers: Iterable[str]) -> str:
        """The client: the last address that is not a proxy's, or `peer` if there is no header."""
        told = [each.strip() for each in ",".join(headers).split(",") if each.strip()]
        client = peer
        while told and self.know(client):
            client = _address(told.pop())
        return client


class BehindProxies:
    """Wraps an application, so that its requests have the client that a proxy names."""

    def __init__(self, app: "ASGIApp", proxies: Proxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """See ASGI."""
        peer = scope.get("client")
        if scope["type"] == "http" and peer is not None and self._proxies.know(peer[0]):
            headers = [
                value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER
            ]
            scope["client"] = self._proxies.client_of(peer[0], headers), peer[1]
        await self._app(scope, receive, send)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise InvalidRequest(
            f"name a proxy by its address, or by its network such as 10.0.0.0/8, not {text!r}"
        ) from error


def _address(text: str) -> str:
    """An address that a proxy has written; some proxies add the port."""
    for host in (text, text.removeprefix("[").removesuffix("]"), _without_port(text)):
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            continue
    return _UNKNOWN


def _without_port(text: str) -> str:
    try:
        return parse_host_port(text)[0]
    except InvalidRequest:
        return ""

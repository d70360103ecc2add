"""The host that a request asks for: one by which this server is known, or none of ours.

Another site can let its own name mean this machine. A browser then takes its pages for ours, and
their origin says so, too: what tells them apart is the name that they ask for.

Invariants:
- A server answers to its addresses, to `localhost` and to the names that it was given.
"""

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.http.front import told_error


class Hosts:
    """The names by which a server is known, besides addresses and `localhost`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower().rstrip(".") for name in names} - {""}

    def know(self, headers: Headers) -> bool:
        """Whether a request asks for a host that we are."""
        host = host_of(headers.get("host", ""))
        return host == "localhost" or host in self._names or _is_address(host)


class HostCheck:
    """Stands before all paths of an application, and refuses what asks for another host."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        app, headers = self._app, Headers(scope=scope)
        if not self._hosts.know(headers):
            app = told_error(
                421,
                "wrong_host",
                wrong_host(headers),
                remedy="ask for its address, or name it with --advertise-http",
            )
        await app(scope, receive, send)


def wrong_host(headers: Headers) -> str:
    """What is said to who asks for a host that we are not."""
    return f"nothing is served here for the host {host_of(headers.get('host', ''))[:100]!r}"


def host_of(header: str) -> str:
    """The host in a header `Host`, in small letters, without its port.

    >>> host_of("Cows.Example:8443"), host_of("[::1]:80"), host_of("10.0.0.1")
    ('cows.example', '::1', '10.0.0.1')
    """
    text = header.strip().lower()
    if text.startswith("["):
        host, bracket, _ = text[1:].partition("]")
        return host if bracket else ""
    return text.partition(":")[0].rstrip(".")


def _is_address(host: str) -> bool:
    """No other site's name can be made to look like an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

"""Addresses of framed connections, and the ways to open one.

An address is text. `unix:/run/user/1000/x.sock` is a Unix socket of this machine, whose other end
must belong to the same user or to root. `tcp:cow.example:3181` is a port of a machine; an IPv6
address stands in brackets.

Invariants:
- A connection over a Unix socket is handed out only after the other side's user was checked; one
  with TLS only after the handshake.
- No path over `SOCKET_PATH_BYTES_MAX` is ever given to the kernel, which would cut or refuse it.
"""

import asyncio
import ipaddress
import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from engine.errors import AccessRefused, BookieUnavailable, InvalidRequest

P = TypeVar("P", bound=asyncio.Protocol)

SOCKET_PATH_BYTES_MAX: Final = 107
UNIX: Final = "unix:"
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
TCP: Final = "tcp:"
_CREDENTIALS = struct.Struct("3i")


async def open_connection(
    address: str, make: Callable[[], P], context: ssl.SSLContext | None = None
) -> P:
    """Connect to an address; over TCP with TLS if a `context` is given.

    Raises `BookieUnavailable`, `AccessRefused` for a certificate that is not accepted,
    `InvalidRequest` for an address that is none.
    """
    if address.startswith(TCP):
        return await _open_tcp(address, make, context)
    if not address.startswith(UNIX):
        raise InvalidRequest(f"not an address of a framed connection: {address!r}")
    path = address.removeprefix(UNIX)
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise InvalidRequest(f"a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes: {path}")
    try:
        transport, protocol = await asyncio.get_running_loop().create_unix_connection(make, path)
    except OSError as error:
        raise BookieUnavailable(f"nobody listens at {address}: {error}") from error
    if not may_trust(peer_user(transport)):
        transport.abort()
        raise BookieUnavailable(f"{address} belongs to another user")
    return protocol


def keep_alive(end: socket.socket) -> None:
    """Make a connection notice within two minutes that its other end has vanished.

    For a listener, this applies to the connections that it accepts.
    """
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _open_tcp(address: str, make: Callable[[], P], context: ssl.SSLContext | None) -> P:
    host, port = parse_host_port(address.removeprefix(TCP))
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.create_connection(
            make, host, port, ssl=context, server_hostname=host if context is not None else None
        )
        keep_alive(transport.get_extra_info("socket"))
    except ssl.SSLError as error:
        raise AccessRefused(f"{address}: {tls_reason(error)}") from error
    except OSError as error:
        raise BookieUnavailable(f"nobody listens at {address}: {error}") from error
    return protocol


def parse_host_port(text: str) -> tuple[str, int]:
    """The two parts of `host:port` or `[address]:port`. Raises `InvalidRequest`.

    >>> parse_host_port("[::1]:3181")
    ('::1', 3181)
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise InvalidRequest(f"not HOST:PORT: {text!r}")
    return host, int(port)


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address.

    >>> join_host_port("::1", 3181)
    '[::1]:3181'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener there; a name other than localhost: no.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("cow")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def network_of(host: str) -> str:
    """What counts as one address in limits: of IPv6 the /64, because one client may own all of it.

    >>> network_of("10.0.0.7"), network_of("::ffff:10.0.0.7"), network_of("2001:db8::1:2:3:4")
    ('10.0.0.7', '10.0.0.7', '2001:db8::/64')
    """
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), 64), strict=False))


def tls_reason(error: ssl.SSLError) -> str:
    """What went wrong in TLS, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"


def is_local(transport: asyncio.BaseTransport) -> bool:
    """Whether a connection is one over a Unix socket."""
    end = transport.get_extra_info("socket")
    return end is not None and end.family == socket.AF_UNIX


def may_trust(user: int | None) -> bool:
    """Whether a peer is this user, or root; where the system does not tell, modes must do."""
    return user is None or user in (os.geteuid(), 0)


def peer_user(transport: asyncio.BaseTransport) -> int | None:
    """The user id of the process at the other end of a Unix socket, None if not to be known."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None or not is_local(transport):
        return None
    end = transport.get_extra_info("socket")
    packed = end.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    _process, user, _group = _CREDENTIALS.unpack(packed)
    assert isinstance(user, int)
    return user

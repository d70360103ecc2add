"""Addresses of framed connections, and the way to open one.

An address is text. `unix:/run/user/1000/x.sock` is a Unix socket of this machine, whose other end
must belong to the same user or to root.

Invariants:
- A connection is handed out only after the other side's user was checked.
- No path over `SOCKET_PATH_BYTES_MAX` is ever given to the kernel, which would cut or refuse it.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from engine.errors import BookieUnavailable, InvalidRequest

P = TypeVar("P", bound=asyncio.Protocol)

SOCKET_PATH_BYTES_MAX: Final = 107
UNIX: Final = "unix:"
_CREDENTIALS = struct.Struct("3i")


async def open_connection(address: str, make: Callable[[], P]) -> P:
    """Connect to an address. Raises `BookieUnavailable`, `InvalidRequest`."""
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


def may_trust(user: int | None) -> bool:
    """Whether a peer is this user, or root; where the system does not tell, modes must do."""
    return user is None or user in (os.geteuid(), 0)


def peer_user(transport: asyncio.BaseTransport) -> int | None:
    """The user id of the process at the other end of a Unix socket, None if not to be known."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    end = transport.get_extra_info("socket")
    packed = end.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    _process, user, _group = _CREDENTIALS.unpack(packed)
    assert isinstance(user, int)
    return user

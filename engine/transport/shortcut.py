"""A way round TCP to the servers of this machine: a Unix socket beside a port of the loopback.

A server that listens at a loopback address, and asks nobody for a proof, listens at a Unix socket
as well, in the user's own folder for sockets, under a name that follows from the address. Whoever
dials the address looks there first: a hop to and fro takes about half of what TCP takes.

Invariants:
- The socket's folder belongs to the user and nobody else can enter it, and each end checks whose
  process the other one is.
- Where security is on there is none: certificates and proofs belong to TCP.
- It is never needed: where nobody listens at it, or another server does, the address is dialled.
"""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engine.errors import FolderError, InvalidRequest
from engine.folder import sockets
from engine.transport.address import TCP, UNIX, is_loopback, parse_host_port


class Shortcut:
    """A server's end. Made by `Shortcut.open`."""

    def __init__(self, server: asyncio.AbstractServer, address: str) -> None:
        self.address = address
        self._server = server

    @classmethod
    async def open(
        cls, address: str, accept: Callable[[], asyncio.BaseProtocol]
    ) -> "Shortcut | None":
        """Listen beside an address; None where that cannot be, which harms nobody."""
        name = _name_of(address)
        if name is None:
            return None
        with suppress(FolderError, OSError):
            # The port is this server's: whoever left a socket of its name there is gone.
            sockets.remove(sockets.address_of(name))
            end, near = sockets.listen(name)
            server = await asyncio.get_running_loop().create_unix_server(accept, sock=end)
            return cls(server, near)
        return None

    def close(self) -> None:
        """Accept nothing more, while the port is still this server's. Connections stay as they are.

        May be called twice.
        """
        if self._server.is_serving():
            self._server.close()
            sockets.remove(self.address)


def shortcut_to(address: str) -> str | None:
    """The address of the socket beside an address, if there is one."""
    name = _name_of(address)
    if name is None:
        return None
    with suppress(FolderError, OSError):
        near = sockets.address_of(name)
        if Path(near.removeprefix(UNIX)).is_socket():
            return near
    return None


def _name_of(address: str) -> str | None:
    """What stands for an address in the name of its socket; None if others reach it, too."""
    if not address.startswith(TCP):
        return None
    with suppress(InvalidRequest):
        host, _ = parse_host_port(address.removeprefix(TCP))
        if is_loopback(host):
            return hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
    return None

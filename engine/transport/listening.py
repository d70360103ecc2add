"""Listening at a TCP port: a connection counts as soon as it is accepted, with TLS or not.

Invariants:
- No more sockets are open at once than allowed, including those that never begin or finish TLS;
  further ones are closed at once. So is any new one while the process has few files left. So
  unknown clients never use up the files that a journal needs.
- No address has more than its share of them, which also counts from accept on, so one address never
  blocks the port for the others. Connections that have proved to be a part of the cluster no longer
  count there.
- A connection is handed out only after its TLS handshake.
"""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from engine.errors import InvalidRequest
from engine.ports.system_files import are_short
from engine.transport.address import join_host_port, keep_alive, network_of

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_REST_S: Final = 0.1
_SHARE: Final = 4
"""One address may have a quarter of the sockets."""


class Accepted(NamedTuple):
    """One more connection. `ended` is done when it has ended.

    `shared` is done when the connection no longer counts in the share of its address: it has ended,
    or it is a part of the cluster.
    """

    protocol: asyncio.Protocol
    ended: "asyncio.Future[None]"
    shared: "asyncio.Future[None]"


Accept = Callable[[], Accepted]
Context = Callable[[], ssl.SSLContext | None]
"""TLS for the next connection, None without. It may change from time to time."""


def share_of(sockets_max: int) -> int:
    """How many of `sockets_max` sockets one address may have."""
    return max(1, sockets_max // _SHARE)


def _no_address(host: str) -> bool:
    return False


def _no_tls() -> None:
    return None


class Listener:
    """Accepts connections at one port. Made by `listen_tcp`."""

    def __init__(
        self,
        end: socket.socket,
        accept: Accept,
        sockets_max: int,
        context: Context,
        handshake_timeout_ms: int,
        of_address_max: int,
        without_share: Callable[[str], bool] = _no_address,
    ) -> None:
        assert sockets_max > 0 and of_address_max > 0
        self.port = int(end.getsockname()[1])
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._accept = accept
        self._sockets_max = sockets_max
        self._context = context
        self._handshake_s = handshake_timeout_ms / 1000
        self._of_address_max = of_address_max
        self._without_share = without_share
        self._open: dict[asyncio.Future[None], None] = {}
        self._sharing: dict[asyncio.Future[None], str] = {}
        self._taken: Counter[str] = Counter()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._task = self._loop.create_task(self._run())

    @property
    def open_sockets(self) -> int:
        """How many connections are open, with those that have not said who they are."""
        return len(self._open)

    def close(self) -> None:
        """Accept nothing more. Connections that were handed out stay as they are."""
        self._task.cancel()
        for handshake in self._handshakes:
            handshake.cancel()
        self._end.close()

    async def _run(self) -> None:
        while True:
            try:
                end, peer = await self._loop.sock_accept(self._end)
            except OSError as error:
                # Else it was the other side that gave up before it was its turn.
                await asyncio.sleep(_REST_S if error.errno in _NO_ROOM else 0)
                continue
            address = self._address(peer)
            room = len(self._open) < self._sockets_max and self._has_room(address)
            if room and not are_short(end.fileno(), reserves=0.5):
                self._begin(end, address)
            else:
                end.close()
            # Whoever dials without end keeps nobody else waiting.
            await asyncio.sleep(0)

    def _address(self, peer: Any) -> str:
        """The address in whose share a connection counts; "": none."""
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        return "" if self._without_share(host) else network_of(host)

    def _has_room(self, address: str) -> bool:
        return not address or self._taken[address] < self._of_address_max

    def _begin(self, end: socket.socket, address: str) -> None:
        accepted = self._accept()
        self._open[accepted.ended] = None
        accepted.ended.add_done_callback(self._forget)
        if address:
            self._taken[address] += 1
            self._sharing[accepted.shared] = address
            accepted.shared.add_done_callback(self._give_back)
        # In the same turn as the protocol, so that both use the same certificate.
        shaking = self._shake_hands(end, accepted.protocol, self._context())
        handshake = self._loop.create_task(shaking)
        self._handshakes.add(handshake)
        handshake.add_done_callback(partial(self._over, end, accepted))

    async def _shake_hands(
        self, end: socket.socket, protocol: asyncio.Protocol, context: ssl.SSLContext | None
    ) -> None:
        timeout_s = None if context is None else self._handshake_s
        await self._loop.connect_accepted_socket(
            lambda: protocol, end, ssl=context, ssl_handshake_timeout=timeout_s
        )

    def _over(
        self, end: socket.socket, accepted: Accepted, handshake: "asyncio.Task[None]"
    ) -> None:
        self._handshakes.discard(handshake)
        failure = None if handshake.cancelled() else handshake.exception()
        if failure is None and not handshake.cancelled():
            return
        # Nobody else tells of the end of what was never handed out.
        self._forget(accepted.ended)
        self._give_back(accepted.shared)
        end.close()
        if failure is not None and not isinstance(failure, OSError):
            told = {"message": "a connection could not be served", "exception": failure}
            self._loop.call_exception_handler(told)

    def _forget(self, ended: "asyncio.Future[None]") -> None:
        self._open.pop(ended, None)

    def _give_back(self, shared: "asyncio.Future[None]") -> None:
        address = self._sharing.pop(shared, "")
        if not address:
            return
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]


async def listen_tcp(
    accept: Accept,
    host: str,
    port: int,
    *,
    sockets_max: int,
    context: Context = _no_tls,
    handshake_timeout_ms: int,
    backlog: int,
    of_address_max: int | None = None,
) -> Listener:
    """Listen at a port (0: a free one). An address may have `of_address_max` sockets; None: 1/4.

    Raises `InvalidRequest` if it cannot listen there.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        end = _bound(found[0][0], found[0][4], backlog)
    except OSError as error:
        raise InvalidRequest(f"cannot listen at {join_host_port(host, port)}: {error}") from error
    share = share_of(sockets_max) if of_address_max is None else of_address_max
    return Listener(end, accept, sockets_max, context, handshake_timeout_ms, share)


def _bound(family: int, place: Any, backlog: int) -> socket.socket:
    """A socket whose connections notice in two minutes that their other end has vanished."""
    end = socket.socket(family, socket.SOCK_STREAM)
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What is accepted has these, too.
        keep_alive(end)
        end.setblocking(False)
        end.bind(place)
        end.listen(backlog)
    except BaseException:
        end.close()
        raise
    return end

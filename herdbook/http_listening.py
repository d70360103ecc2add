"""Sockets of HTTP: listening, and serving an application there.

Invariants:
- It listens before it reports so, and reports so before it accepts requests.
- The client is the peer of the connection. No header of a request changes that, except one of a
  proxy that the settings name.
- Silent connections are closed. No address has more than a quarter of the connections, counted from
  accept on. A proxy of the settings stands for many clients, and may have all of them.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.errors import InvalidRequest
from engine.ports.system_files import files_max
from engine.transport.address import join_host_port, parse_host_port
from engine.transport.listening import Accepted, Listener, share_of
from engine.transport.security import Security
from herdbook.http_proxies import BehindProxies, Proxies
from herdbook.http_replies import SlowReplies

if TYPE_CHECKING:
    import uvicorn

_DRAIN_S: Final = 5
_CONNECTIONS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for unknown clients: connections in total and per address, time for a TLS handshake
    and for a head, and time in which a client takes nothing of a reply."""

    connections_max: int = _CONNECTIONS_MAX
    of_address_max: int = share_of(_CONNECTIONS_MAX)
    head_s: float = 10.0
    idle_s: float = 30.0
    handshake_s: float = 5.0

    @classmethod
    def of_process(cls) -> "Bounds":
        """No more than half of the files that this process may have open."""
        connections_max = max(1, min(_CONNECTIONS_MAX, files_max() // 2))
        return cls(connections_max, share_of(connections_max))


@contextlib.contextmanager
def listening_at(listen: str) -> Iterator[socket.socket]:
    """A socket at "host:port" as long as the block lasts. Raises `InvalidRequest`."""
    host, port = parse_host_port(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise InvalidRequest(f"cannot listen at {listen}: {error}") from error
    # What is accepted has it from here. A reply is two writes, its head and its body: without this
    # the second one waits until the client acknowledges the first, which takes it 40 ms.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield made
    finally:
        made.close()


def url_of(listen: str, listening: socket.socket, *, secure: bool) -> str:
    """Where a socket is reached."""
    host, _ = parse_host_port(listen)
    scheme = "https" if secure else "http"
    return f"{scheme}://{join_host_port(host, listening.getsockname()[1])}"


async def answer_at(
    stack: AsyncExitStack,
    app: Any,
    listening: socket.socket,
    certificate: Path | None = None,
    private_key: Path | None = None,
    bounds: Bounds | None = None,
    proxies: Sequence[str] = (),
) -> None:
    """Serve an application at a socket until the stack ends.

    `proxies` are addresses and networks whose `X-Forwarded-For` is trusted. Certificate and key
    can be read again, see `engine.ports.renewing`. Raises `InvalidRequest` for invalid proxies,
    for files that cannot be used, and for a private key that other users may read.
    """
    import uvicorn

    known = Proxies(proxies)
    tls = Security.renewed(lambda: Security(certificate=certificate, private_key=private_key))
    configuration = uvicorn.Config(
        BehindProxies(SlowReplies(app), known),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    server = uvicorn.Server(configuration)
    # Not `serve`: its handling of signals would end the process before the store is closed.
    configuration.load()
    server.lifespan = configuration.lifespan_class(configuration)
    server.servers = []
    listener = _listen(server, listening, tls, bounds or Bounds.of_process(), known)
    serving = asyncio.create_task(server.main_loop(), name="http")

    async def end() -> None:
        listener.close()
        server.should_exit = True
        await serving
        await server.shutdown()

    stack.push_async_callback(end)


def check_certificate(certificate: Path | None, private_key: Path | None) -> None:
    """Raise `InvalidRequest` for a certificate and key that cannot be used, or that others can
    read."""
    if certificate is not None:
        Security(certificate=certificate, private_key=private_key).server_context()


def _listen(
    server: "uvicorn.Server",
    listening: socket.socket,
    tls: Security,
    bounds: Bounds,
    proxies: Proxies,
) -> Listener:
    """Accept connections of a server.

    Not uvicorn's own: that counts nobody before the end of a handshake, which may take a minute.
    """
    from herdbook.http_connection import Connection, Turns

    loop = asyncio.get_running_loop()
    tls.server_context()
    turns = Turns(loop)

    def accept() -> Accepted:
        ended: asyncio.Future[None] = loop.create_future()
        state = {"server_state": server.server_state, "app_state": server.lifespan.state}
        made = Connection(bounds.head_s, bounds.idle_s, ended, turns, config=server.config, **state)
        return Accepted(made, ended, ended)

    listening.setblocking(False)
    return Listener(
        listening,
        accept,
        bounds.connections_max,
        lambda: tls.now.server_context(),
        math.ceil(bounds.handshake_s * 1_000),
        bounds.of_address_max,
        proxies.know,
    )

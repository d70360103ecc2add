"""Sockets of HTTP: where a server listens, and answering there with an application.

Invariants:
- It listens before it says so, and says so before it takes requests.
- Who it talks to is who connected: no header of a request says otherwise.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from engine.errors import InvalidRequest
from engine.transport.address import join_host_port, parse_host_port

_DRAIN_S: Final = 5
_CONNECTIONS_MAX: Final = 4_096


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
) -> None:
    """Answer at a socket until the stack ends."""
    import uvicorn

    configuration = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_graceful_shutdown=_DRAIN_S,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
    )
    server = uvicorn.Server(configuration)
    # Not `serve`: its handling of signals would end the process before the store is closed.
    configuration.load()
    server.lifespan = configuration.lifespan_class(configuration)
    await server.startup(sockets=[listening])
    serving = asyncio.create_task(server.main_loop(), name="http")

    async def end() -> None:
        server.should_exit = True
        await serving
        await server.shutdown(sockets=[listening])

    stack.push_async_callback(end)

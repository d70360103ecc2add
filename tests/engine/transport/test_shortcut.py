"""The Unix socket beside a port of the loopback: who takes it, and that nobody needs it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.errors import FolderError
from engine.folder import sockets
from engine.metadata.bookies import Registration
from engine.ports.clock import SystemClock
from engine.transport.address import UNIX
from engine.transport.dialing import framed_dial
from engine.transport.framed_bookie import FramedBookie
from engine.transport.framed_server import FramedServer
from engine.transport.framed_settings import FramedSettings
from engine.transport.security import NO_SECURITY, Security
from engine.transport.shortcut import Shortcut, shortcut_to
from tests.engine.transport.model_bookie import ModelBookie


class Served:
    """A bookie `a` at a port of the loopback."""

    def __init__(self, port: int) -> None:
        self.address = f"tcp:127.0.0.1:{port}"
        self.shortcut: Shortcut | None = None

    async def open_shortcut(self, server: FramedServer) -> Shortcut:
        self.shortcut = await Shortcut.open(self.address, server.accept)
        assert self.shortcut is not None
        return self.shortcut


@asynccontextmanager
async def served(server: FramedServer) -> AsyncIterator[Served]:
    listening = await asyncio.get_running_loop().create_server(server.accept, "127.0.0.1", 0)
    made = Served(listening.sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        listening.close()
        if made.shortcut is not None:
            made.shortcut.close()
        await server.close()


def server_of(name: str) -> FramedServer:
    server = FramedServer(cluster_id="c")
    server.add(ModelBookie(name))
    return server


async def reached(address: str, security: Security = NO_SECURITY, timeout_ms: int = 5_000) -> str:
    """The address of the connection over which bookie `a` was reached."""
    dial = framed_dial(security, SystemClock(), FramedSettings(connect_timeout_ms=timeout_ms))
    bookie = await dial(Registration("a", 1, address=address))
    assert isinstance(bookie, FramedBookie)
    try:
        return bookie.connection.address
    finally:
        await bookie.close()


async def test_a_server_of_this_machine_is_reached_through_its_socket() -> None:
    server = server_of("a")
    async with served(server) as made:
        assert await reached(made.address) == made.address
        shortcut = await made.open_shortcut(server)
        assert await reached(made.address) == shortcut.address == shortcut_to(made.address)
        path = shortcut.address.removeprefix(UNIX)
        assert os.stat(path).st_mode & 0o777 == 0o600
        folder = os.stat(os.path.dirname(path))
        assert folder.st_uid == os.geteuid() and folder.st_mode & 0o077 == 0
        shortcut.close()
        assert shortcut_to(made.address) is None
        assert await reached(made.address) == made.address


async def test_a_socket_that_a_killed_server_left_is_passed_by_and_taken_over() -> None:
    server = server_of("a")
    async with served(server) as made:
        left = await made.open_shortcut(server)
        left._server.close()
        assert shortcut_to(made.address) == left.address
        assert await reached(made.address) == made.address
        assert await reached(made.address) == made.address
        shortcut = await made.open_shortcut(server)
        assert await reached(made.address) == shortcut.address


async def test_a_socket_at_which_another_bookie_answers_is_passed_by() -> None:
    other = server_of("b")
    async with served(server_of("a")) as made:
        await made.open_shortcut(other)
        assert await reached(made.address) == made.address
        await other.close()


async def test_a_socket_at_which_nobody_speaks_is_passed_by_soon() -> None:
    server = server_of("a")
    async with served(server) as made:
        made.shortcut = await Shortcut.open(made.address, asyncio.Protocol)
        assert shortcut_to(made.address) is not None
        assert await reached(made.address, timeout_ms=400) == made.address


async def test_who_ends_twice_leaves_the_socket_of_the_next_one_there() -> None:
    server = server_of("a")
    async with served(server) as made:
        first = await made.open_shortcut(server)
        first.close()
        second = await made.open_shortcut(server)
        first.close()
        assert await reached(made.address) == second.address


async def test_who_has_to_prove_something_takes_no_shortcut() -> None:
    security = Security(secret=b"s" * 32)
    server = FramedServer(cluster_id="c", security=security)
    server.add(ModelBookie("a"))
    async with served(server) as made:
        await made.open_shortcut(server)
        assert await reached(made.address, security) == made.address


async def test_there_is_none_beside_an_address_that_others_reach() -> None:
    server = server_of("a")
    for address in ("tcp:10.0.0.7:3181", "tcp:cow.example:3181", "unix:/tmp/x.sock", "tcp:oops"):
        assert await Shortcut.open(address, server.accept) is None
        assert shortcut_to(address) is None


async def test_where_no_folder_for_sockets_is_to_be_had_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(name: str) -> Path:
        raise FolderError("no folder for a socket")

    monkeypatch.setattr(sockets, "runtime_folder", none)
    server = server_of("a")
    assert await Shortcut.open("tcp:127.0.0.1:3181", server.accept) is None
    assert shortcut_to("tcp:127.0.0.1:3181") is None

"""What listens at a port: strangers who say nothing use up a bounded number of files."""

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from engine.transport.contract import Status
from engine.transport.framed_settings import FramedSettings
from engine.transport.security import Security
from tests.engine.transport.bookie_contract import append, runs_of
from tests.engine.transport.certificates import Authority
from tests.engine.transport.tcp_wiring import TcpHouse, tcp_house
from tests.engine.transport.test_hostile import is_served, reached

SETTINGS = FramedSettings(connections_max=4, connect_timeout_ms=1_000)
SOCKETS_MAX = 20
"""Four that are served, sixteen that are told that they are too many."""


def open_sockets(house: TcpHouse) -> int:
    assert house.listener is not None
    return house.listener.open_sockets


async def is_served_safely(house: TcpHouse, security: Security) -> bool:
    bookie = await (await house.transport(security, host="localhost")).connect("a")
    return (await append(bookie, runs_of(7, 0, [[b"moo"]]))).status is Status.OK


async def test_connections_that_never_begin_tls_are_counted_and_end_in_time(
    tmp_path: Path,
) -> None:
    security = Authority(tmp_path, "herd").security("cow")
    async with tcp_house(security, SETTINGS) as house:
        silent = [await house.raw() for _ in range(SOCKETS_MAX)]
        await reached(lambda: open_sockets(house) == SOCKETS_MAX)
        for _ in range(30):
            one_too_many = await house.raw()
            assert await one_too_many.frame() is None
            await one_too_many.close()
        assert open_sockets(house) == SOCKETS_MAX
        for end in silent:
            assert await end.frame() is None
        await reached(lambda: open_sockets(house) == 0)
        assert await is_served_safely(house, security)


async def test_connections_without_tls_are_counted_until_they_end() -> None:
    async with tcp_house(settings=FramedSettings(connections_max=4)) as house:
        ends = [await house.raw() for _ in range(4)]
        await reached(lambda: open_sockets(house) == 4)
        told = [await house.raw() for _ in range(16)]
        for end in told:
            frame = await end.frame()
            assert frame is not None and b"too many connections" in frame.head
        for end in [*ends, *told]:
            end.writer.transport.abort()
        await reached(lambda: open_sockets(house) == 0)
        assert await is_served(house, 7)
        assert open_sockets(house) == 1


async def test_connections_that_say_nothing_count_in_the_share_of_their_address(
    tmp_path: Path,
) -> None:
    security = Authority(tmp_path, "herd").security("cow")
    patient = FramedSettings(connections_max=4, connect_timeout_ms=60_000)
    async with tcp_house(security, patient, of_address_max=2) as house:
        silent = [await house.raw("127.0.0.2") for _ in range(SOCKETS_MAX + 10)]
        for end in silent[2:]:
            assert await end.frame() is None
        assert open_sockets(house) == 2
        assert await is_served_safely(house, security)


async def test_parts_of_the_cluster_take_nothing_of_the_share_of_their_address() -> None:
    async with tcp_house(of_address_max=1) as house:
        for ledger in range(7, 10):
            assert await is_served(house, ledger)
        assert open_sockets(house) == 3
        silent = await house.raw()
        await reached(lambda: open_sockets(house) == 4)
        one_too_many = await house.raw()
        assert await one_too_many.frame() is None
        silent.writer.transport.abort()
        await reached(lambda: open_sockets(house) == 3)
        assert await is_served(house, 10)


async def test_what_is_no_tls_ends_its_own_connection_and_is_not_counted_on(
    tmp_path: Path,
) -> None:
    security = Authority(tmp_path, "herd").security("cow")
    async with tcp_house(security, SETTINGS) as house:
        for _ in range(SOCKETS_MAX + 5):
            end = await house.raw()
            end.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await end.reader.read()
            await end.close()
        await reached(lambda: open_sockets(house) == 0)
        assert await is_served_safely(house, security)


async def test_a_listener_that_finds_no_file_free_goes_on_when_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    accept = loop.sock_accept
    failures = [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]

    async def failing(end: socket.socket) -> Any:
        if failures:
            raise OSError(failures.pop(), "no")
        return await accept(end)

    monkeypatch.setattr(loop, "sock_accept", failing)
    monkeypatch.setattr("engine.transport.listening._REST_S", 0)
    async with tcp_house() as house:
        assert await is_served(house, 7)
        assert not failures

"""How many files are left, by a limit that the test sets."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import FolderError
from engine.ports import system_files
from engine.ports.system_files import are_short, raise_files_max, reserve_of
from engine.ports.system_workers import ThreadWorkers
from engine.state.rocks import open_rocks
from engine.transport.listening import Accepted, listen_tcp

Limit = Callable[[int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Let so many files be allowed; the process itself keeps its own limit."""
    return lambda files: monkeypatch.setattr(system_files, "files_max", lambda: files)


def lowest_free() -> int:
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    return free


def test_an_eighth_is_kept_for_who_is_there_and_never_more_than_256(limit: Limit) -> None:
    assert [reserve_of(files) for files in (64, 1_024, 65_536)] == [8, 128, 256]
    limit(1_024)
    assert [are_short(number) for number in (895, 896)] == [False, True]
    assert [are_short(number, reserves=2) for number in (767, 768)] == [False, True]
    assert [are_short(number, reserves=0.5) for number in (959, 960)] == [False, True]


def test_what_is_open_counts_until_it_is_closed(limit: Limit) -> None:
    files = 8 * (lowest_free() + 20) // 7
    limit(files)
    assert not are_short()
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(24)]
    assert are_short()
    for each in held:
        os.close(each)
    assert not are_short()


async def test_a_state_is_not_opened_while_files_are_short(tmp_path: Path, limit: Limit) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        limit(lowest_free())
        with pytest.raises(FolderError, match=r"nearly all of the \d+ files .*LimitNOFILE="):
            await open_rocks(tmp_path / "state", workers)
        assert not (tmp_path / "state").exists()
        limit(65_536)
        await (await open_rocks(tmp_path / "state", workers)).close()
    finally:
        await workers.close()


async def test_a_port_hangs_up_while_files_are_short_and_takes_connections_after_it(
    limit: Limit,
) -> None:
    loop = asyncio.get_running_loop()
    accepted = asyncio.Event()

    def accept() -> Accepted:
        accepted.set()
        ended: asyncio.Future[None] = loop.create_future()
        return Accepted(asyncio.Protocol(), ended, ended)

    listener = await listen_tcp(
        accept, "127.0.0.1", 0, sockets_max=9, handshake_timeout_ms=1_000, backlog=9
    )
    try:
        limit(lowest_free())
        with socket.create_connection(("127.0.0.1", listener.port)) as end:
            end.setblocking(False)
            assert await asyncio.wait_for(loop.sock_recv(end, 1), 30) == b""
        assert not accepted.is_set() and listener.open_sockets == 0
        limit(65_536)
        with socket.create_connection(("127.0.0.1", listener.port)):
            await asyncio.wait_for(accepted.wait(), 30)
    finally:
        listener.close()


def test_the_limit_is_raised_as_far_as_the_system_lets_it_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: told.append(pair))
    for soft, hard in ((1_024, 4_096), (1_024, resource.RLIM_INFINITY), (90_000, 100_000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, pair=(soft, hard): pair)
        raise_files_max()
    assert told == [(4_096, 4_096), (65_536, resource.RLIM_INFINITY)]

"""What a killed node leaves behind, and its next start."""

import asyncio
import fcntl
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.errors import InvalidRequest, Unavailable
from herdbook import zookeeper_server
from herdbook.node import ports, serving
from herdbook.node.ports import Ports
from herdbook.node.serving import serve_node
from herdbook.node.settings import HttpTable, NodeSettings, Role
from herdbook.node.status import FILE, StatusFile, read_status
from herdbook.node.supervisor import Ending, MemberState
from herdbook.zookeeper_server import ZooKeeperFailed, ZooKeeperServer

HOST = "127.0.0.1"


class Dying:
    """A port that a process still has when it is looked at twice."""

    def __init__(self) -> None:
        self._socket = socket.create_server((HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self.looks = 0

    def looked_at(self) -> None:
        """From the third look on it is free."""
        self.looks += 1
        if self.looks == 3:
            self._socket.close()

    def close(self) -> None:
        """Free it."""
        self._socket.close()


async def test_a_node_waits_for_the_ports_of_its_killed_processes_and_of_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, ran = Dying(), asyncio.Event()
    look = serving.refuse_taken

    def refuse_taken(settings: NodeSettings) -> None:
        dying.looked_at()
        look(settings)

    async def run(_: NodeSettings, __: Ending, watch: serving.Watch) -> None:
        watch.note({"node": MemberState("serving")})
        ran.set()

    monkeypatch.setattr(serving, "refuse_taken", refuse_taken)
    monkeypatch.setattr(serving, "_run", run)
    settings = NodeSettings(
        data=str(tmp_path), roles=(Role.HTTP,), http=HttpTable(listen=f"{HOST}:{dying.port}")
    )
    settings.own_folder.mkdir()
    try:
        with pytest.raises(InvalidRequest, match="is in use"):
            await serve_node(settings, print)
        # What a node leaves that is killed.
        (settings.own_folder / FILE).write_bytes(b"{}")
        await serve_node(settings, print)
        assert ran.is_set() and dying.looks == 3
        assert not (settings.own_folder / FILE).exists()
    finally:
        dying.close()


def test_a_development_cluster_gets_its_ports_back_when_its_old_processes_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dying = Dying()
    look = zookeeper_server.free_port

    def free_port(host: str, wanted: int = 0) -> int:
        if wanted == dying.port:
            dying.looked_at()
        return look(host, wanted)

    monkeypatch.setattr(ports, "free_port", free_port)
    try:
        with Ports(HOST) as others:
            assert others.take("x", dying.port) != dying.port
        with Ports(HOST, patience_s=30) as own:
            assert own.take("x", dying.port) == dying.port and not own.moved
    finally:
        dying.close()


def test_zookeeper_starts_after_a_killed_server_has_released_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ZooKeeperServer(tmp_path)
    with ExitStack() as stack:
        held = stack.enter_context((tmp_path / "lock").open("ab"))
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(zookeeper_server, "_DYING_S", 0.0)
        with pytest.raises(ZooKeeperFailed, match="another server runs in"):
            stack.enter_context(server._locked())
        monkeypatch.setattr(zookeeper_server, "_DYING_S", 30.0)
        monkeypatch.setattr("time.sleep", lambda _: held.close())
        stack.enter_context(server._locked())
        assert held.closed


def test_a_node_that_ended_before_the_machine_restarted_is_not_running(tmp_path: Path) -> None:
    """Its number may be another process's by now; the machine's clock began anew."""
    with StatusFile(tmp_path, NodeSettings()) as status:
        status.write({"node": MemberState("serving")})
        assert read_status(tmp_path).pid == os.getpid()
        ahead_s = (tmp_path / FILE).stat().st_mtime + 1_000_000
        os.utime(tmp_path / FILE, (ahead_s, ahead_s))
        with pytest.raises(Unavailable, match="ended unexpectedly"):
            read_status(tmp_path)

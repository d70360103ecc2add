"""A real ZooKeeper for tests: one server a test process, a chroot of its own for each test."""

import atexit
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from herdbook.zookeeper_server import ZooKeeperServer

_chroots = itertools.count(1)


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[ZooKeeperServer]:
    """A server of one's own, to stop, pause and start again. It ends with the context."""
    server = ZooKeeperServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@cache
def shared_zookeeper() -> ZooKeeperServer:
    """The server that all tests of this process share. Nobody stops or pauses it."""
    folder = Path(tempfile.mkdtemp(prefix="herdbook-zookeeper-"))
    server = ZooKeeperServer(folder)
    server.start()

    def end() -> None:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return server


def fresh_chroot() -> str:
    """A chroot that no other test of this process uses."""
    return f"/test-{os.getpid()}-{next(_chroots)}"


@contextmanager
def paused(server: ZooKeeperServer) -> Iterator[None]:
    """The server stands still, its connections stay open."""
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    # Its threads stop one after the other, and each of them could still answer.
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)

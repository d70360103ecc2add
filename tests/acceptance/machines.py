"""Machines of a cluster as a test sees them: real processes, with links and disks that can fail.

Invariants:
- A machine's bookie is reached, and reaches ZooKeeper, only through the machine's own links.
- Every process is a child of this one and is stopped by its process id.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from engine.connecting import connect
from engine.errors import NoSuchCluster
from herdbook.zookeeper_server import ZooKeeperServer
from tests.acceptance.links import Link

ROOT: Final = Path(__file__).parents[2]
_POLL_S: Final = 0.05
_START_S: Final = 30.0
_GRACE_MS: Final = 2_000


class TimedOut(AssertionError):
    """What a test waited for did not come."""


async def until(
    what: str, holds: Callable[[], Awaitable[bool]], timeout_s: float = _START_S
) -> None:
    """Wait until a condition of the processes outside holds. Raises `TimedOut`, naming it."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while not await holds():
        if loop.time() > end_s:
            raise TimedOut(f"not within {timeout_s:.0f} s: {what}")
        # Nothing in this process tells of a change in another one.
        await asyncio.sleep(_POLL_S)


def free_port() -> int:
    """A port of this machine that nobody listens on, for a process that is about to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A Python program with arguments, which may be killed and started again."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.paused = False
        self._log = log
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the one that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; it serves a little later."""
        assert self._process is None
        command = [sys.executable, "-m", *self._arguments]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """`kill -9`, if it runs, paused or not."""
        process, self._process = self._process, None
        self.paused = False
        if process is not None:
            process.kill()
            process.wait()

    async def terminate(self) -> int:
        """`kill`, and wait for its end; returns the exit status."""
        assert self._process is not None
        process, self._process = self._process, None
        process.terminate()
        return await asyncio.to_thread(process.wait)

    def pause(self) -> None:
        """Stop its time."""
        os.kill(self.pid, signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Let its time go on."""
        os.kill(self.pid, signal.SIGCONT)
        self.paused = False

    def last_words(self) -> str:
        """The end of what it said."""
        return self._log.read_text(errors="replace")[-3_000:] if self._log.exists() else ""


class Machine(Process):
    """One bookie process, its folder and its links. Made by `Machine.made`."""

    def __init__(self, number: int, folder: Path, chroot: str, to_bookie: Link, to_zookeeper: Link):
        self.name = f"machine-{number}"
        self.rack = f"/rack-{number % 3}"
        self.folder = folder
        self.address = f"tcp:127.0.0.1:{to_bookie.port}"
        self.to_bookie = to_bookie
        self.to_zookeeper = to_zookeeper
        super().__init__(
            folder.with_name(f"{folder.name}.log"),
            *("herdbook", "bookie", "--data", str(folder)),
            *("--zookeeper", f"127.0.0.1:{to_zookeeper.port}{chroot}"),
            *("--listen", f"127.0.0.1:{to_bookie._target_port}"),
            *("--advertise", self.address.removeprefix("tcp:")),
            *("--rack", self.rack, "--host", self.name),
            *("--repair-grace-ms", str(_GRACE_MS)),
        )

    @staticmethod
    async def made(number: int, folder: Path, zookeeper_port: int, chroot: str) -> "Machine":
        """A machine whose bookie does not run yet."""
        to_bookie = await Link.open(free_port())
        to_zookeeper = await Link.open(zookeeper_port)
        return Machine(number, folder / f"bookie-{number}", chroot, to_bookie, to_zookeeper)

    def cut(self) -> None:
        """Part it from everybody."""
        self.to_bookie.cut()
        self.to_zookeeper.cut()

    def heal(self) -> None:
        """Bring it back to everybody."""
        self.to_bookie.heal()
        self.to_zookeeper.heal()

    def wipe(self) -> None:
        """Lose its disk. The bookie does not run."""
        assert self._process is None
        shutil.rmtree(self.folder)

    async def close(self) -> None:
        """End its process and its links."""
        self.kill()
        await self.to_bookie.close()
        await self.to_zookeeper.close()


@asynccontextmanager
async def cluster(folder: Path, chroot: str) -> AsyncIterator[str]:
    """ZooKeeper and three bookies; gives the cluster's url."""
    async with AsyncExitStack() as stack:
        zookeeper = ZooKeeperServer(folder / "zookeeper", port=free_port())
        zookeeper.start()
        stack.callback(zookeeper.stop)
        for number in range(3):
            machine = await Machine.made(number, folder, zookeeper.port, chroot)
            stack.push_async_callback(machine.close)
            machine.start()
        url = f"herdbook://{zookeeper.hosts}{chroot}"
        await until("the first bookie makes the cluster", partial(is_made, url))
        yield url


async def is_made(url: str) -> bool:
    """Whether there is a cluster."""
    try:
        async with connect(url):
            return True
    except NoSuchCluster:
        return False

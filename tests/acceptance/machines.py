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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

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


class Machine:
    """One bookie process, its folder and its links. Made by `Machine.made`."""

    def __init__(self, number: int, folder: Path, chroot: str, to_bookie: Link, to_zookeeper: Link):
        self.name = f"machine-{number}"
        self.rack = f"/rack-{number % 3}"
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.log")
        self.address = f"tcp:127.0.0.1:{to_bookie.port}"
        self.to_bookie = to_bookie
        self.to_zookeeper = to_zookeeper
        self._chroot = chroot
        self._listen_port = to_bookie._target_port
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    async def made(number: int, folder: Path, zookeeper_port: int, chroot: str) -> "Machine":
        """A machine whose bookie does not run yet."""
        to_bookie = await Link.open(free_port())
        to_zookeeper = await Link.open(zookeeper_port)
        return Machine(number, folder / f"bookie-{number}", chroot, to_bookie, to_zookeeper)

    @property
    def pid(self) -> int:
        """The process id of the bookie that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the bookie's process; it is ready when it is registered."""
        assert self._process is None
        command = [
            *(sys.executable, "-m", "herdbook", "bookie", "--data", str(self.folder)),
            *("--zookeeper", f"127.0.0.1:{self.to_zookeeper.port}{self._chroot}"),
            *("--listen", f"127.0.0.1:{self._listen_port}"),
            *("--advertise", self.address.removeprefix("tcp:")),
            *("--rack", self.rack, "--host", self.name),
            *("--repair-grace-ms", str(_GRACE_MS)),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def terminate(self) -> int:
        """`kill`, and wait for its end; returns the exit status."""
        assert self._process is not None
        process, self._process = self._process, None
        process.terminate()
        return await asyncio.to_thread(process.wait)

    def pause(self) -> None:
        """Stop its time."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let its time go on."""
        os.kill(self.pid, signal.SIGCONT)

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
        if self._process is not None:
            self.resume()
        self.kill()
        await self.to_bookie.close()
        await self.to_zookeeper.close()

    def last_words(self) -> str:
        """The end of what the process said."""
        return self.log.read_text(errors="replace")[-2_000:] if self.log.exists() else ""

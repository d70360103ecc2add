"""Real processes of `herdbook bookie`, over a real ZooKeeper."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.engine.ports.open_files import is_open

ROOT = Path(__file__).parents[2]


class BookieProcess:
    """One process; `arguments` stand behind `herdbook bookie`."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        self.arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> str:
        """Start, and return the first line that it prints, "" if it ends without one."""
        with self.log.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "herdbook", "bookie", *self.arguments),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        return await self.line()

    async def line(self) -> str:
        """The next line that it prints, "" if it ends instead."""
        assert self._process is not None and self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the end; the exit status."""
        assert self._process is not None
        status = await self._process.wait()
        self._process = None
        return status

    async def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        """As `kill -9` does, if it runs."""
        if self._process is not None:
            if self._process.returncode is None:
                self.signal(signal.SIGKILL)
            await self.ended()

    def memory_bytes(self) -> int:
        """What the process holds of the machine's memory."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def has_open(self, path: Path) -> bool:
        """Whether the process has this file open."""
        assert self._process is not None
        return is_open(path, self._process.pid)

    def complaints(self) -> str:
        """What stands there beside what merely happened: warnings and errors."""
        lines = self.said().splitlines(keepends=True)
        news = (" INFO ", "a new cluster was made at ")
        return "".join(line for line in lines if not any(each in line for each in news))

    def said(self) -> str:
        """What stands on standard error."""
        return self.log.read_text()


@asynccontextmanager
async def processes(*made: BookieProcess) -> AsyncIterator[None]:
    """None of them runs any more behind the block."""
    try:
        yield
    finally:
        for process in made:
            await process.kill()


async def reached(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds; the test's own deadline ends a wait in vain."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0)

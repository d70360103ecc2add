"""The program that copies changes, as a process that is killed at a moment."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from herdbook.book import Book
from tests.acceptance.machines import ROOT, until

_PATIENCE_S = 240.0


@contextmanager
def copying(book: Book, folder: Path, *more: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The program, killed with all its processes when the block ends."""
    command = [sys.executable, "-m", "tests.spark.streams.copying"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, book.url, "copied", str(folder), *more],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def grown(folder: Path, process: "subprocess.Popen[bytes]", files: int) -> None:
    """Wait until a folder of Spark's notes has more files than so many."""

    def count() -> int:
        return len(list(folder.glob("[0-9]*")))

    async def there() -> bool:
        assert process.poll() is None, "the program ended"
        return count() > files

    asyncio.run(until(f"more comes into {folder}", there, _PATIENCE_S))

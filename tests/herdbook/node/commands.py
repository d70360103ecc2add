"""Commands in the foreground as a test sees them: real processes, ended by their ids."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[3]


class Running:
    """A command that runs until it is told to stop."""

    def __init__(self, process: "subprocess.Popen[str]", errors: Path) -> None:
        self.process = process
        self._errors = errors
        self.lines: list[str] = []

    @property
    def output(self) -> IO[str]:
        """What it prints."""
        assert self.process.stdout is not None
        return self.process.stdout

    def until(self, words: str) -> str:
        """Read its lines up to the one with these words. It must not end before."""
        for line in self.output:
            self.lines.append(line.rstrip("\n"))
            if words in line:
                return self.lines[-1]
        raise AssertionError(f"it ended without {words!r}: {self.lines} {self.errors()}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Have it end; its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        self.lines += self.output.read().splitlines()
        return status

    def errors(self) -> str:
        """What stands on standard error."""
        return self._errors.read_text()


@contextmanager
def running(errors: Path, *words: str, **environment: str) -> Iterator[Running]:
    """`herdbook` with these words; killed at the end of the block if it still runs."""
    with errors.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "herdbook", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "HERDBOOK_URL": "", **environment},
        )
    try:
        yield Running(process, errors)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def called(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`herdbook` with these words, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "herdbook", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HERDBOOK_URL": "", **environment},
        check=False,
    )

"""Starts commands, kills all or some of their processes by id, and starts them again.

Invariants:
- Each start has a mark in its environment, which all its descendants inherit, so that processes
  that outlived their parent are found, too.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MARK: Final = "HERDBOOK_CRASH_MATRIX"
_POLL_S: Final = 0.02
_starts = itertools.count(1)


class NotStarted(Exception):
    """A command ended, or took too long, before it said that it is ready."""


class Started:
    """One start of a command: its process and all processes that this one started."""

    def __init__(self, words: Sequence[str], output: Path) -> None:
        self.words = tuple(words)
        self.mark = f"{os.getpid()}-{next(_starts)}"
        self._output = output.with_suffix(".out")
        self._errors = output.with_suffix(".err")
        self.began_s = time.monotonic()
        with self._output.open("wb") as out, self._errors.open("ab") as errors:
            errors.write(f"--- {' '.join(words)}\n".encode())
            errors.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
                env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("HERDBOOK_")},
                    "PYTHONUNBUFFERED": "1",
                    MARK: self.mark,
                },
            )

    @property
    def runs(self) -> bool:
        """Whether its first process is running."""
        return self.process.poll() is None

    def said(self) -> str:
        """Its output."""
        return self._output.read_text(errors="replace")

    def until(self, word: str, limit_s: float) -> float:
        """Wait until it has printed a word; seconds since its start. Raises `NotStarted`."""
        while True:
            runs = self.runs
            if word in self.said():
                return time.monotonic() - self.began_s
            if not runs:
                raise NotStarted(f"status {self.process.returncode}: {self.last_words()}")
            if time.monotonic() - self.began_s > limit_s:
                raise NotStarted(f"not ready in {limit_s:g} s: {self.last_words()}")
            time.sleep(_POLL_S)

    def ended(self, limit_s: float) -> int | None:
        """Its exit status, if it ends in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(limit_s)
        return None

    def last_words(self) -> str:
        """The end of its standard error."""
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-6:])[-900:]

    def everyone(self) -> list[int]:
        """The processes of this start that live."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and f"{MARK}={self.mark}" in _environment(entry):
                found.append(int(entry.name))
        return sorted(found)

    def kill(self, pids: Sequence[int] | None = None) -> None:
        """Kill these processes, or all of them, as `kill -9` does."""
        for pid in self.everyone() if pids is None else pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if pids is None or self.process.pid in pids:
            self.process.wait()

    def gone(self, limit_s: float) -> list[int]:
        """Wait until none of its processes is alive; returns those that still are."""
        until_s = time.monotonic() + limit_s
        while (left := self.everyone()) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return left


def _environment(entry: Path) -> list[str]:
    try:
        if b"\nState:\tZ" in (entry / "status").read_bytes():
            return []
        return (entry / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def named(pid: int) -> str:
    """What a process is, for people."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return str(pid)
    wanted = [word for word in words if "." in word or word.isalpha()][1:3]
    return " ".join(word[-40:] for word in wanted)

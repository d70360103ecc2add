"""Lines passed on by a thread of their own, for whoever takes them may be slow, or stand still.

Invariants:
- Whoever has a line never waits: what finds no room is lost, and how many were is told.
- A line that cannot be written is lost, and the next one is tried.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_LINES_MAX: Final = 10_000
_LAST_WORDS_S: Final = 2.0


class PassingOn:
    """Passes lines on; a context manager, whose end waits a moment for what is left."""

    def __init__(self, write: Callable[[str], None], lines_max: int = _LINES_MAX) -> None:
        self._write = write
        self._lines_max = lines_max
        self._lines: deque[str] = deque()
        self._lost = 0
        self._ended = False
        self._moved = threading.Condition()
        # One that is stuck in a write keeps no process from ending.
        self._thread = threading.Thread(target=self._run, name="passing lines on", daemon=True)

    def pass_on(self, line: str) -> None:
        """Pass a line on, soon."""
        with self._moved:
            if len(self._lines) >= self._lines_max:
                self._lost += 1
                return
            self._lines.append(line)
            self._moved.notify()

    def __enter__(self) -> "PassingOn":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._moved:
            self._ended = True
            self._moved.notify()
        self._thread.join(_LAST_WORDS_S)

    def _run(self) -> None:
        while lines := self._taken():
            for line in lines:
                with contextlib.suppress(OSError):
                    self._write(line)

    def _taken(self) -> list[str]:
        """All that is there, once something is; nothing: it has ended."""
        with self._moved:
            while not (self._lines or self._ended):
                self._moved.wait()
            lines, lost = list(self._lines), self._lost
            self._lines.clear()
            self._lost = 0
        if lost:
            lines.append(f"{lost} lines more were lost: nobody took them")
        return lines

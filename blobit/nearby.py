"""Small objects read one behind the other: the neighbours are fetched before they are asked for.

Thousands of small objects lie side by side in a ledger, and who lists a folder reads them in that
order. Each read of its own would cost a trip to a bookie. So when a ledger's entries are asked for
in order, a window of the following ones is fetched with one read, and who asks for one of those
finds it there, or on its way.

Invariants:
- An entry is handed out of a window at most once, and at most `WINDOW_AGE_S` after it was fetched:
  what is deleted meanwhile is not found for long.
- `WINDOWS_MAX` windows at most are held, whatever the number of ledgers; each is one read's bytes.
- Reads out of order fetch nothing that was not asked for.
- A window that fails is no answer: who waited for it reads for himself and hears the reason.
"""

import asyncio
from collections import deque
from typing import Final

from engine.errors import EngineError
from engine.ledger.reader import LedgerReader
from engine.ports.clock import Clock

WINDOW_AGE_S: Final = 1.0
WINDOWS_MAX: Final = 16
_ENTRIES_MIN: Final = 16
_ENTRIES_MAX: Final = 256
_SKIPPED_MAX: Final = 4
_NOWHERE: Final = -1_000_000


class _Window:
    """Entries from `first` on that were fetched, or are being fetched, with one read."""

    def __init__(
        self, owner: "Nearby", first: int, last: int, task: "asyncio.Task[dict[int, bytes]]"
    ) -> None:
        self.owner = owner
        self.first = first
        self.last = last
        self.task = task
        self.until_s = 0.0


class Shelf:
    """The windows of all ledgers, the oldest of which makes room."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._windows: deque[_Window] = deque()

    def add(self, window: _Window) -> None:
        """Hold one more."""
        self._windows.append(window)
        if len(self._windows) > WINDOWS_MAX:
            oldest = self._windows[0]
            oldest.owner.drop(oldest)

    def remove(self, window: _Window) -> None:
        """Hold it no longer."""
        if window in self._windows:
            self._windows.remove(window)


class Nearby:
    """The windows of one ledger."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._clock = shelf.clock
        self._following = _NOWHERE
        self._entries = _ENTRIES_MIN
        self._windows: list[_Window] = []

    async def get(self, reader: LedgerReader, entry_id: int) -> list[bytes] | None:
        """An entry that is confirmed, if it is in a window or begins one; None otherwise."""
        following, self._following = self._following, entry_id + 1
        window = self._find(entry_id)
        if window is None:
            if not 0 <= entry_id - following <= _SKIPPED_MAX:
                self._entries = _ENTRIES_MIN
                return None
            window = self._open(reader, entry_id)
        task = window.task
        if not task.done():
            # Whoever asked first may leave: the others still want it.
            await asyncio.wait([task])
        if task.cancelled() or task.exception() is not None:
            return None
        entries = task.result()
        if self._clock.monotonic() > window.until_s:
            self.drop(window)
            return None
        body = entries.pop(entry_id, None)
        if not entries:
            self.drop(window)
        return None if body is None else [body]

    def drop(self, window: _Window) -> None:
        """Forget one; who waits for it still gets it."""
        if window in self._windows:
            self._windows.remove(window)
            self._shelf.remove(window)

    def close(self) -> None:
        """Forget them all."""
        for window in list(self._windows):
            window.task.cancel()
            self.drop(window)

    def _find(self, entry_id: int) -> _Window | None:
        for window in self._windows:
            if window.first <= entry_id <= window.last:
                return window
        return None

    def _open(self, reader: LedgerReader, first: int) -> _Window:
        last = min(first + self._entries - 1, reader.last_add_confirmed)
        self._entries = min(2 * self._entries, _ENTRIES_MAX)
        task = asyncio.get_running_loop().create_task(_fetch(reader, first, last))
        window = _Window(self, first, last, task)
        task.add_done_callback(lambda done: self._fetched(window))
        self._windows.append(window)
        self._shelf.add(window)
        return window

    def _fetched(self, window: _Window) -> None:
        task = window.task
        if task.cancelled() or task.exception() is not None or not task.result():
            self.drop(window)
            return
        # One read may end before what was asked for.
        window.last = max(task.result())
        window.until_s = self._clock.monotonic() + WINDOW_AGE_S


async def _fetch(reader: LedgerReader, first: int, last: int) -> dict[int, bytes]:
    try:
        return {entry.entry_id: entry.body for entry in await reader.read_some(first, last)}
    except EngineError:
        return {}

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
- While the asking goes on for long, one window more is under way than is being handed out.
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
_WINDOWS_AHEAD: Final = 2
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
        self.waiters: list[asyncio.Future[None]] = []


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
        # One past all that was asked for, or fetched ahead, in order.
        self._edge = _NOWHERE
        self._entries = _ENTRIES_MIN
        self._reader: LedgerReader | None = None
        self._windows: list[_Window] = []

    def take(self, entry_id: int) -> bytes | None:
        """An entry, if it is in a window that has been fetched; it is handed out once."""
        for window in self._windows:
            if window.first <= entry_id <= window.last and window.until_s:
                if self._clock.monotonic() > window.until_s:
                    self.drop(window)
                    return None
                entries = window.task.result()
                body = entries.pop(entry_id, None)
                if not entries:
                    self.drop(window)
                if body is not None and len(self._windows) < _WINDOWS_AHEAD:
                    self._go_on(window)
                return body
        return None

    async def get(self, reader: LedgerReader, entry_id: int) -> bytes | None:
        """An entry that is confirmed, if it is in a window or begins one; None otherwise."""
        for _ in range(_WINDOWS_AHEAD):
            window = self._find(entry_id)
            if window is None:
                self._reader = reader
                if not self._is_next(entry_id):
                    return None
                window = self._open(reader, entry_id)
            if not window.until_s:
                # Each waits alone: whoever asked first may leave, and others still want it.
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                window.waiters.append(waiter)
                await waiter
            body = self.take(entry_id)
            # One read may have ended before this entry: then the next window begins with it.
            if body is not None or entry_id <= window.last:
                return body
        return None

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

    def _is_next(self, entry_id: int) -> bool:
        """Whether an entry that is in no window goes on with what was asked for before."""
        beyond = entry_id - self._edge
        if 0 <= beyond <= _SKIPPED_MAX:
            return True
        # Callers who take turns come late, or come again: that does not end the order.
        if not -2 * _ENTRIES_MAX <= beyond < 0:
            self._edge = entry_id + 1
            self._entries = _ENTRIES_MIN
        return False

    def _open(self, reader: LedgerReader, first: int) -> _Window:
        last = min(first + self._entries - 1, reader.last_add_confirmed)
        self._entries = min(2 * self._entries, _ENTRIES_MAX)
        task = asyncio.get_running_loop().create_task(_fetch(reader, first, last))
        window = _Window(self, first, last, task)
        task.add_done_callback(lambda done: self._fetched(window))
        self._edge = last + 1
        self._windows.append(window)
        self._shelf.add(window)
        return window

    def _fetched(self, window: _Window) -> None:
        task = window.task
        if task.cancelled() or task.exception() is not None or not task.result():
            self.drop(window)
            self._edge = _NOWHERE
        elif window in self._windows:
            # One read may end before what was asked for.
            if self._edge == window.last + 1:
                self._edge = max(task.result()) + 1
            window.last = max(task.result())
            window.until_s = self._clock.monotonic() + WINDOW_AGE_S
        for waiter in window.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _go_on(self, window: _Window) -> None:
        """Where the asking goes on for long, fetch the next window while this one is handed out."""
        reader, following = self._reader, window.last + 1
        if self._entries < _ENTRIES_MAX or reader is None or following > reader.last_add_confirmed:
            return
        self._open(reader, following)


async def _fetch(reader: LedgerReader, first: int, last: int) -> dict[int, bytes]:
    try:
        return {entry.entry_id: entry.body for entry in await reader.read_some(first, last)}
    except EngineError:
        return {}

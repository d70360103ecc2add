"""Full garbage collections of a server, made only when its memory has grown.

By default Python makes a full collection when many objects have been created since the last one.
It visits every object, and no other thread runs meanwhile. A long statement causes several full
collections, each slower than the one before because the statement has created more objects. They
achieve little: most of these objects are freed without a collection when the statement ends.

Invariants:
- A server makes a full collection if its memory has stayed far above the lowest value since the
  last one for some seconds, at once if it is very far above, and at least every five minutes,
  because garbage may hold what the memory of the process does not show. Python still collects young
  objects as usual.
- Full collections take at most a twentieth of the time.
"""

import asyncio
import gc
import os
import resource
import time
from collections import deque
from typing import Final

from engine import limits

_EACH_S: Final = 1.0
_LATELY: Final = 5
_GROWN_BYTES: Final = 96 * limits.MIB
_GROWN_SHARE: Final = 0.25
_MUCH_MORE: Final = 4
"""So many times the lasting growth is too much for a moment, too."""
_PAUSE_S_MAX: Final = 300.0
_REST: Final = 20
"""After a collection, so many times its duration passes before the next one."""
_NEVER: Final = 1_000_000_000


class Growth:
    """Decides when a server makes a full collection, from the growth of its memory."""

    def __init__(self, resident_bytes: int, now_s: float) -> None:
        self._least_bytes = resident_bytes
        self._lately: deque[int] = deque(maxlen=_LATELY)
        self._from_s = now_s
        """The next collection is not made before this time."""
        self._last_s = now_s + _PAUSE_S_MAX

    def is_due(self, resident_bytes: int, now_s: float) -> bool:
        """Whether to collect now, given the resident memory of the process. Call it every second.

        >>> growth = Growth(100 * 2**20, 0.0)
        >>> sizes_mib = (120, 400, 120, 400, 400, 400, 400, 400)
        >>> [growth.is_due(mib * 2**20, 0.0) for mib in sizes_mib]
        [False, False, False, False, False, False, False, True]
        """
        self._least_bytes = min(self._least_bytes, resident_bytes)
        self._lately.append(resident_bytes)
        if now_s < self._from_s:
            return False
        step_bytes = max(_GROWN_BYTES, int(_GROWN_SHARE * self._least_bytes))
        lasting_bytes = min(self._lately) if len(self._lately) == _LATELY else 0
        return (
            now_s >= self._last_s
            or lasting_bytes - self._least_bytes > step_bytes
            or resident_bytes - self._least_bytes > _MUCH_MORE * step_bytes
        )

    def collected(self, resident_bytes: int, now_s: float, took_s: float) -> None:
        """Note that a collection was made; `resident_bytes` is the memory that is still in use."""
        self._least_bytes = resident_bytes
        self._lately.clear()
        self._from_s = now_s + _REST * took_s
        self._last_s = now_s + max(_PAUSE_S_MAX, _REST * took_s)


async def collecting() -> None:
    """Make the full collections of a server. When cancelled, restore Python's own threshold."""
    try:
        # Kept open: a process that may open no more files needs its collections most of all.
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        growth = Growth(_resident_bytes(file), time.monotonic())
        while True:
            await asyncio.sleep(_EACH_S)
            begun_s = time.monotonic()
            if growth.is_due(_resident_bytes(file), begun_s):
                gc.collect()
                ended_s = time.monotonic()
                growth.collected(_resident_bytes(file), ended_s, ended_s - begun_s)
    finally:
        os.close(file)
        if before[2] != _NEVER:
            gc.set_threshold(*before)


def _resident_bytes(file: int) -> int:
    """The resident memory of this process, from its open `statm`."""
    return int(os.pread(file, 200, 0).split()[1]) * resource.getpagesize()

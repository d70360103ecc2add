"""Full collections of garbage in a server: when its memory has grown.

Python makes one when many objects have been made since the last. It looks at all of them, and no
other thread runs meanwhile. A long statement causes several, each longer than the one before, as it
becomes more; most of what it is made of goes without any collection when it ends.

Invariants:
- A server makes a full collection if it has held much more for some seconds than after the last
  one, or at once if it holds very much more. Young objects are collected as ever.
"""

import asyncio
import gc
import resource
from collections import deque
from typing import Final

from engine import limits

_EACH_S: Final = 1.0
_LATELY: Final = 5
_GROWN_BYTES: Final = 96 * limits.MIB
_MUCH_BYTES: Final = 768 * limits.MIB
_NEVER: Final = 1_000_000_000


class Growth:
    """When a server makes a full collection: when what it holds has grown for a while."""

    def __init__(self, resident_bytes: int) -> None:
        self._least_bytes = resident_bytes
        self._lately: deque[int] = deque(maxlen=_LATELY)

    def is_due(self, resident_bytes: int) -> bool:
        """Whether to collect now, by the memory of the process; asked once a second.

        >>> growth = Growth(100 * 2**20)
        >>> [growth.is_due(mib * 2**20) for mib in (120, 400, 120, 400, 400, 400, 400, 400)]
        [False, False, False, False, False, False, False, True]
        """
        self._least_bytes = min(self._least_bytes, resident_bytes)
        self._lately.append(resident_bytes)
        lasting_bytes = min(self._lately) if len(self._lately) == _LATELY else 0
        return (
            lasting_bytes - self._least_bytes > _GROWN_BYTES
            or resident_bytes - self._least_bytes > _MUCH_BYTES
        )

    def collected(self, resident_bytes: int) -> None:
        """After a collection: what is left is needed."""
        self._least_bytes = resident_bytes
        self._lately.clear()


async def collecting() -> None:
    """Make a server's full collections until cancelled; then Python makes them again."""
    before = gc.get_threshold()
    if (resident := _resident_bytes()) is None:
        return
    growth = Growth(resident)
    gc.set_threshold(*before[:2], _NEVER)
    try:
        while True:
            await asyncio.sleep(_EACH_S)
            if growth.is_due(_resident_bytes() or 0):
                gc.collect()
                growth.collected(_resident_bytes() or 0)
    finally:
        gc.set_threshold(*before)


def _resident_bytes() -> int | None:
    """The memory of this process; None if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None

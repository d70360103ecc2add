"""Full garbage collections of a server, made only when its memory has grown.

By default Python makes a full collection when many objects have been created since the last one.
It visits every object, and no other thread runs meanwhile. A long statement causes several full
collections, each slower than the one before because the statement has created more objects. They
achieve little: most of these objects are freed without a collection when the statement ends.

Invariants:
- A server makes a full collection if its memory has stayed far above the lowest value since the
  last one for some seconds, or at once if it is very far above. Python still collects young
  objects as usual.
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
    """Decides when a server makes a full collection, from the growth of its memory."""

    def __init__(self, resident_bytes: int) -> None:
        self._least_bytes = resident_bytes
        self._lately: deque[int] = deque(maxlen=_LATELY)

    def is_due(self, resident_bytes: int) -> bool:
        """Whether to collect now, given the resident memory of the process. Call it every second.

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
        """Note that a collection was made; `resident_bytes` is the memory that is still in use."""
        self._least_bytes = resident_bytes
        self._lately.clear()


async def collecting() -> None:
    """Make the full collections of a server. When cancelled, restore Python's own threshold."""
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
    """The resident memory of this process; None if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None

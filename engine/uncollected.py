"""Reading a large message without the garbage collector.

The collector scans new lists again and again while more are created, so a message with many lists
takes ten times as long to read with it.

Invariants:
- The collector is on again after the block, unless it was off before.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LARGE_BYTES: Final = 64 * 1024


@contextmanager
def uncollected(size_bytes: int) -> Iterator[None]:
    """Turn the collector off while the block reads a message of this size, on any thread."""
    if size_bytes < _LARGE_BYTES or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

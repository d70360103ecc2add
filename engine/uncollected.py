"""Reading a large message without the garbage collector.

The collector looks at new lists again and again while there come more of them: a message of many
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
    """A block that reads a message of a size. On any thread."""
    if size_bytes < _LARGE_BYTES or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""Returns memory to the system that this process has freed.

The C library keeps freed memory for later use. What many small blocks took stays with the process,
even if most of them are free.

Invariants:
- Only the C library's own free memory is returned. Where it has no such function, nothing happens.
"""

import ctypes
from collections.abc import Callable
from typing import Final

_trim: Final[Callable[[int], int] | None] = getattr(ctypes.CDLL(None), "malloc_trim", None)


def return_free_memory() -> None:
    """Return free memory to the system: some milliseconds for each 100 MiB. For a worker thread."""
    if _trim is not None:
        _trim(0)

"""Returns memory that this process has freed to the operating system.

The C library keeps freed memory for later use. Memory allocated in many small blocks stays with the
process even when most of the blocks are free.

Invariants:
- Only the C library's own free memory is returned. If it has no such function, nothing happens.
"""

import ctypes
from typing import Final

_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
if _trim is not None:
    _trim.argtypes = (ctypes.c_size_t,)


def return_free_memory() -> None:
    """Return free memory to the operating system. Takes a few milliseconds per 100 MiB.

    Call it in a worker thread. Other threads may have to wait for it when they allocate memory.
    """
    if _trim is not None:
        _trim(0)

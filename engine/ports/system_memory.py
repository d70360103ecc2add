"""Returns memory that this process does not need to the operating system.

The C library keeps freed memory for later use. Memory allocated in many small blocks stays with the
process even when most of the blocks are free. Objects that refer to each other are freed only when
the garbage collector finds them.

Invariants:
- Only the C library's own free memory is returned. If it has no such function, none is.
"""

import ctypes
import gc
from typing import Final

from engine.ports.workers import Workers

_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
if _trim is not None:
    _trim.argtypes = (ctypes.c_size_t,)


async def return_memory(workers: Workers) -> None:
    """Collect garbage, then return free memory to the operating system.

    The collection blocks the event loop for at most 50 ms on an idle server, and longer if there
    are many objects: call it rarely. The rest takes a few milliseconds per 100 MiB in a worker
    thread; other threads may have to wait for it when they allocate memory.
    """
    gc.collect()
    await workers.run(_return_free_memory)


def _return_free_memory() -> None:
    if _trim is not None:
        _trim(0)

"""Memory that a process has freed goes back to the system."""

import asyncio
import ctypes
import gc
import subprocess
import sys
import weakref

import pytest

from engine.limits import MIB
from engine.ports import system_memory
from engine.ports.system_workers import ThreadWorkers

FREED = """
import asyncio, ctypes, re
from pathlib import Path
from engine.ports.system_memory import return_memory
from engine.ports.system_workers import ThreadWorkers

def held():
    told = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Private_Dirty:\\s+(\\d+)", told)[1])

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = (ctypes.c_void_p,)
blocks = [library.malloc(8192) for _ in range(8192)]
for block in blocks:
    ctypes.memset(block, 1, 8192)
for block in blocks[:-1]:
    library.free(block)
before = held()

async def main():
    workers = ThreadWorkers(asyncio.get_running_loop())
    await return_memory(workers)
    await workers.close()

asyncio.run(main())
print((before - held()) * 1024)
"""


def test_what_was_freed_below_a_block_in_use_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    is_glibc = hasattr(ctypes.CDLL(None), "malloc_trim")
    assert int(done.stdout) > 50 * MIB or not is_glibc


class Replica:
    """Refers to itself, so it stays until the garbage collector finds it."""

    def __init__(self) -> None:
        self.own = self


async def test_garbage_is_collected_before_free_memory_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    left: list[bool] = []
    gc.disable()
    try:
        replica = weakref.ref(Replica())
        assert replica() is not None
        monkeypatch.setattr(system_memory, "_trim", lambda _: left.append(replica() is not None))
        await system_memory.return_memory(workers)
    finally:
        gc.enable()
        await workers.close()
    assert left == [False]


async def test_no_memory_is_returned_if_the_c_library_has_no_malloc_trim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    asked: list[int] = []
    for trim in (asked.append, None):
        monkeypatch.setattr(system_memory, "_trim", trim)
        await system_memory.return_memory(workers)
    await workers.close()
    assert asked == [0]

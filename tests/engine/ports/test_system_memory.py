"""Memory that a process has freed goes back to the system."""

import ctypes
import subprocess
import sys

import pytest

from engine.limits import MIB
from engine.ports import system_memory

FREED = """
import ctypes, re
from pathlib import Path
from engine.ports.system_memory import return_free_memory

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
return_free_memory()
print((before - held()) * 1024)
"""


def test_what_was_freed_below_a_block_in_use_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    is_glibc = hasattr(ctypes.CDLL(None), "malloc_trim")
    assert int(done.stdout) > 50 * MIB or not is_glibc


def test_nothing_happens_if_the_c_library_cannot_return_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    for trim in (asked.append, None):
        monkeypatch.setattr(system_memory, "_trim", trim)
        system_memory.return_free_memory()
    assert asked == [0]

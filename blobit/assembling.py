"""Long objects put together in memory, whose pages are made ready beside the event loop.

The memory of a long object is fresh: the kernel has to find and to clear each page of it when it is
first written, which takes several times as long as the copying. On CPython and Linux the object is
therefore allocated as a whole when its first piece has come; a worker has the pages of the next
ones made ready while the bookies are being asked, and the pieces are written where they belong.

Invariants:
- Nobody sees the object before every byte of it has been written.
- Pages that are not ready in time are made ready by writing to them; nothing depends on the worker.
- Of memory no more is taken than has been written and `READY_BYTES` ahead, however long an id says
  that its object is.
- Where there is no such way, no worker, or no memory for all of it, pieces are appended to a
  growing buffer.
"""

import asyncio
import ctypes
import io
import sys
from typing import Final, Protocol

from engine.limits import KIB, MIB
from engine.ports.workers import Workers

IN_PLACE_BYTES_MIN: Final = 4 * MIB
READY_BYTES: Final = 32 * MIB
_IN_PLACE: Final = sys.platform == "linux" and sys.implementation.name == "cpython"
_PAGE_BYTES: Final = 4096
_STEP_BYTES: Final = 512 * KIB
"""As long as one call lasts no other thread is given memory by the kernel."""
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE. A kernel that does not know it says so, and nothing else happens."""


class Assembly(Protocol):
    """Takes the pieces of an object in order."""

    def write(self, piece: bytes, /) -> object:
        """Add the next piece."""
        ...

    def getvalue(self) -> bytes:
        """The whole object, once all of it is written."""
        ...


def assembly_of(length: int, workers: Workers | None) -> Assembly:
    """Where an object of so many bytes is put together."""
    if not _IN_PLACE or workers is None or length < IN_PLACE_BYTES_MIN:
        return io.BytesIO()
    try:
        return _InPlace(length, workers)
    except MemoryError:
        return io.BytesIO()


class _InPlace:
    """An object that is written where it will be read."""

    def __init__(self, length: int, workers: Workers) -> None:
        self._whole = _allocate(None, length)
        self._address: int = _address_of(self._whole)
        memory = (ctypes.c_char * length).from_address(self._address)
        self._view = memoryview(memory).cast("B")
        self._workers = workers
        self._written_bytes = 0
        self._ready_bytes = 0
        self._making_ready: asyncio.Future[None] | None = None
        self._make_ready()

    def write(self, piece: bytes, /) -> None:
        end = self._written_bytes + len(piece)
        self._view[self._written_bytes : end] = piece
        self._written_bytes = end
        if self._ready_bytes < len(self._whole) and end > self._ready_bytes - READY_BYTES // 2:
            self._make_ready()

    def getvalue(self) -> bytes:
        assert self._written_bytes == len(self._whole), "not all of it was written"
        self._view.release()
        whole: bytes = self._whole
        return whole

    def _make_ready(self) -> None:
        """Have the pages of the next pieces made ready, away from the loop."""
        whole, start = self._whole, self._ready_bytes
        end = self._ready_bytes = min(max(start, self._written_bytes) + READY_BYTES, len(whole))
        first = self._address + start

        def work() -> None:
            # The object is named here so that it lives as long as this.
            assert len(whole) >= end
            _map_pages(first, end - start)

        self._making_ready = asyncio.ensure_future(self._workers.run(work))
        self._making_ready.add_done_callback(lambda done: done.cancelled() or done.exception())


def _map_pages(address: int, length: int) -> None:
    first = -(-address // _PAGE_BYTES) * _PAGE_BYTES
    size_bytes = (address + length - first) // _PAGE_BYTES * _PAGE_BYTES
    for start in range(first, first + size_bytes, _STEP_BYTES):
        _advise(start, min(_STEP_BYTES, first + size_bytes - start), _POPULATE_WRITE)


if _IN_PLACE:
    _allocate = ctypes.pythonapi.PyBytes_FromStringAndSize
    _allocate.restype = ctypes.py_object
    _allocate.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
    _address_of = ctypes.pythonapi.PyBytes_AsString
    _address_of.restype = ctypes.c_void_p
    _address_of.argtypes = [ctypes.py_object]
    _advise = ctypes.CDLL(None).madvise
    _advise.restype = ctypes.c_int
    _advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

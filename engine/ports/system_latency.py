"""How long processors may take to wake up: asked of the machine while there is work.

A processor without work sleeps. To wake takes it some microseconds, and on a virtual machine, whose
host gives it to others meanwhile, up to 100: as long as a disk syncs, and an append waits for
several of them. Linux lets a process ask for a bound of that time for as long as it keeps a file
open (Documentation/power/pm_qos_interface.rst). What comes of it is up to the driver of idle
processors: the one of virtual machines, haltpoll, knows the bound 0 alone.

Invariants:
- The file is open only while something is done: a machine at rest sleeps as ever within a second,
  and at once when the process ends, however it does.
- Who cannot ask learns it at the start. What fails later changes nothing but how quick things are,
  and is said once.
"""

import asyncio
import logging
import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from engine.errors import InvalidRequest

DEVICE: Final = Path("/dev/cpu_dma_latency")
LOOK_MS: Final = 250
"""How often is looked whether anything was done."""
_BOUND = struct.Struct("=i")
_LOG: Final = logging.getLogger("engine.ports")


class CpuLatency:
    """A bound of `bound_us` microseconds; with 0 idle processors do not sleep, they spin.

    `device` is where to ask, if not at `DEVICE`. Raises `InvalidRequest` where the machine cannot
    be asked, or not by this user.

    >>> CpuLatency(0, Path("/none"))
    Traceback (most recent call last):
    engine.errors.InvalidRequest: cannot ask processors to wake quickly: no such file: /none
    """

    def __init__(self, bound_us: int, device: Path | None = None) -> None:
        assert bound_us >= 0
        device = DEVICE if device is None else device
        self._bound = _BOUND.pack(bound_us)
        self._device = device
        self._file: int | None = None
        self._complained = False
        try:
            self._open()
        except FileNotFoundError:
            raise InvalidRequest(
                f"cannot ask processors to wake quickly: no such file: {device}"
            ) from None
        except OSError as error:
            raise InvalidRequest(
                f"cannot ask processors to wake quickly: {error}; let this user write there"
            ) from error
        self.let_go()

    @property
    def asked(self) -> bool:
        """Whether the bound holds now."""
        return self._file is not None

    def ask(self) -> None:
        """Let the bound hold until `let_go`."""
        if self._file is None:
            try:
                self._open()
            except OSError as error:
                if not self._complained:
                    _LOG.warning("processors are not asked to wake quickly any more: %s", error)
                self._complained = True

    def let_go(self) -> None:
        """Let processors sleep."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        file = os.open(self._device, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, self._bound)
        except OSError:
            os.close(file)
            raise
        self._file = file


@asynccontextmanager
async def quick_while_busy(
    latency: CpuLatency | None, progress: Callable[[], object]
) -> AsyncIterator[None]:
    """Ask for as long as `progress` gives something else at each look; without `latency` never."""
    if latency is None:
        yield
        return
    looking = asyncio.create_task(_look(latency, progress))
    try:
        yield
    finally:
        looking.cancel()
        latency.let_go()


async def _look(latency: CpuLatency, progress: Callable[[], object]) -> None:
    seen = progress()
    while True:
        await asyncio.sleep(LOOK_MS / 1000)
        now = progress()
        if now != seen:
            latency.ask()
        else:
            latency.let_go()
        seen = now

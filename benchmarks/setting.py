"""What every scenario gets: a folder of its own, sizes, and a way to measure beside the limit.

Invariants:
- Each scenario starts in an empty folder and leaves none behind.
- With `quick` everything is smaller and nothing else is different.
"""

import asyncio
import shutil
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import disk_limit
from engine.ports.system_latency import CpuLatency
from engine.ports.system_loop import new_event_loop

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how much. Times in seconds."""

    folder: Path
    quick: bool

    def size(self, full: int, quick: int) -> int:
        """A count, by how thorough the run is."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        """How often a rate is measured; the median counts."""
        return self.size(3, 1)

    @property
    def limit_s(self) -> float:
        """How long each look at the disk's limit lasts."""
        return 0.2 if self.quick else 0.7

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder for one scenario."""
        folder = Path(tempfile.mkdtemp(prefix="herdbook-benchmark-", dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def beside_limit(
        self,
        files: int,
        in_flight_bytes: int,
        work: Callable[[Path], Coroutine[Any, Any, float]],
        latency: CpuLatency | None = None,
    ) -> tuple[float, float]:
        """A rate, and the disk's own, measured just before and just after it.

        `latency` is what the work itself asks of the processors; with it and without, the better
        of the disk's rates counts.
        """

        def limit(folder: Path) -> float:
            rates = []
            for asked in {None, latency}:
                with quick(asked):
                    rate = disk_limit.append_rate(folder, files, in_flight_bytes, self.limit_s)
                rates.append(rate)
            return max(rates)

        with self.scratch() as folder:
            before = limit(folder)
            value = run(work(folder / "data"))
            after = limit(folder)
        return value, max(before, after)

    async def median(self, measure: Callable[[], Awaitable[float]]) -> float:
        """The median of a few rounds of the same."""
        return statistics.median([await measure() for _ in range(self.rounds)])


@contextmanager
def quick(latency: CpuLatency | None) -> Iterator[None]:
    """Ask it of the processors; without one, nothing."""
    if latency is None:
        yield
        return
    latency.ask()
    try:
        yield
    finally:
        latency.let_go()


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run on a fresh event loop of the kind that the product uses."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def note(text: str) -> None:
    """Tell people what is going on; standard output belongs to the results."""
    print(text, file=sys.stderr, flush=True)

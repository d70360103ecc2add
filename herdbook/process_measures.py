"""What every process that serves tells of itself: how late its loop is, pauses, memory, files.

    herdbook_loop_lag_seconds      how late a timer of the event loop ran
    herdbook_gc_pause_seconds      how long all threads stood for the collection of garbage
    process_resident_memory_bytes, process_open_fds, process_max_fds, process_cpu_seconds_total

The last ones are Prometheus's own, under the names that its dashboards know; Linux alone tells
them. Collections of the youngest generation are not counted: they come by the thousand and take
microseconds.

Invariants:
- A collection may begin within any call, also one that counts something: what it took is noted in
  a list, and counted on the loop.
- Nothing is measured, and no hook is set, where nobody looks.
"""

import asyncio
import gc
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from engine.ports.clock import Clock, SystemClock
from engine.ports.metrics import NO_METRICS, Metrics
from herdbook.metrics import PrometheusMetrics

INTERVAL_S: Final = 0.25
_PAUSES_MAX: Final = 100_000


class ProcessMeasures:
    """Measures one process, on its event loop."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._lag_s = metrics.histogram(
            "herdbook_loop_lag_seconds", "How late a timer of the event loop ran."
        )
        self._pause_s = {
            generation: metrics.histogram(
                "herdbook_gc_pause_seconds",
                "How long all threads stood for one collection of garbage.",
                generation=str(generation),
            )
            for generation in (1, 2)
        }
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pauses: deque[tuple[int, float]] = deque(maxlen=_PAUSES_MAX)
        self._began_s = 0.0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        if isinstance(metrics, PrometheusMetrics):
            metrics.tell_of_process()

    def start(self) -> None:
        """Begin to measure, four times a second."""
        gc.callbacks.append(self._collected)
        self._arm()

    def close(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._collected)

    def _arm(self) -> None:
        self._due_s = self._clock.monotonic() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._lag_s.observe(max(0.0, self._clock.monotonic() - self._due_s))
        for _ in range(len(self._pauses)):
            generation, pause_s = self._pauses.popleft()
            self._pause_s[generation].observe(pause_s)
        self._arm()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if not info["generation"]:
            return
        # Collections never overlap: who collects has the interpreter.
        if phase == "start":
            self._began_s = time.perf_counter()
        else:
            self._pauses.append((info["generation"], time.perf_counter() - self._began_s))


@contextmanager
def process_measured(metrics: Metrics, clock: Clock | None = None) -> Iterator[None]:
    """Measure this process as long as the block lasts; not where nobody looks. On the loop."""
    if metrics is NO_METRICS:
        yield
        return
    measures = ProcessMeasures(metrics, clock or SystemClock())
    measures.start()
    try:
        yield
    finally:
        measures.close()

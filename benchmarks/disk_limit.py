"""What the disk alone allows: threads that do nothing but write, sync or read the same bytes.

Invariants:
- As many files as there are copies, a thread each, all at once; the slowest of them counts.
- Before each sync lie at most as many bytes as the scenario's callers can have under way; of all
  sizes up to that, the quickest counts, so the limit is never made to look low.
- The same is measured before and after the scenario, and the better of the two counts: a noisy
  neighbour then makes a scenario look worse, never better.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 1024
WRITE_BYTES: Final = 256 * 1024
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


class Times(NamedTuple):
    """How long one write and sync took, in milliseconds."""

    p50_ms: float
    p99_ms: float


def append_rate(folder: Path, files: int, in_flight_bytes: int, seconds: float) -> float:
    """Entries of 1 KiB a second that reach every one of the files and are synced."""
    return max(
        _append_rate(folder, files, sync_bytes, seconds)
        for sync_bytes in sync_sizes(in_flight_bytes)
    )


def same_bytes_rate(folder: Path, files: int, total_bytes: int, in_flight_bytes: int) -> float:
    """Entries of 1 KiB a second while every one of the files takes just so many bytes, synced.

    As `append_rate`, but no shorter than the work beside it: what is written goes to memory that
    the machine has not used yet, and that costs both the same.
    """
    return max(
        _append_rate(folder, files, sync_bytes, 0.0, rounds=max(1, total_bytes // sync_bytes))
        for sync_bytes in sync_sizes(in_flight_bytes)[-2:]
    )


def sync_sizes(in_flight_bytes: int) -> list[int]:
    """The bytes before a sync that are tried.

    >>> sync_sizes(1024), sync_sizes(4096 * 1024)
    ([1024], [262144, 1048576, 4194304])
    """
    largest = min(in_flight_bytes, BATCH_BYTES_MAX)
    return [size for size in (WRITE_BYTES, 4 * WRITE_BYTES) if size < largest] + [largest]


def append_times(folder: Path, files: int, seconds: float) -> Times:
    """How long one entry takes to be written and synced, on the slowest of the files."""
    samples: list[list[float]] = [[] for _ in range(files)]

    def work(index: int) -> None:
        _sync_for(folder / f"limit-{index}", [bytes(ENTRY_BYTES)], seconds, samples[index])

    _at_once(files, work)
    quantiles = [statistics.quantiles(each, n=100) for each in samples]
    return Times(
        1000 * max(each[49] for each in quantiles), 1000 * max(each[98] for each in quantiles)
    )


def read_rate(folder: Path, total_bytes: int) -> float:
    """Entries of 1 KiB a second that one thread reads from one file that was just written."""
    path = folder / "limit-read"
    piece = bytes(4 * WRITE_BYTES)
    with path.open("wb") as file:
        for _ in range(max(1, total_bytes // len(piece))):
            file.write(piece)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size_bytes = os.fstat(descriptor).st_size
        start = time.perf_counter()
        for offset in range(0, size_bytes, len(piece)):
            os.pread(descriptor, len(piece), offset)
        return size_bytes / ENTRY_BYTES / (time.perf_counter() - start)
    finally:
        os.close(descriptor)
        path.unlink()


def _append_rate(
    folder: Path, files: int, sync_bytes: int, seconds: float, rounds: int = 3
) -> float:
    piece = bytes(min(sync_bytes, WRITE_BYTES))
    parts = [piece] * (sync_bytes // len(piece))
    written_bytes = len(piece) * len(parts)
    rates = [0.0] * files

    def work(index: int) -> None:
        start = time.perf_counter()
        done = _sync_for(folder / f"limit-{index}", parts, seconds, [], rounds)
        rates[index] = done * written_bytes / ENTRY_BYTES / (time.perf_counter() - start)

    _at_once(files, work)
    return min(rates)


def _sync_for(
    path: Path, parts: list[bytes], seconds: float, samples: list[float], least: int = 3
) -> int:
    """Write and sync for some time, and at least so often; returns how often."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    rounds = 0
    try:
        now = time.perf_counter()
        end = now + seconds
        while now < end or rounds < least:
            os.writev(descriptor, parts)
            os.fdatasync(descriptor)
            rounds += 1
            before, now = now, time.perf_counter()
            samples.append(now - before)
    finally:
        os.close(descriptor)
        path.unlink()
    return rounds


def _at_once(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

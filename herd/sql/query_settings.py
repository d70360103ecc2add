"""How queries behave: plain values, no components."""

from dataclasses import dataclass
from typing import Final

from engine import limits

CONNECTIONS: Final = 4
HOLDING: Final = 2
"""So many queries run at a time on a server, and so many more that hold locks."""
PROCESS_BYTES: Final = 16 * limits.MIB
"""What a query's process holds at rest, beside what all of them have in common."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Bounds of queries. Sizes in bytes.

    `connections` queries run at a time, each with DuckDB's `threads`, and `holding` more of
    transactions that hold locks: those never wait for others' long queries alone. A user has
    `share` of them at most (0: as many as there are), and `waiting_max` that wait.
    `memory_bytes` is what DuckDB may hold; above that it spills to disk, `disk_bytes` at most.
    `result_bytes_max` bounds one answer.
    A query waits `wait_timeout_ms` at most for its turn and runs `run_timeout_ms` at most.
    """

    connections: int = 2
    holding: int = 2
    share: int = 0
    waiting_max: int = 256
    wait_timeout_ms: int = 30_000
    run_timeout_ms: int = 3_600_000
    threads: int = 2
    memory_bytes: int = 512 * limits.MIB
    disk_bytes: int = 16 * 1024 * limits.MIB
    result_bytes_max: int = 1024 * limits.MIB
    temporary: str = ""
    """Where those files lie; "": in the system's folder for such."""

"""How queries behave: plain values, no components."""

from dataclasses import dataclass
from typing import Final

from engine import limits

CONNECTIONS: Final = 4
HOLDING: Final = 2
"""How many queries a server runs at a time, and how many more that hold locks."""
PROCESS_BYTES: Final = 16 * limits.MIB
"""The memory of an idle query process, without what all of them share."""
SMALL_BYTES: Final = 32 * limits.MIB
"""What the small queries of a server may hold together, in its own process."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Bounds of queries. Sizes in bytes.

    `connections` queries run at a time, each with `threads` of DuckDB, and `holding` more for
    transactions that hold locks, so that these never wait only for other users' long queries. A
    user may have `share` of them (0: all), and `waiting_max` that wait. `memory_bytes` is what
    DuckDB may hold; above that it spills to disk, `disk_bytes` at most, and queries in processes
    leave `disk_kept_bytes` of the disk free. `result_bytes_max` bounds one answer, which is made in
    batches of `batch_rows`. A query waits at most `wait_timeout_ms` for its turn and runs at most
    `run_timeout_ms`.
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
    disk_kept_bytes: int = 0
    result_bytes_max: int = 1024 * limits.MIB
    batch_rows: int = 65_536
    temporary: str = ""
    """The folder of those files; "": the system's folder for temporary files."""

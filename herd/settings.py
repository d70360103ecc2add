"""How a tablespace behaves: plain values, no components."""

from dataclasses import dataclass
from typing import Final

from engine import limits
from engine.log.settings import LogSettings


@dataclass(frozen=True, slots=True)
class HerdSettings:
    """Bounds of one tablespace. Times in milliseconds, sizes in bytes.

    `lock_timeout_ms` is how long a statement waits for a lock, `idle_timeout_ms` after how long
    without a call an open transaction is rolled back. `row_locks_max` is how many rows of one table
    a transaction locks one by one; then it locks the table. `transaction_bytes_max` bounds what one
    transaction changes. `erase_rows` is how many rows of a dropped table one command removes.
    `overload_pause_ms` is the pause after the log was overloaded. `query_bytes` is the memory for
    all its queries together, beyond which they use files; on a server it is the memory for one
    query's process. `columns_bytes` is the memory for columns of its tables that are kept for
    queries. A leader takes a checkpoint every `checkpoint_ms`, if something changed; the newest
    `checkpoints_kept` stay, and every moment since the oldest of them can be restored.
    """

    lock_timeout_ms: int = 10_000
    idle_timeout_ms: int = 60_000
    row_locks_max: int = 100_000
    transaction_bytes_max: int = 48 * limits.MIB
    erase_rows: int = 1_000
    overload_pause_ms: int = 5
    query_bytes: int = 512 * limits.MIB
    columns_bytes: int = 512 * limits.MIB
    checkpoint_ms: int = 900_000
    checkpoints_kept: int = 2


FOLDER_LOG: Final = LogSettings(turn_timeout_ms=10_000)
"""In a folder there is no other disk to go on with: who waits for a full one is told so soon."""

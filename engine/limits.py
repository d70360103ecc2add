"""Every limit of the engine, named once.

Invariants (asserted below, at import):
- One entry always fits in one run, one run in one frame, one frame in one segment.
- A run never crosses a stripe, so a stripe bounds the entries of a run.
- The bytes a writer may hold for a straggler fit in the bytes it may hold at all.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Entries and runs. 256 entries of 1 KiB fill a run exactly: both bounds are reached together.
ENTRY_BYTES_MAX: Final = 4 * MIB
STRIPE_ENTRIES: Final = 256
RUN_ENTRIES_MAX: Final = STRIPE_ENTRIES
RUN_BYTES_MAX: Final = 256 * KIB
ENTRY_ID_MAX: Final = 2**63 - 1
LEDGER_ID_MAX: Final = 2**63 - 1
ENSEMBLE_SIZE_MAX: Final = 64
CUSTOM_METADATA_BYTES_MAX: Final = 64 * KIB

# The writer. Bytes queued or in flight before append() waits, and before it refuses.
WRITER_BYTES_MAX: Final = 64 * MIB
WRITER_PARKED_BYTES_MAX: Final = 64 * MIB
STRAGGLER_BYTES_MAX: Final = 32 * MIB

# The reader.
READ_BYTES_MAX: Final = 1 * MIB

# The bookie.
SEGMENT_BYTES: Final = 256 * MIB
JOURNAL_QUEUE_BYTES_MAX: Final = 128 * MIB
JOURNAL_BATCH_BYTES_MAX: Final = 16 * MIB
RECENT_RUNS_BYTES_MAX: Final = 32 * MIB
INDEX_QUEUE_RECORDS_MAX: Final = 100_000
LEDGER_STATES_MAX: Final = 10_000

# The wire.
FRAME_BYTES_MAX: Final = 16 * MIB

# Deadlines.
APPEND_TIMEOUT_MS: Final = 10_000
READ_TIMEOUT_MS: Final = 10_000
SPECULATIVE_READ_MS: Final = 200
LONG_POLL_MS: Final = 5_000
METADATA_TIMEOUT_MS: Final = 10_000

assert RUN_BYTES_MAX < ENTRY_BYTES_MAX < FRAME_BYTES_MAX < SEGMENT_BYTES
assert RUN_ENTRIES_MAX <= STRIPE_ENTRIES
assert READ_BYTES_MAX + ENTRY_BYTES_MAX < FRAME_BYTES_MAX
assert STRAGGLER_BYTES_MAX <= WRITER_BYTES_MAX
assert JOURNAL_BATCH_BYTES_MAX + ENTRY_BYTES_MAX < JOURNAL_QUEUE_BYTES_MAX < SEGMENT_BYTES
assert SPECULATIVE_READ_MS < READ_TIMEOUT_MS

"""How blobs are stored and read: plain values, no components.

Invariants (asserted when settings are made):
- An entry of a blob fits in an entry of the ledger layer.
- What a put may have in flight fits in what a ledger's writer takes, so that it is never refused.
- A ledger holds at least one whole shared object.
"""

from dataclasses import dataclass

from engine import limits


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """Sizes in bytes.

    `entry_bytes` is the size into which objects are cut. `ledger_bytes_max` is where a ledger is
    closed and the next one begun; a part of an object never crosses it by more than one batch.
    Objects up to `shared_object_bytes_max` share ledgers; bigger ones and streams borrow a ledger
    alone, `streams_max` at a time. `shared_pending_bytes_max` and `stream_pending_bytes_max` bound
    what is written and not yet durable, in all shared puts together and in each stream.
    `batch_bytes` is what a stream hands to its ledger at once. `read_ahead_bytes` is what a
    stream being read holds ahead of its caller; `readers_max` how many open ledgers are
    remembered for reading. `attempts_max` is how often a put writes its data before it gives up.
    """

    entry_bytes: int = 64 * limits.KIB
    ledger_bytes_max: int = 256 * limits.MIB
    shared_object_bytes_max: int = 4 * limits.MIB
    shared_pending_bytes_max: int = 32 * limits.MIB
    stream_pending_bytes_max: int = 8 * limits.MIB
    batch_bytes: int = 1 * limits.MIB
    read_ahead_bytes: int = 4 * limits.MIB
    readers_max: int = 256
    streams_max: int = 8
    attempts_max: int = 4

    def __post_init__(self) -> None:
        assert 1 <= self.entry_bytes <= limits.ENTRY_BYTES_MAX
        assert self.entry_bytes <= self.batch_bytes <= self.stream_pending_bytes_max
        assert self.shared_object_bytes_max <= self.shared_pending_bytes_max
        assert self.shared_pending_bytes_max <= limits.WRITER_BYTES_MAX
        assert self.stream_pending_bytes_max + self.batch_bytes <= limits.WRITER_BYTES_MAX
        assert self.ledger_bytes_max >= self.batch_bytes
        assert self.streams_max >= 1 and self.readers_max >= 1 and self.attempts_max >= 1

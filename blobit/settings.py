"""How blobs are stored and read: plain values, no components.

Invariants (asserted when settings are made):
- An entry of a blob fits in an entry of the ledger layer.
- What a put may have in flight fits in what a ledger's writer takes, so that it is never refused.
- A ledger holds at least one whole shared object.
- A bucket's settings never change after it was created; what is no setting is refused.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from blobit.errors import SettingsInvalid
from blobit.garbage_settings import GarbageSettings
from engine import limits

_DAY_MS: Final = 24 * 60 * 60 * 1_000


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """Sizes in bytes.

    `entry_bytes` is the size into which small objects are cut, `stream_entry_bytes` that of bigger
    ones and streams. `ledger_bytes_max` is where a ledger is closed and the next one begun; a part
    of an object never crosses it by more than one batch. Objects up to `shared_object_bytes_max`
    share ledgers; bigger ones and streams borrow a ledger alone. `shared_pending_bytes_max` and
    `stream_pending_bytes_max` bound what is written and not yet durable, in all shared puts
    together and in each stream, and in all streams as if there were `streams_max`. `batch_bytes` is
    what a stream hands to its ledger at once. `read_ahead_bytes` is what a stream being read holds
    ahead of its caller;
    `readers_max` how many open ledgers are remembered for reading. `ledger_idle_ms` is after how
    long without work an open ledger is closed, `ledgers_open_max` how many stay open without work.
    `attempts_max` is how often a put writes its data before it gives up.
    """

    entry_bytes: int = 64 * limits.KIB
    stream_entry_bytes: int = 256 * limits.KIB
    ledger_bytes_max: int = 256 * limits.MIB
    shared_object_bytes_max: int = 4 * limits.MIB
    shared_pending_bytes_max: int = 32 * limits.MIB
    stream_pending_bytes_max: int = 8 * limits.MIB
    batch_bytes: int = 1 * limits.MIB
    read_ahead_bytes: int = 4 * limits.MIB
    readers_max: int = 256
    streams_max: int = 8
    ledger_idle_ms: int = 60_000
    ledgers_open_max: int = 64
    attempts_max: int = 4
    commit_pending_bytes_max: int = 16 * limits.MIB
    commit_changes_max: int = 256
    commits_max: int = 4
    commit_patience_ms: int = 30_000
    parts_max: int = 50_000
    upload_ttl_ms: int = 7 * _DAY_MS
    garbage: GarbageSettings = field(default_factory=GarbageSettings)

    def __post_init__(self) -> None:
        assert 1 <= self.entry_bytes <= limits.ENTRY_BYTES_MAX // 2
        assert 1 <= self.stream_entry_bytes <= limits.ENTRY_BYTES_MAX // 2
        assert self.stream_entry_bytes <= self.batch_bytes <= self.stream_pending_bytes_max
        assert self.batch_bytes <= self.shared_object_bytes_max <= self.shared_pending_bytes_max
        assert self.shared_pending_bytes_max <= limits.WRITER_BYTES_MAX
        assert self.stream_pending_bytes_max + self.batch_bytes <= limits.WRITER_BYTES_MAX
        assert self.ledger_bytes_max >= self.batch_bytes
        assert self.streams_max >= 1 and self.readers_max >= 1 and self.attempts_max >= 1
        assert self.ledgers_open_max >= 1 and self.ledger_idle_ms >= 1
        assert self.commits_max >= 1 and self.commit_changes_max >= 1 and self.parts_max >= 1


class BucketSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one bucket's objects are kept like; fixed when it is created.

    What is None of `ensemble`, `write_quorum` and `ack_quorum` is the client's choice. With
    `ttl_ms` objects expire so long after they were put, unless a put says otherwise.
    `ledger_bytes_max` is where a ledger ends. `compression` is "" or "zstd". `tablespace` holds
    the bucket's names, None: the store's choice, one of a pool that buckets share; with
    `own_tablespace`, or a `leader`, which is the node that is to lead it, the bucket has one alone.
    Raises `SettingsInvalid` for what does not fit together.
    """

    ensemble: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None
    ttl_ms: int | None = None
    ledger_bytes_max: int = 256 * limits.MIB
    compression: str = ""
    tablespace: str | None = None
    leader: str | None = None
    own_tablespace: bool = False

    def __post_init__(self) -> None:
        numbers = (self.ensemble, self.write_quorum, self.ack_quorum, self.ttl_ms)
        if any(number is not None and number < 1 for number in numbers):
            raise SettingsInvalid("quorums and times are at least 1")
        _check_quorums(self.ensemble, self.write_quorum, self.ack_quorum)
        if self.ledger_bytes_max < limits.MIB:
            raise SettingsInvalid("ledgers of a bucket hold at least a mebibyte")
        if self.own_tablespace and self.tablespace is not None:
            raise SettingsInvalid("a tablespace of its own has no other name: leave out the name")
        if self.compression not in ("", "zstd"):
            raise SettingsInvalid(f"compression is '' or 'zstd', not {self.compression!r}")


def _check_quorums(ensemble: int | None, write: int | None, ack: int | None) -> None:
    """Raise `SettingsInvalid` unless the ensemble holds the write quorum, and that the other."""
    given = [number for number in (ensemble, write, ack) if number is not None]
    if given != sorted(given, reverse=True):
        raise SettingsInvalid(
            f"ensemble {ensemble}, write quorum {write}, ack quorum {ack}: each holds the next one"
        )
    if ensemble is not None and ensemble > limits.ENSEMBLE_SIZE_MAX:
        raise SettingsInvalid(f"an ensemble has at most {limits.ENSEMBLE_SIZE_MAX} bookies")


def settings_with(
    settings: BucketSettings | None, tablespace: str | None, *, own_tablespace: bool
) -> BucketSettings:
    """Settings, in a tablespace that was named, or in one of the bucket's own.

    Raises `SettingsInvalid`.
    """
    given = settings if settings is not None else BucketSettings()
    if tablespace is not None:
        given = msgspec.structs.replace(given, tablespace=tablespace)
    return msgspec.structs.replace(given, own_tablespace=True) if own_tablespace else given

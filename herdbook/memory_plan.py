"""What a node may hold in memory, divided over the queues and caches of its roles.

    fixed      what nobody can set: processes, RocksDB's tables in memory and caches
    the rest   each bound gets its least, then all come up to their usual sizes alike; what is left
               goes to queries and to columns kept for them

Invariants:
- Fixed parts and bounds together are at most what was given: less than the least is an error.
- With as much as all of it usually takes, every bound is as it is without a plan.
- It is a plan of bounds: what answers take in Python, and buffers of gRPC, are not in it.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Final

from engine.bookie.settings import BookieSettings
from engine.errors import InvalidRequest
from engine.limits import ENTRY_BYTES_MAX, MIB
from engine.replica.settings import ReplicaSettings
from herd.settings import HerdSettings
from herd.sql.query_settings import CONNECTIONS, HOLDING
from herd.sql.query_settings import PROCESS_BYTES as QUERY_PROCESS_BYTES
from herd.sql.query_settings import SMALL_BYTES as SMALL_QUERIES_BYTES

PROCESS_BYTES: Final = 64 * MIB
"""What a process holds at rest."""
INDEX_BYTES: Final = 64 * MIB
"""Of a bookie's index: three tables in memory and a cache, 16 MiB each."""
STATE_BYTES: Final = 160 * MIB
"""Of a replica's state: four tables in memory of 32 MiB and a cache."""
QUERIES: Final = CONNECTIONS + HOLDING
"""How many queries run at once, each in its own process."""
STREAMS_BYTES: Final = 64 * MIB
"""Of the HTTP interface: objects on their way."""
_BOOKIE: Final = BookieSettings()
_REPLICA: Final = ReplicaSettings()
_HERD: Final = HerdSettings()
_TRANSACTION_SHARE: Final = 0.75
"""Of what a replica may have under way one transaction takes so much at most."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes in bytes: the first two of one bookie, `query_bytes` of one query's process, the others
    of one tablespace."""

    journal_queue_bytes: int
    recent_runs_bytes: int
    pending_bytes: int
    unwritten_bytes: int
    query_bytes: int
    columns_bytes: int

    @property
    def transaction_bytes(self) -> int:
        """What one transaction may change."""
        share = int(self.pending_bytes * _TRANSACTION_SHARE)
        return min(_HERD.transaction_bytes_max, share)


LEAST: Final = Bounds(24 * MIB, 8 * MIB, 24 * MIB, 16 * MIB, 24 * MIB, 32 * MIB)
USUAL: Final = Bounds(
    _BOOKIE.journal_queue_bytes_max,
    _BOOKIE.recent_runs_bytes_max,
    _REPLICA.pending_bytes_max,
    _REPLICA.unwritten_bytes_max,
    _HERD.query_bytes,
    _HERD.columns_bytes,
)
_OF_A_BOOKIE: Final = ("journal_queue_bytes", "recent_runs_bytes")
_GROWING: Final = ("query_bytes", "columns_bytes")
assert _BOOKIE.journal_batch_bytes_max + ENTRY_BYTES_MAX < LEAST.journal_queue_bytes
assert all(getattr(LEAST, one.name) <= getattr(USUAL, one.name) for one in fields(Bounds))


@dataclass(frozen=True, slots=True)
class Holding:
    """What a node runs: how many bookies, tablespaces at a time, and which other roles."""

    bookies: int = 0
    tablespaces: int = 0
    roles: tuple[str, ...] = ()

    @property
    def fixed_bytes(self) -> int:
        """What nobody can set."""
        replicas = self.tablespaces + ("broker" in self.roles)
        streams = STREAMS_BYTES * ("http" in self.roles)
        processes = PROCESS_BYTES * len(self.roles)
        waiting = (USUAL.pending_bytes + USUAL.unwritten_bytes) * ("broker" in self.roles)
        if self.tablespaces:
            processes += PROCESS_BYTES + QUERY_PROCESS_BYTES * QUERIES + SMALL_QUERIES_BYTES
        return processes + INDEX_BYTES * self.bookies + STATE_BYTES * replicas + streams + waiting

    def total(self, bounds: Bounds, names: Collection[str] = ()) -> int:
        """What all bounds, or those of some names, take together."""
        return sum(
            getattr(bounds, one.name) * self._times(one.name)
            for one in fields(Bounds)
            if not names or one.name in names
        )

    def _times(self, name: str) -> int:
        if name == "query_bytes":
            return QUERIES if self.tablespaces else 0
        return self.bookies if name in _OF_A_BOOKIE else self.tablespaces

    @property
    def least_bytes(self) -> int:
        """With less than this there is no plan."""
        return self.fixed_bytes + self.total(LEAST)


def plan(bytes_max: int, holding: Holding) -> Bounds:
    """The limits with which a node holds at most this many bytes. Raises `InvalidRequest`.

    >>> plan(2048 * MIB, Holding(1, 2, ("bookie", "herd"))).query_bytes // MIB
    143
    """
    spare = bytes_max - holding.least_bytes
    if spare < 0:
        raise InvalidRequest(
            f"{bytes_max // MIB} MiB do not do for {holding.bookies} bookies, "
            f"{holding.tablespaces} tablespaces and {len(holding.roles)} roles: they hold at least "
            f"{-(-holding.least_bytes // MIB)} MiB"
        )
    up_to_usual = holding.total(USUAL) - holding.total(LEAST)
    share = min(1.0, spare / up_to_usual) if up_to_usual else 1.0
    found = {}
    for one in fields(Bounds):
        least, usual = getattr(LEAST, one.name), getattr(USUAL, one.name)
        found[one.name] = least + int((usual - least) * share)
    if spare > up_to_usual and holding.tablespaces:
        more = (spare - up_to_usual) // (QUERIES + holding.tablespaces)
        for name in _GROWING:
            found[name] += more
    bounds = Bounds(**found)
    assert holding.fixed_bytes + holding.total(bounds) <= bytes_max
    return bounds

"""How a client reaches a bookie: the contract of every transport.

Invariants (`tests/engine/transport/bookie_contract.py` runs them over every implementation):
- Requests of one connection about one ledger reach the bookie in the order they were made.
- Every reply, a negative one too, is sent only when what it claims is durable on the bookie.
- A reply names its bookie and boot count; a connection never passes on another bookie's reply.
- An entry is absent only if a reply's `missing` names its id, or says NO_SUCH_LEDGER.
- No reply within the transport's own failure (broken connection, stopped bookie) becomes status
  UNAVAILABLE: it says nothing about entries, fences or anything else.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from engine.run import NO_ENTRY, Run


class Status(enum.IntEnum):
    """What a bookie says. Numbers are part of the wire format and never change meaning."""

    OK = 0
    NO_SUCH_LEDGER = 1
    """This bookie has never stored anything of the ledger, and knows that for certain."""
    FENCED = 2
    UNAUTHORIZED = 3
    READ_ONLY = 4
    """The disk is full. Fences, recovery writes and, from its reserve, the entries of logs,
    snapshots and checkpoints are still accepted."""
    CONFLICT = 5
    """An entry with this id and other bytes is stored here."""
    OVERLOADED = 6
    UNAVAILABLE = 7
    """No answer, or a stopped bookie: nothing is known."""
    UNKNOWN = 8
    """Damage: the bookie cannot tell whether it holds it."""
    DELETED = 9
    """The ledger was deleted and collected here; nothing of it may be written again."""
    INVALID = 10


PURPOSE: Final = "purpose"
"""The key of a ledger's custom metadata that says what it is for."""
_FROM_RESERVE: Final = frozenset({b"log", b"snapshot", b"checkpoint", b"compaction"})


def uses_reserve(custom: Mapping[str, bytes]) -> bool:
    """Whether a ledger with this custom metadata is written while only the reserves are left.

    Without entries of logs nothing could be deleted. Without snapshots and checkpoints no log would
    get shorter. Without copies of live objects no ledger of mostly deleted objects could be
    deleted.
    """
    return custom.get(PURPOSE) in _FROM_RESERVE


class LedgerFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a bookie stores about a ledger so that lost metadata can be rebuilt.

    `fragment_first` and `ensemble` describe the newest fragment the writer knew of.
    `closed_last` is NO_ENTRY - 1 while the ledger is not known to be closed.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    stripe_entries: int
    key_hash: bytes
    created_ms: int
    custom: dict[str, bytes]
    fragment_first: int
    ensemble: tuple[str, ...]
    closed_last: int = NO_ENTRY - 1
    closed_length: int = 0


class AppendReply(msgspec.Struct, frozen=True, gc=False):
    """One reply to one append request: the whole of ids `first` to `last`, or an error."""

    status: Status
    ledger_id: int
    first: int
    last: int
    bookie_id: str
    boot: int


class ReadRequest(msgspec.Struct, frozen=True):
    """Entries `first` to `last` of a ledger, at most about `max_bytes` (at least one entry).

    `fence_key` fences the ledger first, with the ledger's key; the look-up then happens after the
    fence, and everything that was queued before it, are durable.
    """

    ledger_id: int
    first: int
    last: int
    max_bytes: int
    fence_key: bytes | None = None


class ReadReply(msgspec.Struct, frozen=True):
    """Runs from `first` on without a gap, then why it stops.

    `missing` is a range of ids that follows the runs and is positively not held; `unknown` one that
    cannot be told for damage; neither: the limit was reached, ask on from the next id.
    Runs may start before `first` or end after `last` only by nothing: they are cut to the request.
    """

    status: Status
    runs: tuple[Run, ...]
    missing: tuple[int, int] | None
    unknown: tuple[int, int] | None
    lac: int
    bookie_id: str
    boot: int


class LacReply(msgspec.Struct, frozen=True):
    """The highest LAC the bookie has heard of, NO_ENTRY if none. Also the reply to a fence."""

    status: Status
    lac: int
    bookie_id: str
    boot: int


class BookieInfo(msgspec.Struct, frozen=True):
    """What a bookie says of itself. What it has taken counts from its start."""

    bookie_id: str
    boot: int
    cluster_id: str
    writable: bool
    total_bytes: int
    free_bytes: int
    taken_entries: int = 0
    taken_bytes: int = 0


class Bookie(Protocol):
    """One bookie as a client sees it. All methods are called on the event loop."""

    @property
    def bookie_id(self) -> str:
        """The random id of the bookie's folder."""
        ...

    def append(
        self,
        runs: Sequence[Run],
        reply: Callable[[AppendReply], None],
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        """Store runs of one ledger, consecutive and in order; `reply` is called once, later.

        `facts` must come with the first request for a ledger; they are stored ahead of the runs.
        `recovery=True` is accepted by a fenced ledger and, while space remains, by a full disk; and
        then, as for fences and facts, the key may be the ledger's `repair_key`. A full disk also
        accepts entries of ledgers for which `uses_reserve` holds, while space remains.
        """
        ...

    def confirm(self, ledger_id: int, lac: int) -> None:
        """Tell the bookie the writer's LAC. Not stored, no reply, may be lost."""
        ...

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        """Store new facts (a new fragment, a close). No reply, may be lost."""
        ...

    async def read(self, request: ReadRequest) -> ReadReply:
        """Read entries; see `ReadRequest` and `ReadReply`. Does not raise for a bookie's state."""
        ...

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        """Refuse normal appends for ever from now on; answers when that is durable.

        A ledger never seen becomes known here, as fenced, with this key.
        """
        ...

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        """Answer when the LAC is over `above`, the ledger is fenced or closed, or time is up.

        `timeout_ms=0` answers at once.
        """
        ...

    async def info(self) -> BookieInfo:
        """Identity and space. Raises `BookieUnavailable`."""
        ...


class Transport(Protocol):
    """Finds bookies by id."""

    async def connect(self, bookie_id: str) -> Bookie:
        """A connection to a registered bookie; shared, cheap to ask for again.

        Raises `BookieUnavailable`.
        """
        ...

    async def close(self) -> None:
        """Close every connection; pending replies become UNAVAILABLE."""
        ...

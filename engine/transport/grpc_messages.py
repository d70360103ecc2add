"""Between the contract of transports and the messages of `proto/bookie.proto`.

Invariants:
- A decoder gives what the contract allows, or raises `FrameInvalid`.
- Nothing is made per entry: a run costs a row of packed bytes.
- A status of a newer minor version says nothing to this one: unavailable.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from engine.errors import FrameInvalid
from engine.limits import ENTRY_ID_MAX
from engine.run import NO_ENTRY, Run
from engine.transport.contract import (
    BookieInfo,
    LacReply,
    LedgerFacts,
    ReadReply,
    ReadRequest,
    Status,
)
from engine.transport.messages import check_consecutive, pack_runs, unpack_runs
from engine.transport.soundness import check_facts, check_key, check_ledger_id

if TYPE_CHECKING:
    from engine.transport.grpc_generated import bookie_pb2 as wire

_NOT_CLOSED = NO_ENTRY - 1


def facts_to_wire(facts: LedgerFacts, into: "wire.LedgerFacts") -> None:
    """Fill a message with facts."""
    into.ledger_id = facts.ledger_id
    into.ensemble_size = facts.ensemble_size
    into.write_quorum = facts.write_quorum
    into.ack_quorum = facts.ack_quorum
    into.stripe_entries = facts.stripe_entries
    into.key_hash = facts.key_hash
    into.created_ms = facts.created_ms
    into.custom.update(facts.custom)
    into.fragment_first = facts.fragment_first
    into.ensemble.extend(facts.ensemble)
    if facts.closed_last != _NOT_CLOSED:
        into.closed_last = facts.closed_last
        into.closed_length = facts.closed_length


def facts_of_wire(said: "wire.LedgerFacts", ledger_id: int) -> LedgerFacts:
    """The facts of a message about a ledger. Raises `FrameInvalid`."""
    closed = said.HasField("closed_last")
    if closed and said.closed_last < NO_ENTRY:
        raise FrameInvalid(f"ledger {said.ledger_id} cannot be closed at {said.closed_last}")
    facts = LedgerFacts(
        said.ledger_id,
        said.ensemble_size,
        said.write_quorum,
        said.ack_quorum,
        said.stripe_entries,
        said.key_hash,
        said.created_ms,
        # A map has no order of its own.
        {name: said.custom[name] for name in sorted(said.custom)},
        said.fragment_first,
        tuple(said.ensemble),
        said.closed_last if closed else _NOT_CLOSED,
        said.closed_length if closed else 0,
    )
    check_facts(facts, ledger_id)
    return facts


def append_to_wire(
    into: "wire.Append",
    runs: Sequence[Run],
    key: bytes,
    facts: LedgerFacts | None,
    recovery: bool,
) -> None:
    """Fill a message with an append."""
    into.ledger_id = runs[0].ledger_id
    into.key = key
    if facts is not None:
        facts_to_wire(facts, into.facts)
    into.recovery = recovery
    into.run_count = len(runs)
    into.runs = pack_runs(runs)


def runs_of_append(said: "wire.Append", packed: bytes) -> list[Run]:
    """The runs of an append whose field `runs` is `packed`. Raises `FrameInvalid`."""
    if not said.run_count:
        raise FrameInvalid("an append without runs")
    check_ledger_id(said.ledger_id)
    check_key(said.key)
    runs = unpack_runs(said.ledger_id, said.run_count, packed)
    check_consecutive(runs)
    return runs


def read_request_of_wire(said: "wire.ReadRequest") -> ReadRequest:
    """What is asked for. Raises `FrameInvalid`."""
    check_ledger_id(said.ledger_id)
    if not 0 <= said.first <= said.last <= ENTRY_ID_MAX:
        raise FrameInvalid(f"a read of entries {said.first} to {said.last}")
    key = said.fence_key if said.HasField("fence_key") else None
    check_key(key or b"")
    return ReadRequest(said.ledger_id, said.first, said.last, said.bytes_max, key)


def read_reply_to_wire(into: "wire.ReadReply", ledger_id: int, reply: ReadReply) -> None:
    """Fill a message with a reply to a read."""
    into.status = int(reply.status)  # type: ignore[assignment]
    into.boot = reply.boot
    into.ledger_id = ledger_id
    into.lac = reply.lac
    if reply.runs:
        into.run_count = len(reply.runs)
        into.runs = pack_runs(reply.runs)
    if reply.missing is not None:
        into.missing.first, into.missing.last = reply.missing
    if reply.unknown is not None:
        into.unknown.first, into.unknown.last = reply.unknown


def read_reply_of_wire(said: Iterable["wire.ReadReply"], bookie_id: str) -> ReadReply:
    """The messages of one read as one reply. Raises `FrameInvalid`."""
    runs: list[Run] = []
    last: wire.ReadReply | None = None
    for message in said:
        last = message
        runs += unpack_runs(message.ledger_id, message.run_count, message.runs)
    if last is None:
        raise FrameInvalid("a read ended without a reply")
    return ReadReply(
        status_of_wire(last.status),
        tuple(runs),
        (last.missing.first, last.missing.last) if last.HasField("missing") else None,
        (last.unknown.first, last.unknown.last) if last.HasField("unknown") else None,
        last.lac,
        bookie_id,
        last.boot,
    )


def lac_reply_of_wire(said: "wire.LacReply | wire.OrderReply", bookie_id: str) -> LacReply:
    """The reply to a long poll or to a fence."""
    return LacReply(status_of_wire(said.status), said.lac, bookie_id, said.boot)


def info_of_wire(said: "wire.InfoReply", bookie_id: str) -> BookieInfo:
    """What a bookie says of itself."""
    return BookieInfo(
        bookie_id,
        said.boot,
        said.cluster_id,
        said.writable,
        said.total_bytes,
        said.free_bytes,
        said.taken_entries,
        said.taken_bytes,
    )


def status_of_wire(number: int) -> Status:
    """A status by its number on the wire."""
    try:
        return Status(number)
    except ValueError:
        return Status.UNAVAILABLE

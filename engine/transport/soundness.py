"""What a message may say of a ledger: asked by every wire, and by the bookie once more.

Numbers that no ledger has, and facts that contradict themselves, would show only when they are
looked up, or written, or read again: in a thread that takes any error for a broken disk.

Invariants:
- What passes here can be written, found again, and given back to whoever rebuilds metadata.
"""

from typing import Final

from engine.errors import FrameInvalid
from engine.limits import (
    CUSTOM_METADATA_BYTES_MAX,
    ENSEMBLE_SIZE_MAX,
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
)
from engine.run import NO_ENTRY
from engine.transport.contract import LedgerFacts
from engine.transport.repair_key import KEY_HASH_BYTES

_KEY_BYTES_MAX: Final = 255
_STRIPE_ENTRIES_MAX: Final = 2**32 - 1
_NAME_BYTES_MAX: Final = 255
_NOT_CLOSED: Final = NO_ENTRY - 1


def is_ledger_id(number: int) -> bool:
    """Whether a ledger can have this id."""
    return 0 <= number <= LEDGER_ID_MAX


def are_sound(facts: LedgerFacts) -> bool:
    """Whether a ledger can be as its facts say."""
    names = facts.ensemble
    return (
        is_ledger_id(facts.ledger_id)
        and 1 <= facts.ack_quorum <= facts.write_quorum <= facts.ensemble_size <= ENSEMBLE_SIZE_MAX
        and 1 <= facts.stripe_entries <= _STRIPE_ENTRIES_MAX
        and len(facts.key_hash) == KEY_HASH_BYTES
        and 0 <= facts.created_ms <= ENTRY_ID_MAX
        and 0 <= facts.fragment_first <= ENTRY_ID_MAX
        and _NOT_CLOSED <= facts.closed_last <= ENTRY_ID_MAX
        and 0 <= facts.closed_length <= ENTRY_ID_MAX
        and len(set(names)) == len(names) == facts.ensemble_size
        and all(1 <= len(name.encode()) <= _NAME_BYTES_MAX for name in names)
        and _custom_bytes(facts) <= CUSTOM_METADATA_BYTES_MAX
    )


def check_ledger_id(number: int) -> None:
    """Raises `FrameInvalid` for what is no ledger's id."""
    if not is_ledger_id(number):
        raise FrameInvalid(f"no ledger has the id {number}")


def check_facts(facts: LedgerFacts, ledger_id: int) -> None:
    """Raises `FrameInvalid` for facts that are not sound, or not of this ledger."""
    if facts.ledger_id != ledger_id:
        raise FrameInvalid(f"the facts of ledger {facts.ledger_id} came for ledger {ledger_id}")
    if not are_sound(facts):
        raise FrameInvalid(f"the facts of ledger {ledger_id} are malformed")


def check_key(key: bytes) -> None:
    """Raises `FrameInvalid` for what is too long for a key."""
    if len(key) > _KEY_BYTES_MAX:
        raise FrameInvalid(f"a key of {len(key)} bytes; at most {_KEY_BYTES_MAX}")


def _custom_bytes(facts: LedgerFacts) -> int:
    return sum(len(name.encode()) + len(value) for name, value in facts.custom.items())

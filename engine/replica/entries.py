"""What a replica writes into the log: one entry a command, and a few words of its own.

    01 level body                                       a command
    02 level session(16) sequence(8) floor(8) body      a command of a session, done once
    03 nonce(8)                                         open a session, named by this entry
    04 bytes                                            a part of a command over the limit
    05 bytes                                            its last part: together they are 01 or 02
    06 format epoch(8) wall_ms(8) address               a leader begins its term
    07 entries(8) hash(4)                               the state's hash after so many entries
    08 level                                            commands up to this level may follow

Numbers are big-endian.

Invariants:
- The parts of a command follow each other without anything between, or end with a leader's term.
- The first entry of a term is its leader's 06; nothing of an older term comes after it.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from engine import limits
from engine.errors import (
    CannotRead,
    EntryTooLarge,
    FormatTooNew,
    InvalidRequest,
    LevelTooNew,
)
from engine.log.position import Position

FORMAT_MAJOR: Final = 1
COMMAND: Final = 1
REQUEST: Final = 2
SESSION: Final = 3
PART: Final = 4
LAST_PART: Final = 5
TERM: Final = 6
HASH: Final = 7
LEVEL: Final = 8
LEVEL_MAX: Final = 255
SEQUENCE_MAX: Final = 2**63
COMMAND_BYTES_MAX: Final = 64 * limits.MIB
"""A command may be this long, in parts."""

_REQUEST: Final = struct.Struct(">BBQQQQ")
_SESSION: Final = struct.Struct(">BQ")
_TERM: Final = struct.Struct(">BBQQ")
_HASH: Final = struct.Struct(">BQI")
_PART_BYTES: Final = limits.ENTRY_BYTES_MAX - 1


class Request(NamedTuple):
    """Names a command, so that a retry is answered and not done again.

    `session` comes from `Replica.open_session`. `sequence` is chosen by the caller, another one for
    each command, growing. The results of all below `floor` have arrived and can be forgotten. Of a
    session 1,024 results are remembered: who never raises `floor` gets a `SessionFull` then. Of
    results that have more than 1 MiB together the later ones are not remembered: the command is
    done and answered, and sent again it is `RequestForgotten`.
    """

    session: Position
    sequence: int
    floor: int = 0


class Term(NamedTuple):
    """The beginning of a leader's term."""

    epoch: int
    wall_ms: int
    address: str


class StateHash(NamedTuple):
    """The hash of the state after so many entries of the log."""

    entries: int
    value: int


def encode_command(command: bytes, level: int, request: Request | None) -> list[bytes]:
    """The entries of a command, usually one. Raises `EntryTooLarge`, `InvalidRequest`."""
    if not 1 <= level <= LEVEL_MAX:
        raise InvalidRequest(f"a level is 1 to {LEVEL_MAX}, not {level}")
    if request is not None:
        _check_request(request)
    if request is None:
        whole = bytes((COMMAND, level)) + command
    else:
        session = request.session
        whole = (
            _REQUEST.pack(
                REQUEST, level, session.ledger, session.entry, request.sequence, request.floor
            )
            + command
        )
    if len(whole) <= limits.ENTRY_BYTES_MAX:
        return [whole]
    if len(command) > COMMAND_BYTES_MAX:
        raise EntryTooLarge(f"a command of {len(command)} bytes; {COMMAND_BYTES_MAX} fit")
    parts = [whole[at : at + _PART_BYTES] for at in range(0, len(whole), _PART_BYTES)]
    kinds = [b"\x04"] * (len(parts) - 1) + [b"\x05"]
    return [kind + part for kind, part in zip(kinds, parts, strict=True)]


def _check_request(request: Request) -> None:
    session = getattr(request, "session", None)
    if not isinstance(session, Position):
        raise InvalidRequest(f"a request names a session that was opened, {request!r:.100} none")
    if not 0 <= min(session) <= max(session) < SEQUENCE_MAX:
        raise InvalidRequest(f"there is no session {tuple(session)}")
    if not 0 <= request.floor <= request.sequence < SEQUENCE_MAX:
        raise InvalidRequest(f"0 <= floor <= sequence < 2**63 does not hold for {request}")


def decode_request(entry: bytes) -> tuple[Request, bytes]:
    """The request and the command of a 02 entry."""
    _, _, ledger, number, sequence, floor = _unpack(_REQUEST, entry)
    return Request(Position(ledger, number), sequence, floor), entry[_REQUEST.size :]


def joined(parts: Sequence[bytes]) -> bytes:
    """The entry that was cut into these parts."""
    whole = b"".join([part[1:] for part in parts])
    if not whole or whole[0] not in (COMMAND, REQUEST):
        raise CannotRead(f"the log is damaged: {len(parts)} parts that make no command")
    return whole


def encode_session(nonce: int) -> bytes:
    """An entry that opens a session."""
    return _SESSION.pack(SESSION, nonce)


def encode_term(term: Term) -> bytes:
    """The entry that begins a term."""
    return _TERM.pack(TERM, FORMAT_MAJOR, term.epoch, term.wall_ms) + term.address.encode()


def decode_term(entry: bytes) -> Term:
    """The term that an entry begins. Raises `LevelTooNew`."""
    if len(entry) > 1 and entry[1] > FORMAT_MAJOR:
        raise LevelTooNew(str(FormatTooNew.of("the log", entry[1], FORMAT_MAJOR)))
    _, _, epoch, wall_ms = _unpack(_TERM, entry)
    return Term(epoch, wall_ms, entry[_TERM.size :].decode(errors="replace"))


def encode_hash(found: StateHash) -> bytes:
    """An entry that tells a hash."""
    return _HASH.pack(HASH, *found)


def decode_hash(entry: bytes) -> StateHash:
    """The hash that an entry tells."""
    _, entries, value = _unpack(_HASH, entry)
    return StateHash(entries, value)


def encode_level(level: int) -> bytes:
    """An entry that allows commands up to a level."""
    assert 1 <= level <= LEVEL_MAX
    return bytes((LEVEL, level))


def _unpack(form: struct.Struct, entry: bytes) -> tuple[int, ...]:
    if len(entry) < form.size:
        raise CannotRead(f"the log is damaged: an entry of kind {entry[0]} is cut short")
    return form.unpack_from(entry)

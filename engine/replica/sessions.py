"""Sessions: a command that is sent again is answered, not done again.

A session is named by the log position that opened it. For each it remembers the results of requests
whose answers may not have arrived. It is part of the state, so every replica and every snapshot
knows it. After RIFL (Lee et al., SOSP 2015) and section 6.3 of Ongaro's dissertation on Raft.

    00 's' session(16)                 used(8), floor(8), results(4), their bytes(8)
    00 'r' session(16) sequence(8)     01 and a result, or 00: done, the result was not kept
    00 'u' used(8) session(16)         nothing: sessions in the order of their last use
    00 'n'                             how many there are

Invariants:
- A request of a session has an effect at most once.
- At most `SESSIONS_MAX` sessions are kept, and of each `RESULTS_MAX` results with together
  `RESULTS_BYTES_MAX` bytes. Who comes back to what was forgotten is told so, not answered wrongly.
- However many and large the results are, no row of the state is over its limit.
- Which session goes is decided by entries of the log alone.
"""

import struct
from collections.abc import Callable
from typing import Final

from engine.limits import MIB
from engine.log.position import Position
from engine.replica.contract import Rows
from engine.replica.entries import Request

SESSIONS_MAX: Final = 10_000
RESULTS_MAX: Final = 1_024
RESULTS_BYTES_MAX: Final = MIB
_USED_COARSELY: Final = 1_024
_LOOKED_UP_MAX: Final = 64
_ID: Final = struct.Struct(">QQ")
_SESSION: Final = struct.Struct(">QQIQ")
_COUNT_KEY: Final = b"\x00n"
_KEPT, _DROPPED = b"\x01", b"\x00"


class Forgotten:
    """In place of a result: it is not known any more whether the request was carried out."""


FORGOTTEN: Final = Forgotten()
FULL: Final = Forgotten()
"""In place of a result, too: the request was not carried out, for its session remembers too many.

Both count alike in the hash of a state, which an older program may have told."""
Outcome = bytes | Forgotten


class _Session:
    """A session's row."""

    __slots__ = ("floor", "results", "size_bytes", "used")

    def __init__(self, row: bytes) -> None:
        self.used, self.floor, self.results, self.size_bytes = _SESSION.unpack(row)

    def packed(self) -> bytes:
        return _SESSION.pack(self.used, self.floor, self.results, self.size_bytes)


def open_session(rows: Rows, position: Position, now: int) -> bytes:
    """Open the session of this position; `now` counts entries of the log. Returns its name."""
    count = int.from_bytes(rows.get(_COUNT_KEY) or b"") + 1
    if count > SESSIONS_MAX:
        _forget_oldest(rows)
        count -= 1
    name = _ID.pack(*position)
    rows.put(_COUNT_KEY, count.to_bytes(4))
    rows.put(b"\x00s" + name, _SESSION.pack(now, 0, 0, 0))
    rows.put(_used_key(now, name), b"")
    return name


def once(rows: Rows, request: Request, now: int, act: Callable[[], bytes]) -> Outcome:
    """The result of a request: remembered, or made now by `act`."""
    name = _ID.pack(*request.session)
    row = rows.get(b"\x00s" + name)
    if row is None:
        return FORGOTTEN
    result_key = _result_key(name, request.sequence)
    known = rows.get(result_key)
    if known is not None:
        return known[1:] if known.startswith(_KEPT) else FORGOTTEN
    session = _Session(row)
    if request.floor > session.floor:
        _raise_floor(rows, name, session, request.floor)
    if request.sequence < session.floor or session.results >= RESULTS_MAX:
        rows.put(b"\x00s" + name, session.packed())
        return FORGOTTEN if request.sequence < session.floor else FULL
    result = act()
    kept = session.size_bytes + len(result) <= RESULTS_BYTES_MAX
    rows.put(result_key, _KEPT + result if kept else _DROPPED)
    session.results += 1
    session.size_bytes += len(result) if kept else 0
    if now - session.used >= _USED_COARSELY:
        rows.delete(_used_key(session.used, name))
        rows.put(_used_key(now, name), b"")
        session.used = now
    rows.put(b"\x00s" + name, session.packed())
    return result


def _raise_floor(rows: Rows, name: bytes, session: _Session, floor: int) -> None:
    """Drop the results of all requests below the new floor."""
    found: list[tuple[bytes, bytes]] = []
    if floor - session.floor <= _LOOKED_UP_MAX:
        for sequence in range(session.floor, floor):
            key = _result_key(name, sequence)
            value = rows.get(key)
            if value is not None:
                found.append((key, value))
    else:
        first, end = _result_key(name, session.floor), _result_key(name, floor)
        found = rows.scan(first, end, RESULTS_MAX)
    for key, value in found:
        rows.delete(key)
        session.results -= 1
        session.size_bytes -= len(value) - 1
    session.floor = floor


def _forget_oldest(rows: Rows) -> None:
    """Drop the session that was used longest ago."""
    used = rows.scan(b"\x00u", b"\x00v", 1)[0][0]
    name = used[10:]
    first = b"\x00r" + name
    for key, _ in rows.scan(first, first + b"\xff" * 9, RESULTS_MAX):
        rows.delete(key)
    rows.delete(used)
    rows.delete(b"\x00s" + name)


def session_of(name: bytes) -> Position:
    """The session that `open_session` named."""
    return Position(*_ID.unpack(name))


def _used_key(used: int, name: bytes) -> bytes:
    return b"\x00u" + used.to_bytes(8) + name


def _result_key(name: bytes, sequence: int) -> bytes:
    return b"\x00r" + name + sequence.to_bytes(8)

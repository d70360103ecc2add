"""Sessions: a command that is sent again is answered, not done again.

A session is named by the log position that opened it. For each it remembers the results of requests
whose answers may not have arrived. It is part of the state, so every replica and every snapshot
knows it. After RIFL (Lee et al., SOSP 2015) and section 6.3 of Ongaro's dissertation on Raft.

    00 's' session(16)                 used(8), floor(8), results by sequence as msgpack
    00 'u' used(8) session(16)         nothing: sessions in the order of their last use
    00 'n'                             how many there are

Invariants:
- A request of a session has an effect at most once.
- At most `SESSIONS_MAX` sessions and `RESULTS_MAX` results of each are kept; who comes back to what
  was forgotten is told so, never answered wrongly.
- Which session goes is decided by entries of the log alone.
"""

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from engine.log.position import Position
from engine.replica.contract import Rows
from engine.replica.entries import Request

SESSIONS_MAX: Final = 10_000
RESULTS_MAX: Final = 1_024
_USED_COARSELY: Final = 1_024
_ID: Final = struct.Struct(">QQ")
_COUNT_KEY: Final = b"\x00n"


class Forgotten:
    """In place of a result: it is not known any more whether the request was carried out."""


FORGOTTEN: Final = Forgotten()
Outcome = bytes | Forgotten


class _Session(msgspec.Struct, array_like=True):
    used: int
    floor: int
    results: dict[int, bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Session).decode


def open_session(rows: Rows, position: Position, now: int) -> bytes:
    """Open the session of this position; `now` counts entries of the log. Returns its name."""
    found = rows.get(_COUNT_KEY)
    count = int.from_bytes(found or b"") + 1
    if count > SESSIONS_MAX:
        oldest = rows.scan(b"\x00u", b"\x00v", 1)[0][0]
        rows.delete(oldest)
        rows.delete(b"\x00s" + oldest[10:])
        count -= 1
    name = _ID.pack(*position)
    rows.put(_COUNT_KEY, count.to_bytes(4))
    rows.put(b"\x00s" + name, _encode(_Session(now, 0, {})))
    rows.put(_used_key(now, name), b"")
    return name


def once(rows: Rows, request: Request, now: int, act: Callable[[], bytes]) -> Outcome:
    """The result of a request: remembered, or made now by `act`."""
    name = _ID.pack(*request.session)
    found = rows.get(b"\x00s" + name)
    if found is None:
        return FORGOTTEN
    session = _decode(found)
    known = session.results.get(request.sequence)
    if known is not None:
        return known
    if request.floor > session.floor:
        session.floor = request.floor
        session.results = {n: kept for n, kept in session.results.items() if n >= request.floor}
    if request.sequence < session.floor or len(session.results) >= RESULTS_MAX:
        return FORGOTTEN
    result = act()
    session.results[request.sequence] = result
    if now - session.used >= _USED_COARSELY:
        rows.delete(_used_key(session.used, name))
        rows.put(_used_key(now, name), b"")
        session.used = now
    rows.put(b"\x00s" + name, _encode(session))
    return result


def session_of(name: bytes) -> Position:
    """The session that `open_session` named."""
    return Position(*_ID.unpack(name))


def _used_key(used: int, name: bytes) -> bytes:
    return b"\x00u" + used.to_bytes(8) + name

"""Applies the log to the state, entry by entry.

    00 '#'     entries(8) hash(4) level(1) epoch(8)     kept with every commit, and the last hash
               told_entries(8) told_hash(4)             that a leader tells
    00 'l'     name of the log                          whose state it is

Invariants:
- Entries are applied in order, each once, none left out: a span must follow the one before it.
- The committed position never passes the first part of a command that is not whole.
- A commit holds whole entries only. After a failure nothing is committed any more.
- The hash covers every change and every result since the first entry of the log, so replicas that
  applied the same entries have the same hash, wherever their batches began and ended.
"""

import struct
from collections.abc import Coroutine, Sequence
from typing import Final

import google_crc32c
import msgspec

from engine.errors import (
    CannotRead,
    EngineError,
    FolderMismatch,
    InvalidRequest,
    LevelTooNew,
    ReplicaFailed,
    StateDiverged,
)
from engine.log.position import START, Position, Span
from engine.replica import entries as kinds
from engine.replica.contract import StateMachine
from engine.replica.entries import StateHash, Term
from engine.replica.sessions import Forgotten, Outcome, once, open_session
from engine.state.contract import Row, State
from engine.state.cutting import FIRST_ROW

HASH_EVERY: Final = 10_000
_HASHES_KEPT: Final = 64
_SUMMARY_KEY: Final = b"\x00#"
_LOG_KEY: Final = b"\x00l"
_SUMMARY: Final = struct.Struct(">QIBQQI")
_OUTCOMES: Final = frozenset((bytes, Forgotten))


class Summary(msgspec.Struct):
    """What the replica knows of the entries applied, beside the state machine's own rows."""

    entries: int = 0
    hash: int = 0
    level: int = 1
    epoch: int = 0
    boundary: int = 0
    boundary_hash: int = 0


class Applier:
    """One state machine over one state. All methods are called on the event loop."""

    def __init__(self, machine: StateMachine, state: State, log_name: str) -> None:
        self._machine = machine
        self._state = state
        self._log_name = log_name.encode()
        self.cursor = START
        """The last entry taken in; the state's own position lags while a command's parts come."""
        self.summary = Summary()
        self.term: Term | None = None
        self.failed = False
        self.applied_bytes = 0
        """The bytes of entries applied since the start of this process."""
        self.commands = 0
        """Entries with commands, or parts of them, that were applied since this process began."""
        self.hash_due: StateHash | None = None
        """A hash that the leader should tell, set when enough entries have passed."""
        self._hashes: dict[int, int] = {}
        self._parts: list[bytes] = []
        self._rows = _Recorder(state)
        self._machine_rows = _MachineRows(state, self._rows.effects)
        self.load()

    def load(self) -> None:
        """Begin where the state stands. Raises `FolderMismatch`, `LevelTooNew`."""
        owner = self._state.get(_LOG_KEY)
        if owner is not None and owner != self._log_name:
            raise FolderMismatch(
                f"the state is of log {owner.decode()!r}, not {self._log_name.decode()!r}"
            )
        found = self._state.get(_SUMMARY_KEY)
        self.summary = Summary(*_SUMMARY.unpack(found)) if found is not None else Summary()
        self._check_level(self.summary.level, "the state")
        self.cursor = self._state.position
        self._parts = []
        # What was told of before a restart is compared after it: the state is the same.
        self._hashes = {self.summary.boundary: self.summary.boundary_hash}
        self.hash_due = None

    def check_rows(self, rows: Sequence[Row]) -> None:
        """Whether this program knows a snapshot that begins with these. Raises `LevelTooNew`."""
        for key, value in rows:
            if key == _SUMMARY_KEY:
                self._check_level(Summary(*_SUMMARY.unpack(value)).level, "the snapshot")

    def _check_level(self, level: int, where: str) -> None:
        """Rows that newer commands made are not for a program that does not know those."""
        if level > self._machine.level:
            raise LevelTooNew(
                f"{where} has level {level}, this program knows up to {self._machine.level}: "
                "a newer version of Herdbook wrote it, start that one"
            )

    def apply(self, span: Span, bodies: Sequence[bytes]) -> list[Outcome]:
        """Apply consecutive entries and commit; an outcome each.

        Raises `ReplicaFailed` and its kinds, `CannotRead`: then nothing of them is committed.
        """
        assert not self.failed and span.entries == len(bodies)
        self._check_follows(span)
        outcomes: list[Outcome] = []
        add = outcomes.append
        ledger, entry = span.ledger, span.first
        summary, rows, machine_apply = self.summary, self._machine_rows, self._machine.apply
        effects = rows.effects
        level_max = min(summary.level, self._machine.level)
        boundary = _boundary(summary.entries)
        position = START
        try:
            for body in bodies:
                position = Position(ledger, entry)
                entry += 1
                if body[0] == kinds.COMMAND and body[1] <= level_max and not self._parts:
                    summary.entries += 1
                    result = machine_apply(rows, body[2:], position)
                    effects.append(result)
                    add(result)
                else:
                    add(self._apply_other(body, position))
                    level_max = min(summary.level, self._machine.level)
                if summary.entries >= boundary:
                    boundary = self._note_hash()
            _check_types(outcomes, span)
            self.cursor = span.last
            self.applied_bytes += sum(map(len, bodies))
            self.commands += len(bodies)
            self._commit()
        except InvalidRequest as error:
            self.failed = True
            raise ReplicaFailed(f"the state machine failed at {position}: {error}") from error
        except EngineError:
            self.failed = True
            raise
        except Exception as error:
            self.failed = True
            raise ReplicaFailed(f"the state machine failed at {position}: {error!r}") from error
        return outcomes

    def _check_follows(self, span: Span) -> None:
        cursor = self.cursor
        if span.ledger == cursor.ledger:
            follows = span.first == cursor.entry + 1
        else:
            follows = span.ledger > cursor.ledger and span.first == 0
        if not follows:
            self.failed = True
            raise CannotRead(f"the log goes on at {span[:2]} after {cursor}: entries are missing")

    def _commit(self) -> None:
        """Commit what was applied, unless a command waits for more parts: nothing was then."""
        self._mix()
        summary = self.summary
        if self._parts:
            if self._committable is None:
                return
            position, self._committable = self._committable, None
        else:
            position = self.cursor
        if self._state.position == START:
            self._state.put(_LOG_KEY, self._log_name)
        self._state.put(_SUMMARY_KEY, _SUMMARY.pack(*msgspec.structs.astuple(summary)))
        self._state.commit(position)

    _committable: Position | None = None
    """Where the entries before the first part of an open command end, if they are uncommitted."""

    def _apply_other(self, body: bytes, position: Position) -> Outcome:
        kind = body[0] if body else 0
        if kind == kinds.PART:
            if not self._parts:
                self._committable = _before(position, self.cursor)
            self._parts.append(body)
            return b""
        parts, self._parts = self._parts, []
        self._committable = None
        self.summary.entries += len(parts) + 1
        if kind == kinds.LAST_PART:
            return self._apply_command(kinds.joined([*parts, body]), position)
        if parts and kind != kinds.TERM:
            raise CannotRead(f"the log is damaged: a command in parts is interrupted at {position}")
        if kind in (kinds.COMMAND, kinds.REQUEST):
            return self._apply_command(body, position)
        return self._apply_word(kind, body, position)

    def _apply_command(self, body: bytes, position: Position) -> Outcome:
        self._check_level(body[1], f"the command at {position}")
        rows, apply = self._machine_rows, self._machine.apply
        if body[0] == kinds.COMMAND:
            outcome: Outcome = apply(rows, body[2:], position)
        else:
            request, command = kinds.decode_request(body)
            now = self.summary.entries
            outcome = once(
                self._rows,
                request,
                now,
                lambda: _checked(apply(rows, command, position), position),
            )
        rows.effects.append(outcome if isinstance(outcome, bytes) else b"?")
        return outcome

    def _apply_word(self, kind: int, body: bytes, position: Position) -> Outcome:
        """What replicas tell each other through the log."""
        self.commands -= 1
        summary = self.summary
        if kind == kinds.SESSION:
            return open_session(self._rows, position, summary.entries)
        if kind == kinds.TERM:
            self.term = kinds.decode_term(body)
            summary.epoch = self.term.epoch
        elif kind == kinds.HASH:
            self._compare(kinds.decode_hash(body), position)
        elif kind == kinds.LEVEL:
            self._check_level(body[1], f"the log from {position} on")
            summary.level = max(summary.level, body[1])
        else:
            raise LevelTooNew(
                f"the entry at {position} is of kind {kind}, which this program does not know: "
                "a newer version of Herdbook wrote it, start that one"
            )
        return b""

    def _mix(self) -> None:
        effects = self._rows.effects
        if effects:
            self.summary.hash = google_crc32c.extend(self.summary.hash, b"".join(effects))
            effects.clear()

    def _note_hash(self) -> int:
        self._mix()
        summary = self.summary
        self._hashes[summary.entries] = summary.hash
        summary.boundary, summary.boundary_hash = summary.entries, summary.hash
        if len(self._hashes) > _HASHES_KEPT:
            del self._hashes[next(iter(self._hashes))]
        self.hash_due = StateHash(summary.entries, summary.hash)
        return _boundary(summary.entries)

    def _compare(self, told: StateHash, position: Position) -> None:
        own = self._hashes.get(told.entries)
        if own is not None and own != told.value:
            raise StateDiverged(
                f"after {told.entries} entries the state's hash is {own:08x} here and "
                f"{told.value:08x} at the leader (told at {position})"
            )


class _Recorder:
    """The state's rows, and a record of each change for the hash."""

    __slots__ = ("_delete", "_put", "effects", "get", "scan")

    def __init__(self, state: State, effects: list[bytes] | None = None) -> None:
        self.get = state.get
        self.scan = state.scan
        self._put = state.put
        self._delete = state.delete
        self.effects: list[bytes] = [] if effects is None else effects

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        self._put(key, value)
        self.effects += (b"+", key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._delete(key)
        self.effects += (b"-", key)


class _MachineRows(_Recorder):
    """What a state machine gets: everything but the replica's own keys."""

    __slots__ = ()

    def __init__(self, state: State, effects: list[bytes]) -> None:
        super().__init__(state, effects)
        self.get = state.get_row
        self.scan = state.scan_rows

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value. Raises `InvalidRequest`, and has changed nothing then."""
        if key < FIRST_ROW:
            raise _not_the_machines(key)
        if type(value) is not bytes:
            # Kept as it is it might change afterwards, or fail when it is written.
            raise TypeError(f"a value is bytes, not {value!r:.100}")
        self._put(key, value)
        self.effects += (b"+", key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there. Raises `InvalidRequest`."""
        if key < FIRST_ROW:
            raise _not_the_machines(key)
        self._delete(key)
        self.effects += (b"-", key)


def _not_the_machines(key: bytes) -> InvalidRequest:
    if not key:
        return InvalidRequest("a key has at least one byte")
    return InvalidRequest(f"the key {key!r:.60} begins with a zero byte: those are the replica's")


def _check_types(outcomes: list[Outcome], span: Span) -> None:
    """Whether all are what they should be, at one look for a whole batch."""
    if not _OUTCOMES.issuperset(map(type, outcomes)):
        for number, outcome in enumerate(outcomes):
            if type(outcome) is not Forgotten:
                _checked(outcome, Position(span.ledger, span.first + number))


def _checked(result: object, position: Position) -> bytes:
    """What is no bytes can be neither hashed nor sent, and a buffer might change afterwards."""
    if type(result) is bytes:
        return result
    if isinstance(result, Coroutine):
        result.close()
    raise ReplicaFailed(
        f"the state machine answered with {result!r:.100} at {position}: results are bytes"
    )


def _boundary(entries: int) -> int:
    """At how many entries the next hash is due."""
    return (entries // HASH_EVERY + 1) * HASH_EVERY


def _before(position: Position, cursor: Position) -> Position:
    """The position before this one; before the first entry of a ledger it is the one applied."""
    if position.entry > 0:
        return Position(position.ledger, position.entry - 1)
    return cursor

"""Applies a tablespace's commands to its rows.

Invariants:
- `apply` looks at the command and the rows, at nothing else, and always ends with a result.
- Every row carries the position of the command that changed it last.
- A watcher is told after the fact and changes nothing here.
- What is noted for those who want the rows of one position is no part of the state.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from engine.log.position import Position
from engine.replica.contract import Rows
from herd.commands import Command, Erase, Write, decode_command, erased
from herd.keys import ERASE, catalog_key, index_mark, successor
from herd.keys import prefix as store_prefix
from herd.rows import stamp

DONE: Final = b""
UNKNOWN: Final = b"?"

Watcher = Callable[[Position, Command], None]
Undo = dict[bytes, bytes | None]
"""Rows that were changed after some position, as they were at it."""


class HerdMachine:
    """The state machine of one tablespace replica."""

    level: Final = 1

    def __init__(self) -> None:
        self.watcher: Watcher | None = None
        self._undos: list[Undo] = []

    def note(self) -> Undo:
        """From now on, until `forget`, note here how rows were that are changed."""
        undo: Undo = {}
        self._undos.append(undo)
        return undo

    def forget(self, undo: Undo) -> None:
        """Note no more in this one."""
        self._undos = [other for other in self._undos if other is not undo]

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        """Do a command. Bytes that are none are answered, the same on every replica."""
        try:
            wanted: Command = decode_command(command)
        except msgspec.MsgspecError:
            return UNKNOWN
        result = DONE
        if self._undos:
            rows = _Noting(rows, self._undos)
        if type(wanted) is Write:
            _write(rows, wanted, stamp(position))
        elif type(wanted) is Erase:
            result = _erase(rows, wanted)
        if self.watcher is not None:
            self.watcher(position, wanted)
        return result


class _Noting:
    """Rows that note how each was before its first change."""

    def __init__(self, rows: Rows, undos: list[Undo]) -> None:
        self._rows = rows
        self._undos = undos
        self.get = rows.get
        self.scan = rows.scan

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        self._note(key)
        self._rows.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._note(key)
        self._rows.delete(key)

    def _note(self, key: bytes) -> None:
        for undo in self._undos:
            if key not in undo:
                undo[key] = self._rows.get(key)


def _write(rows: Rows, wanted: Write, stamped: bytes) -> None:
    put, delete = rows.put, rows.delete
    for key, row in wanted.rows:
        if row is None:
            delete(key)
        else:
            put(key, stamped + row)
    for key, value in wanted.plain:
        if value is None:
            delete(key)
        else:
            put(key, value)


def _erase(rows: Rows, wanted: Erase) -> bytes:
    mark = catalog_key(ERASE, wanted.store)
    first = store_prefix(wanted.store)[:5]
    if wanted.index:
        mark, first = (
            index_mark(wanted.store, wanted.index),
            store_prefix(wanted.store, wanted.index),
        )
    # Right behind the last that is gone: its key and a zero byte.
    begin = wanted.above + b"\0" if wanted.above else first
    found = rows.scan(begin, successor(first), wanted.limit)
    for key, _ in found:
        rows.delete(key)
    if len(found) < wanted.limit:
        rows.delete(mark)
    return erased(len(found), found[-1][0] if found else b"")

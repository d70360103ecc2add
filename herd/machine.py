"""Applies a tablespace's commands to its rows.

Invariants:
- `apply` looks at the command and the rows, at nothing else, and always ends with a result.
- Every row carries the position of the command that changed it last.
- A watcher is told after the fact and changes nothing here.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from engine.log.position import Position
from engine.replica.contract import Rows
from herd.commands import Command, Erase, Write, decode_command
from herd.keys import ERASE, catalog_key, index_mark, successor
from herd.keys import prefix as store_prefix
from herd.rows import stamp

DONE: Final = b""
UNKNOWN: Final = b"?"

Watcher = Callable[[Position, Command], None]


class HerdMachine:
    """The state machine of one tablespace replica."""

    level: Final = 1

    def __init__(self) -> None:
        self.watcher: Watcher | None = None

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        """Do a command. Bytes that are none are answered, the same on every replica."""
        try:
            wanted: Command = decode_command(command)
        except msgspec.MsgspecError:
            return UNKNOWN
        result = DONE
        if type(wanted) is Write:
            _write(rows, wanted, stamp(position))
        elif type(wanted) is Erase:
            result = _erase(rows, wanted)
        if self.watcher is not None:
            self.watcher(position, wanted)
        return result


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
    found = rows.scan(first, successor(first), wanted.limit)
    for key, _ in found:
        rows.delete(key)
    if len(found) < wanted.limit:
        rows.delete(mark)
    return b"%d" % len(found)

"""Going through a tablespace's log step by step, with the definitions of each place.

Invariants:
- A step ends where no command is under way: there the log may be cut.
- A step is looked at as often as one likes, and taken once.
- What a step weighs is known without decoding it; only definitions are decoded.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from engine.errors import DeadlineExceeded
from engine.log import Position, ReplicatedLog
from engine.log.log_reader import Batch
from herd.capture.interest import shown
from herd.catalog import decode_table, erasing
from herd.commands import Write
from herd.keys import TABLE, number_of
from herd.reading_log import CommandEntries, decoded
from herd.schema import Table

PATIENCE_S: Final = 60.0
"""How long nothing may come of what is known to be there."""
_DEFINES: Final = b"\xc4\x06" + TABLE
"""What any definition's key looks like in a command; rows may look so, too."""
_WRITE: Final = 1


class Definition(NamedTuple):
    """A table's definition changed: `now` is None where it was dropped.

    `restored`: the rows of its store were written before the store was the table's.
    """

    number: int
    now: Table | None
    restored: bool


class Step(NamedTuple):
    """What the log has up to a position: a transaction, or nothing of interest.

    `rows` are those of all tables; `size_bytes` is as the log has them.
    """

    position: Position
    rows: int = 0
    size_bytes: int = 0
    definitions: tuple[Definition, ...] = ()

    @property
    def tells(self) -> bool:
        """Whether somebody may want to hear of it."""
        return self.rows > 0 or bool(self.definitions)


class Walk:
    """A way through a log, from where the tables were known. Close it."""

    def __init__(self, log: ReplicatedLog, after: Position, tables: Iterable[Table]) -> None:
        self.at = after
        """All steps up to here were taken."""
        self.tables = {table.id: table for table in tables}
        """The definitions there; another mapping after each change."""
        self._tail = log.tail(after)
        self._coming: asyncio.Task[Batch] | None = None
        self._ahead: deque[tuple[Position, bytes]] = deque()
        self._entries = CommandEntries()
        self._seen = after
        self._size_bytes = 0
        self._step: Step | None = None

    async def arrives(self, wait_s: float) -> bool:
        """Whether the log has more, or comes to have it within so many seconds."""
        if self._step is not None or self._ahead:
            return True
        if self._coming is None:
            self._coming = asyncio.create_task(anext(self._tail))
        await asyncio.wait((self._coming,), timeout=wait_s)
        if not self._coming.done():
            return False
        batch, self._coming = self._coming.result(), None
        self._ahead.extend(zip(batch.span.positions(), batch.bodies, strict=True))
        return True

    async def peek(self, until: Position) -> Step | None:
        """The next step; None if none ends up to a position, to which the log is known to reach.

        Raises what tailing a log raises, `CannotRead` for a damaged one, `DeadlineExceeded`.
        """
        while self._step is None:
            seen = self._ahead[0][0] if self._ahead else None
            if seen is None:
                if self._seen >= until:
                    return None
                if not await self.arrives(PATIENCE_S):
                    raise DeadlineExceeded(
                        f"for {PATIENCE_S:.0f} s nothing came of the log after {shown(self._seen)}"
                    )
                continue
            if seen > until:
                return None
            self._step = self._assembled(*self._ahead.popleft())
        return self._step if self._step.position <= until else None

    def take(self) -> None:
        """Go past the step that was looked at."""
        assert self._step is not None
        step, self._step = self._step, None
        self.at = step.position
        for number, now, _ in step.definitions:
            others = {key: table for key, table in self.tables.items() if key != number}
            self.tables = others if now is None else {**others, number: now}

    async def close(self) -> None:
        """Stop following the log."""
        if self._coming is not None:
            self._coming.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._coming
        await self._tail.aclose()

    def _assembled(self, position: Position, body: bytes) -> Step | None:
        self._seen = position
        self._size_bytes += len(body)
        command = self._entries.take(body)
        if not self._entries.between:
            return None
        size_bytes, self._size_bytes = self._size_bytes, 0
        if command is None:
            return Step(position, 0, size_bytes)
        return Step(position, rows_in(command), size_bytes, _definitions(command))


def rows_in(command: bytes) -> int:
    """How many rows a command writes or removes, by the head of its list of rows.

    >>> from herd.commands import Write, encode_command
    >>> rows_in(encode_command(Write([(b"key", b"row"), (b"gone", None)])))
    2
    """
    if len(command) < 3 or command[0] & 0xF0 != 0x90 or command[1] != _WRITE:
        return 0
    head = command[2]
    if head & 0xF0 == 0x90:
        return head & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(head, 0)
    return int.from_bytes(command[3 : 3 + width])


def _definitions(command: bytes) -> tuple[Definition, ...]:
    if _DEFINES not in command:
        return ()
    write = decoded(command)
    if type(write) is not Write:
        return ()
    plain = dict(write.plain)
    found = []
    for key, value in plain.items():
        if key.startswith(TABLE):
            now = None if value is None else decode_table(value)
            # Whoever puts rows into a store of nobody marks it, and takes the mark off at the end.
            restored = now is not None and plain.get(erasing(now.store)[0], b"") is None
            found.append(Definition(number_of(key), now, restored))
    return tuple(found)

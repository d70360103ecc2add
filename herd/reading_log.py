"""A tablespace's log as commands, for those who follow it without being a replica.

Invariants:
- Every command comes once, in the order of the log, with the position at which replicas apply it:
  that of its last part.
- Parts that were never finished, because their leader went away, are no command.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from engine.errors import CannotRead
from engine.log import Position, ReplicatedLog
from engine.log.log_reader import Batch
from engine.replica import entries as kinds
from herd.commands import Command, decode_command

Commands = list[tuple[Position, Command]]

LOGS: Final = "herd/"
"""What the logs of all tablespaces are named under."""


def log_of(tablespace: str) -> str:
    """The name of a tablespace's log."""
    return LOGS + tablespace


class CommandEntries:
    """Puts the entries of a log together to the bytes of commands. Feed it each in its order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._done: set[tuple[Position, int]] = set()

    @property
    def between(self) -> bool:
        """Whether no command is under way: the log may be cut here."""
        return not self._parts

    def take(self, body: bytes) -> bytes | None:
        """The command that ends in an entry, if one does. Raises `CannotRead` for a damaged log."""
        kind = body[0] if body else 0
        if kind == kinds.PART:
            self._parts.append(body)
            return None
        parts, self._parts = self._parts, []
        if kind == kinds.LAST_PART:
            body = kinds.joined([*parts, body])
            kind = body[0]
        elif parts and kind != kinds.TERM:
            raise CannotRead("the log is damaged: a command in parts is interrupted")
        if kind == kinds.COMMAND:
            return body[2:]
        if kind == kinds.REQUEST:
            request, command = kinds.decode_request(body)
            if (request.session, request.sequence) in self._done:
                return None
            self._done.add((request.session, request.sequence))
            return command
        return None


class CommandReader:
    """Reads the commands of a log. Feed it batches in their order."""

    def __init__(self) -> None:
        self._entries = CommandEntries()

    def take(self, batch: Batch) -> Commands:
        """The commands that end in a batch. Raises `CannotRead` for a damaged log."""
        found = []
        for place, body in enumerate(batch.bodies):
            position = Position(batch.span.ledger, batch.span.first + place)
            encoded = self._entries.take(body)
            command = None if encoded is None else decoded(encoded)
            if command is not None:
                found.append((position, command))
        return found


async def read_commands(
    log: ReplicatedLog, after: Position, last: Position | None
) -> AsyncGenerator[tuple[Position, Command], None]:
    """The commands after a position, up to `last`, or for ever as they come.

    Raises while iterating: `PositionTruncated`, `CannotRead`, `Unavailable`.
    """
    async with aclosing(read_batches(log, after, last)) as batches:
        async for batch in batches:
            for position, command in batch:
                yield position, command


async def read_batches(
    log: ReplicatedLog, after: Position, last: Position | None
) -> AsyncGenerator[Commands, None]:
    """The same commands, as many at a time as come together."""
    reader = CommandReader()
    batches: AsyncGenerator[Batch, None]
    batches = log.tail(after) if last is None else log.read(after, last)
    async with aclosing(batches):
        async for batch in batches:
            yield reader.take(batch)


def decoded(command: bytes) -> Command | None:
    """A command, or None for bytes that replicas answer and do not apply."""
    try:
        found: Command = decode_command(command)
    except msgspec.MsgspecError:
        return None
    return found

"""A process of a node. Its supervisor tells it its roles over the socket that is its input.

    {"settings": {...}, "roles": ["bookie"]}      the first line, from the supervisor
    {"end": "bookie"}                             end that role
    {"others": {"herd": "silent"}}                other roles of the node that do not serve now
    {"renew": true}                               read secrets and certificates again
    {}                                            a sign of life, from this process
    {"role": "bookie", "at": "tcp:..."}           it serves, or
    {"role": "bookie", "ended": true}             it ended as requested, from this process
    {"error": "...", "wrong": true}               why this process ends; true: no retry can help

Invariants:
- The process does not outlive its supervisor: the system, or the end of the socket, ends it.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.errors import EngineError
from engine.ports.hangup import hear_early
from engine.ports.renewing import renew_all
from engine.ports.system_loop import new_event_loop
from engine.ports.system_signals import ended_by_signals
from herdbook.node.ending_with import ending_with
from herdbook.node.here import Roles, is_wrong, line_of
from herdbook.node.settings import NodeSettings, Role

LINE_BYTES_MAX: Final = 1024 * 1024


class Told(msgspec.Struct, frozen=True):
    """What the first line says. `parent` is the supervisor's process, `once` a ticket for one login
    over HTTP."""

    settings: NodeSettings
    roles: tuple[Role, ...]
    parent: int
    once: str = ""


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """What each further line says."""

    end: Role | None = None
    others: dict[str, str] | None = None
    renew: bool = False


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a child says; each is a sign of life, one without anything in it no more than that."""

    role: Role | None = None
    at: str = ""
    ended: bool = False
    error: str = ""
    wrong: bool = False


class _Child:
    def __init__(self, told: Told, reader: asyncio.StreamReader, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._beat_s = told.settings.supervisor.beat_ms / 1000
        self._roles = Roles(told.settings, told.roles, self._serving, once=told.once)

    async def run(self) -> int:
        """Run to the end; the exit status."""
        beside = [asyncio.create_task(work) for work in (self._listen(), self._beat())]
        try:
            await self._roles.run(ended_by_signals())
        except (EngineError, OSError) as error:
            self._say(Report(error=line_of(error), wrong=is_wrong(error)))
            await self._writer.drain()
            return 1
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        return 0

    async def _beat(self) -> None:
        while True:
            self._say(Report())
            await asyncio.sleep(self._beat_s)

    async def _listen(self) -> None:
        ending = []
        while line := await self._reader.readline():
            command = msgspec.json.decode(line, type=Command)
            if command.others is not None:
                self._roles.others = command.others
            if command.renew:
                renew_all()
            if command.end is not None:
                ending.append(asyncio.create_task(self._end(command.end)))
        # Nobody is there any more who could want this.
        os._exit(1)

    async def _end(self, role: Role) -> None:
        await self._roles.end(role)
        self._say(Report(role=role, ended=True))

    def _serving(self, role: Role, at: str) -> None:
        self._say(Report(role=role, at=at))

    def _say(self, report: Report) -> None:
        self._writer.write(msgspec.json.encode(report) + b"\n")


async def _main(channel: socket.socket) -> int:
    reader, writer = await asyncio.open_connection(sock=channel, limit=LINE_BYTES_MAX)
    told = msgspec.json.decode(await reader.readline(), type=Told)
    ending_with(told.parent)()
    log_with_times()
    try:
        return await _Child(told, reader, writer).run()
    finally:
        writer.close()


class _Telling(logging.Handler):
    """Tells somebody each line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(self.format(record))


def log_with_times(tell: Callable[[str], None] | None = None) -> None:
    """What happens goes to whom it is to be told, or to standard error, each line with its
    moment."""
    handler = logging.StreamHandler() if tell is None else _Telling(tell)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in ("engine", "herdbook"):
        logging.getLogger(name).setLevel(logging.INFO)


def quiet_grpc() -> None:
    """gRPC says nothing by itself, here and in processes that are started from here.

    Called before it is imported: what went wrong its caller says, and of what did not nobody wants
    to hear. Who says `GRPC_VERBOSITY` hears it.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main() -> None:
    """The process, from its start to its end."""
    hear_early()
    channel = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open("rb") as nothing:
        # Its own children have no part in this.
        os.dup2(nothing.fileno(), 0)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status = runner.run(_main(channel))
    sys.exit(status)


if __name__ == "__main__":
    main()

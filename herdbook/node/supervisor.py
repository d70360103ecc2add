"""Who watches over the processes of a node: starts them, starts them again, ends them in order.

Invariants:
- A process that what it was told keeps from serving ends the node, if it never served; whatever
  else ends is started again, after a pause that doubles, and only so often.
- Roles end in the opposite order of their start, over all processes; a second signal, or the time
  that ending may take, kills what still runs.
- What a process prints is read to its end, whether or not it can be passed on: one that nobody
  reads would come to a halt.
- Whoever serves and gives no sign of life of its event loop is silent: that is told once, and ends
  the process when it lasts too long. Only time in which this one looked counts.
- No process is left behind, however this one ends.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from engine.errors import EngineError
from engine.ports.clock import Clock
from herdbook.node.child import LINE_BYTES_MAX, Command, Report, Told
from herdbook.node.settings import NodeSettings, Role, SupervisorTable

_LAST_WORDS_S: Final = 2.0
_PAUSE_COUNTED: Final = 1.5
"""Of a pause of its own the supervisor counts no more looks than these as another's silence."""
_COMMAND: Final = (sys.executable, "-m", "herdbook.node.child")


class NodeFailed(EngineError):
    """The node ended: a process of it cannot run. What it said is in the message."""


class Member(NamedTuple):
    """One process: its name and what it is to run. `once`: a ticket for one login over HTTP."""

    name: str
    settings: NodeSettings
    roles: tuple[Role, ...]
    once: str = ""


@dataclass(slots=True)
class MemberState:
    """What is known of a process. `state` is starting, serving, silent (its loop stands still),
    waiting (to start again), ended."""

    state: str = "starting"
    pid: int = 0
    restarts: int = 0
    at: dict[str, str] = field(default_factory=dict)
    """Where each role that serves does so."""
    error: str = ""


class Ending:
    """How the node is told to end: `asked` by the first signal, `urged` by the second one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.urged = asyncio.Event()
        self.number = 0
        """Which signal asked first; 0: none did."""

    def on_signals(self) -> None:
        """Let SIGTERM and SIGINT tell."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.tell, number)

    def tell(self, number: int = 0) -> None:
        """As a signal does."""
        self.number = self.number or number
        (self.urged if self.asked.is_set() else self.asked).set()


class Supervisor:
    """The processes of a node, or of several on one machine. Made once, run once."""

    def __init__(
        self,
        members: Sequence[Member],
        table: SupervisorTable,
        clock: Clock,
        *,
        say: Callable[[str, str], None],
        changed: Callable[["Supervisor"], None],
        command: Sequence[str] = _COMMAND,
    ) -> None:
        """`say` hears each line of a process, `changed` that a state is another one.

        An `OSError` of `say` loses the line.
        """
        self._changed = changed
        self._clock = clock
        self._look_s = table.beat_ms / 1000
        self._watched = [_Watched(each, table, clock, say, self._note, command) for each in members]
        self._stop_s = table.stop_timeout_ms / 1000
        self.served = asyncio.Event()
        """Once all of them have served at the same time."""

    @property
    def states(self) -> dict[str, MemberState]:
        """What is known of each process, by its name."""
        return {each.member.name: each.state for each in self._watched}

    async def run(self, ending: Ending) -> None:
        """Run them until told to end. Raises `NodeFailed` where one cannot go on."""
        asked = asyncio.create_task(ending.asked.wait())
        looking = asyncio.create_task(self._look())
        tasks = [asyncio.create_task(self._watch(each)) for each in self._watched]
        try:
            await asyncio.wait((asked, *tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            looking.cancel()
            await self._end(ending)
            done = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome

    def renew(self) -> None:
        """Make all processes read secrets and certificates again; later ones read them at start."""
        for watched in self._watched:
            watched.renew()

    def passed(self, seconds: float) -> None:
        """So much time has passed in which processes could have given a sign of life."""
        for watched in self._watched:
            watched.passed(seconds)

    async def _look(self) -> None:
        before_s = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._look_s)
            now_s = self._clock.monotonic()
            self.passed(min(now_s - before_s, _PAUSE_COUNTED * self._look_s))
            before_s = now_s

    def _note(self) -> None:
        for watched in self._watched:
            folder = watched.member.settings.own_folder
            watched.tell_of(
                {
                    each.member.name: each.state.state
                    for each in self._watched
                    if each is not watched
                    and each.member.settings.own_folder == folder
                    and each.state.state != "serving"
                }
            )
        if all(each.state.state == "serving" for each in self._watched):
            self.served.set()
        self._changed(self)

    async def _watch(self, watched: "_Watched") -> None:
        """What needs a bookie begins when the node's own serves, or has failed a first time."""
        if Role.BOOKIE not in watched.member.roles:
            for other in self._watched:
                if Role.BOOKIE in other.member.roles:
                    await other.settled.wait()
        await watched.run()

    async def _end(self, ending: Ending) -> None:
        urged = asyncio.create_task(ending.urged.wait())
        in_order = asyncio.create_task(self._end_in_order())
        await asyncio.wait(
            (urged, in_order), timeout=self._stop_s, return_when=asyncio.FIRST_COMPLETED
        )
        urged.cancel()
        in_order.cancel()
        for watched in self._watched:
            watched.kill()

    async def _end_in_order(self) -> None:
        for watched in self._watched:
            watched.leave()
        for role in reversed(Role):
            await asyncio.gather(*(each.end(role) for each in self._watched))
        await asyncio.gather(*(each.gone.wait() for each in self._watched))


class _Watched:
    """One process, run again and again."""

    def __init__(
        self,
        member: Member,
        table: SupervisorTable,
        clock: Clock,
        say: Callable[[str, str], None],
        note: Callable[[], None],
        command: Sequence[str],
    ) -> None:
        self.member = member
        self.state = MemberState()
        self.settled = asyncio.Event()
        """It served, or ended, a first time."""
        self.gone = asyncio.Event()
        self.gone.set()
        self._table = table
        self._clock = clock
        self._tell = say
        self._note = note
        self._command = command
        self._leaving = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ended = {role: asyncio.Event() for role in member.roles}
        self._wrong = self._served = False
        self._silent_s = 0.0
        self._told_of: dict[str, str] = {}

    async def run(self) -> None:
        """Run it until told to leave. Raises `NodeFailed`."""
        in_a_row = 0
        while not self._leaving.is_set():
            began_s = self._clock.monotonic()
            await self._once()
            self.settled.set()
            if self._leaving.is_set():
                break
            steady = self._clock.monotonic() - began_s >= self._table.steady_ms / 1000
            in_a_row = 1 if steady else in_a_row + 1
            self._check(in_a_row)
            await self._pause(in_a_row)
        self._set("ended")

    def leave(self) -> None:
        """Do not start it again."""
        self._leaving.set()
        self.settled.set()

    async def end(self, role: Role) -> None:
        """Have it end a role, and wait until it has, or is gone."""
        if self.gone.is_set() or role not in self._ended or self._writer is None:
            return
        self._writer.write(msgspec.json.encode(Command(role)) + b"\n")
        await _first(self._ended[role], self.gone)

    def tell_of(self, others: dict[str, str]) -> None:
        """Tell it which others of its node do not serve, if it is asked that."""
        asked = Role.HTTP in self.member.roles and not self._leaving.is_set()
        if not asked or self.gone.is_set() or others == self._told_of:
            return
        assert self._writer is not None
        self._told_of = others
        self._writer.write(msgspec.json.encode(Command(others=others)) + b"\n")

    def renew(self) -> None:
        """Make it read secrets and certificates again."""
        if not self.gone.is_set() and self._writer is not None:
            self._writer.write(msgspec.json.encode(Command(renew=True)) + b"\n")

    def passed(self, seconds: float) -> None:
        """So much time passed; what it said meanwhile has been taken down."""
        if self.state.state not in ("serving", "silent") or self._leaving.is_set():
            return
        self._silent_s += seconds
        silent_ms = round(self._silent_s * 1000)
        if self.state.state == "serving" and silent_ms >= self._table.silence_ms:
            self._say(self.member.name, f"it is silent for {silent_ms} ms: its loop stands still")
            self._set("silent")
        elif 0 < self._table.silence_ms_max <= silent_ms:
            self.state.error = f"it was silent for {silent_ms} ms, and was killed"
            self.kill()

    def _heard(self) -> None:
        """A sign of life."""
        if self.state.state == "silent":
            silent_ms = round(self._silent_s * 1000)
            self._say(self.member.name, f"it is there again, after {silent_ms} ms")
            self._set("serving")
        self._silent_s = 0.0

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _check(self, in_a_row: int) -> None:
        """Raise `NodeFailed` where another try is of no use."""
        name, said = self.member.name, self.state.error
        if self._wrong and not self._served:
            self._set("ended")
            raise NodeFailed(f"{name}: {said}")
        if in_a_row > self._table.restarts_max:
            self._set("ended")
            raise NodeFailed(f"{name} ended {in_a_row} times in a row, at last: {said}")

    async def _pause(self, in_a_row: int) -> None:
        table = self._table
        pause_ms = min(table.restart_pause_ms << (in_a_row - 1), table.restart_pause_ms_max)
        self._say(self.member.name, f"{self.state.error}; it starts again in {pause_ms} ms")
        self._set("waiting")
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._leaving.wait()
        except TimeoutError:
            self.state.restarts += 1

    async def _once(self) -> None:
        """One life of the process."""
        here, there = socket.socketpair()
        reader, self._writer = await asyncio.open_connection(sock=here, limit=LINE_BYTES_MAX)
        with there:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=there.fileno(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # Ctrl-C goes to the supervisor alone, which ends roles in their order.
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        self._process, self._wrong = process, False
        self.gone.clear()
        if self._leaving.is_set():
            # Nobody will tell it to end: whoever was to do so looked before it was there.
            self.kill()
        self.state.pid, self.state.at, self.state.error = process.pid, {}, ""
        self._silent_s, self._told_of = 0.0, {}
        member = self.member
        told = Told(member.settings, member.roles, os.getpid(), member.once)
        self._writer.write(msgspec.json.encode(told) + b"\n")
        self._set("starting")
        hearing = [
            asyncio.create_task(self._hear(reader)),
            asyncio.create_task(self._copy(process)),
        ]
        try:
            await process.wait()
            # A child of its own that outlives it for a moment keeps its output open.
            await asyncio.wait(hearing, timeout=_LAST_WORDS_S)
        finally:
            self.kill()
            await process.wait()
            for each in hearing:
                each.cancel()
            self._writer.close()
            self.state.pid, self.state.at = 0, {}
            self.state.error = self.state.error or _how(process.returncode)
            self.gone.set()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        """Take down what the process reports."""
        try:
            while line := await reader.readline():
                self._heard()
                self._take(msgspec.json.decode(line, type=Report))
        except ConnectionError:
            # It ended with something of ours unread.
            return

    def _take(self, report: Report) -> None:
        if report.error:
            self.state.error, self._wrong = report.error, report.wrong
        elif report.role is not None and report.ended:
            self._ended[report.role].set()
        elif report.role is not None:
            self.state.at[report.role.value] = report.at
            if len(self.state.at) == len(self.member.roles):
                self._served = True
                self.settled.set()
                self._set("serving")

    async def _copy(self, process: asyncio.subprocess.Process) -> None:
        """Pass its lines on; one that is too long in pieces."""
        assert process.stdout is not None
        while data := await _line(process.stdout):
            self._say(self.member.name, data.decode(errors="replace").rstrip("\n"))

    def _say(self, name: str, line: str) -> None:
        # The log's disk is full, or its reader gone: no matter of the process.
        with contextlib.suppress(OSError):
            self._tell(name, line)

    def _set(self, state: str) -> None:
        self.state.state = state
        self._note()


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(max(1, error.consumed))


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        # Those of real time have no names.
        named = {each.value: each.name for each in signal.Signals}
        return f"it was ended by {named.get(-status, f'signal {-status}')}"
    return f"it ended by itself with status {status}"


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waiting = [asyncio.create_task(each.wait()) for each in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()

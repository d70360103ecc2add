"""One child process, seen from its worker: starting it, talking to it, ending it.

Invariants:
- `over` is set when the process is gone and reaped, and nothing that it left runs any more. Its
  places are free only then.
- What it said before its end is heard before `over` is set.
- It leads its own process group: processes that its tasks started end with it. Processes that they
  started in other groups also end with it, if it was ended, or ended by itself, while tasks ran.
- It ends when its worker ends, in any way, and so does everything that it started: see `watcher`.
- It is started without a copy of this process: libraries with threads, gRPC's above all, do not
  survive one.
"""

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import msgspec

from broker.connection import Attempt, Run
from broker.errors import BrokerUnavailable, InvalidTask, SessionLost
from broker.worker.frames import (
    Broken,
    Cancel,
    Frames,
    FromChild,
    GiveBack,
    Ready,
    Report,
    Start,
    Work,
    decode_from_child,
    frame,
)
from broker.worker.watching import Watch

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MODULE: Final = "broker.worker.child"
_LOOK_S: Final = 0.02


class Child(asyncio.Protocol):
    """A child process. Made by `Child.spawn`."""

    def __init__(self, hear: Callable[["Child", Report], None], marks: int, watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        self.types: tuple[str, ...] = ()
        self.coroutines: frozenset[str] = frozenset()
        self.exited = asyncio.Event()
        """Set when the process itself is gone: what its tasks started may still run."""
        self.over = asyncio.Event()
        self.status = 0
        """Its exit status, negative: the number of a signal. Known when it has exited."""
        self.killed = False
        self.idle = False
        """Whether its tasks have ended: what they left in other groups is then intended."""
        self._watch = watch
        self._mark = ""
        self.heard_s = loop.time()
        """When it spoke last, by the loop's clock."""
        self.free_marks = list(range(marks))
        """Marks that no attempt has."""
        self._marks: mmap.mmap | bytearray = bytearray(max(1, marks))
        self._loop = loop
        self._hear = hear
        self._frames = Frames()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reaping: asyncio.Task[None] | None = None

    @staticmethod
    async def spawn(
        start: Start, hear: Callable[["Child", Report], None], marks: int, watch: Watch
    ) -> "Child":
        """Start a process, supervised by `watch`, and wait until it has imported its code.

        `marks` is the number of attempts whose beginning can be marked. `hear` gets its reports.
        Raises `InvalidTask` with the traceback if it cannot import, `BrokerUnavailable` if no
        process can be started, or it ends before it is ready.
        """
        child = Child(hear, marks, watch)
        try:
            await child._start(start)
            await asyncio.shield(child._ready)
        except BaseException:
            child.kill()
            if child._process is not None:
                await child.over.wait()
            raise
        return child

    @property
    def process_id(self) -> int:
        """The number of the process; 0 before it has one."""
        return self._process.pid if self._process is not None else 0

    def send(self, runs: list[Run]) -> list[int]:
        """Have these run; returns their marks, -1 for one that got none."""
        free = self.free_marks
        marks = [free.pop() if free else -1 for _ in runs]
        for mark in marks:
            if mark >= 0:
                self._marks[mark] = 0
        self._write(frame(Work(runs, marks)))
        return marks

    def has_begun(self, mark: int) -> bool:
        """Whether the attempt of a mark has begun, as far as is known: without one it has."""
        return mark < 0 or self._marks[mark] != 0

    def give_back(self) -> None:
        """Have it begin nothing more of what it was sent."""
        self._write(frame(GiveBack()))

    def cancel(self, attempts: list[Attempt]) -> None:
        """Cancel these, if they are coroutines or have not begun."""
        self._write(frame(Cancel(attempts)))

    def kill(self) -> None:
        """End the process and what it started. `over` tells when it is gone.

        Nothing once the process has exited: what it left is being ended already, and the number of
        its group may belong to others by then.
        """
        if self.exited.is_set():
            return
        self.killed = True
        if self._process is not None:
            _kill_group(self._process)

    def abandon(self) -> None:
        """Stop waiting for processes that it left running."""
        if self._reaping is not None:
            self._reaping.cancel()

    def memory_bytes(self) -> int:
        """What it has in memory; 0 where the system does not tell."""
        try:
            told = Path(f"/proc/{self.process_id}/statm").read_text("ascii")
            return int(told.split()[1]) * _PAGE_BYTES
        except (OSError, IndexError, ValueError):
            return 0

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of other loops are no subclasses.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        try:
            for body in self._frames.feed(data):
                self._read(decode_from_child(body))
        except (msgspec.MsgspecError, SessionLost):
            # Users' code wrote over the socket's memory or descriptor: nothing of it is to be had.
            self.kill()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()

    # Inside

    async def _start(self, start: Start) -> None:
        here, there = socket.socketpair()
        with there, tempfile.TemporaryFile() as memory:
            memory.truncate(len(self._marks))
            self._marks = mmap.mmap(memory.fileno(), 0)
            await self._loop.create_connection(lambda: self, sock=here)
            environment = dict(os.environ)
            more, self._mark = self._watch.environment()
            environment |= more
            environment["PYTHONPATH"] = os.pathsep.join(each or os.getcwd() for each in sys.path)
            try:
                self._process = _begun((there.fileno(), memory.fileno()), environment)
            except OSError as error:
                raise BrokerUnavailable(f"a child process cannot be started: {error}") from error
            self._watch.began(self._process.pid)
            self._reaping = self._loop.create_task(self._reap(self._process))
        self._write(frame(start))

    async def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        self.status = await _status_of(process)
        self.exited.set()
        # What it started may outlive it otherwise.
        _kill_group(process)
        if not self.idle:
            await self._watch.end(process.pid, self._mark)
        self._watch.over(process.pid)
        try:
            async with asyncio.timeout(1):
                await self._ended.wait()
        except TimeoutError:
            pass
        if self._transport is not None:
            self._transport.abort()
        if not self._ready.done():
            text = f"a child process ended before it was ready: {ending_of(self.status)}"
            self._ready.set_exception(BrokerUnavailable(text))
            # Whoever was to wait for it may have gone.
            self._ready.exception()
        self.over.set()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _read(self, message: FromChild) -> None:
        if isinstance(message, Report):
            self._hear(self, message)
        elif self._ready.done():
            return
        elif isinstance(message, Ready):
            self.types = message.types
            self.coroutines = frozenset(message.coroutines)
            self._ready.set_result(None)
        elif isinstance(message, Broken):
            self._ready.set_exception(InvalidTask(f"the tasks' code fails: {message.error}"))


def _begun(descriptors: tuple[int, int], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start the process. Raises `OSError`.

    Not by the event loop: uvloop's way is a fork, in which what other libraries left for such a
    moment runs. This one is a vfork, over in about a millisecond.
    """
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE, *map(str, descriptors), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=environment,
        start_new_session=True,
    )


async def _status_of(process: "subprocess.Popen[bytes]") -> int:
    """The exit status of a process, when it has ended."""
    loop = asyncio.get_running_loop()
    try:
        watched = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # The system has no such thing, or not one more.
        while (status := process.poll()) is None:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(_LOOK_S)
        return status
    ended: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        loop.remove_reader(watched)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(watched, tell)
    try:
        await ended
        return process.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # Nobody is left in it, or it has not come to lead its group yet.
        if process.poll() is None:
            process.kill()


def ending_of(status: int) -> str:
    """How a process ended, in words.

    >>> ending_of(3), ending_of(-9)
    ('it exited with status 3', 'it was ended by SIGKILL')
    """
    if status >= 0:
        return f"it exited with status {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"

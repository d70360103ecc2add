"""A child process that runs users' code: `python -m broker.worker.child`, made by `Child`.

Invariants:
- It never outlives its worker: when the socket closes, it ends at once, whatever it runs. On Linux,
  where the system can end it with its parent, this is true even in a call that holds the GIL.
- The thread that reads does nothing else, so that a cancel is heard while functions run.
- The program's first thread runs plain functions, as the code of programs may expect.
"""

import asyncio
import ctypes
import importlib
import mmap
import os
import runpy
import signal
import socket
import sys
from typing import Any

import msgspec

from broker.connection import Run
from broker.errors import BrokerUnavailable, InvalidTask
from broker.worker.frames import (
    Broken,
    Cancel,
    Frames,
    GiveBack,
    Ready,
    Report,
    Start,
    Work,
    decode_to_child,
    frame,
)
from broker.worker.registry import REGISTRY, TaskFunction, TaskOptions
from broker.worker.running import Begun, Coroutines, Outbox, Threads, error_text, start_thread

_READ_BYTES = 256 * 1024
_MAIN = "__mp_main__"
_PR_SET_PDEATHSIG = 1


class _Functions:
    """The functions that tasks name."""

    def __init__(self, start: Start) -> None:
        self._any_function = start.any_function
        self._named: dict[str, TaskFunction] = {}

    def find(self, run: Run) -> TaskFunction:
        if not run.codepool and run.execution == "factory":
            function = REGISTRY.of(run.type)
            if function is None:
                # Another worker may have one: it is not the task's fault.
                raise BrokerUnavailable(f"this worker has no function for the type {run.type}")
            return function
        if not self._any_function:
            raise InvalidTask(f"this worker imports nothing for a task: {run.type} is not run")
        named = self._named.get(run.type)
        return named if named is not None else self._imported(run.type)

    def _imported(self, name: str) -> TaskFunction:
        module, _, path = name.partition(":")
        if not path:
            raise InvalidTask(f"{name} names no function, as module:function does")
        found: Any
        try:
            found = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except Exception as error:
            raise InvalidTask(f"{name} cannot be imported: {error}") from error
        if not callable(found):
            raise InvalidTask(f"{name} is no function")
        made = REGISTRY.of(found) or TaskFunction(name, found, TaskOptions())
        self._named[name] = made
        return made


class _Child:
    def __init__(
        self, connection: socket.socket, start: Start, frames: Frames, begun: Begun
    ) -> None:
        self._connection = connection
        self._frames = frames
        self._functions = _Functions(start)
        outbox = Outbox(self._report)
        find, at_once = self._functions.find, start.at_once
        most = start.result_bytes_max
        self._threads = Threads(find, outbox, begun, at_once, most)
        self._coroutines = Coroutines(find, outbox, begun, at_once, _new_event_loop, most)

    def serve(self) -> None:
        start_thread(self._read, "read")
        self._threads.serve()

    def _report(self, report: Report) -> None:
        try:
            self._connection.sendall(frame(report))
        except OSError:
            os._exit(0)

    def _read(self) -> None:
        try:
            while data := self._connection.recv(_READ_BYTES):
                for body in self._frames.feed(data):
                    self._hear(body)
        finally:
            os._exit(0)

    def _hear(self, body: bytes) -> None:
        message = decode_to_child(body)
        if isinstance(message, Cancel):
            self._threads.cancel(message.attempts)
            self._coroutines.cancel(message.attempts)
        elif isinstance(message, GiveBack):
            self._threads.give_back()
            self._coroutines.give_back()
        elif isinstance(message, Work):
            plain: list[tuple[Run, int]] = []
            coroutines: list[tuple[Run, int]] = []
            for item in zip(message.runs, message.marks, strict=True):
                (coroutines if self._is_coroutine(item[0]) else plain).append(item)
            if plain:
                self._threads.start(plain)
            if coroutines:
                self._coroutines.start(coroutines)

    def _is_coroutine(self, run: Run) -> bool:
        try:
            return self._functions.find(run).is_async
        except BaseException:
            # The thread that runs it says what is wrong.
            return False


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """As the engine's own: but to import the engine would double the time that a child takes."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _load(start: Start) -> None:
    """Import what registers functions."""
    sys.path[:0] = [*start.archives, *(entry for entry in start.path if entry not in sys.path)]
    if start.main:
        # The program's own functions, without running it as the program.
        names = runpy.run_path(start.main, run_name=_MAIN)
        module = type(sys)(_MAIN)
        module.__dict__.update(names)
        sys.modules[_MAIN] = module
    for name in start.modules:
        _import(name)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise
        # It is the name that is wrong, not what the module does.
        where = sys.path[0] if sys.path else "the path"
        raise _NotThere(f"No module named {missing!r}: it was looked for in {where}") from None


class _NotThere(Exception):
    """A module that is to be imported is not there."""


def _first(connection: socket.socket, frames: Frames) -> Start:
    while data := connection.recv(_READ_BYTES):
        # Nothing follows it before it is answered.
        if bodies := list(frames.feed(data)):
            return msgspec.msgpack.decode(bodies[0], type=Start)
    sys.exit(0)


def _end_with(parent: int) -> None:
    """Make the system end this process when the worker's thread that started it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have ended before this request.
    if os.getppid() != parent:
        os._exit(0)


def main() -> None:
    """Run the child.

    The arguments are the descriptors of its socket and of the shared memory, and its worker's
    process.
    """
    _end_with(int(sys.argv[3]))
    # Ctrl-C is the worker's to hear: it decides what becomes of its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    connection.setblocking(True)
    frames = Frames()
    start = _first(connection, frames)
    try:
        _load(start)
    except BaseException as error:
        told = str(error) if isinstance(error, _NotThere) else error_text(error)
        connection.sendall(frame(Broken(told)))
        sys.exit(1)
    functions = REGISTRY.functions
    coroutines = tuple(name for name, function in functions.items() if function.is_async)
    connection.sendall(frame(Ready(tuple(functions), coroutines)))
    begun = Begun(mmap.mmap(int(sys.argv[2]), 0))
    _Child(connection, start, frames, begun).serve()


if __name__ == "__main__":
    main()

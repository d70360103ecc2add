"""A small process next to a worker. If the worker dies, it ends what the worker's tasks started.

`python -I -S watcher.py DESCRIPTOR PARENT TOKEN`, started by `Watch`. It imports only the standard
library, so it is cheap and starts quickly. It receives these messages over the socket:

    +NUMBER         a child process leads the process group NUMBER
    -NUMBER         that group has ended
    .               the worker has ended normally: leave everything alone, and exit

Invariants:
- When the worker's process has ended for any reason, the watcher ends every group that the worker
  has reported, and every process with the worker's token in its environment, in any session.
- It repeats this until it finds no such process: each pass also finds what was forked meanwhile.
- It gives up and exits after `LAST_S` at the latest.
- A group that was found empty is never signalled again: its number may belong to others by then.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable

VARIABLE = "HERDBOOK_WORKER_PROCESS"
"""The environment variable by which a worker's descendants are found."""
LAST_S = 10.0
LOOK_S = 0.005
_EMPTY_LOOKS = 3
"""Nothing is left after this many passes in a row have found nothing: a process that is loading a
program has no environment for a moment."""
_PARENT_LOOK_S = 0.25
_PROC = "/proc"


class Leftover:
    """The processes of some groups, and all processes with a mark in their environment."""

    def __init__(self, groups: "set[int]", mark: bytes) -> None:
        """Without a mark, only the groups."""
        self._groups = set(groups)
        self._mark = mark
        self._empty_looks = 0

    @property
    def gone(self) -> bool:
        """Whether none of them is left."""
        return self._empty_looks >= _EMPTY_LOOKS

    def end(self) -> None:
        """Kill those that run at this moment. Repeat this until they are gone."""
        for group in list(self._groups):
            if not _kill(os.killpg, group):
                self._groups.discard(group)
        found = self.found()
        for process in found:
            _kill(os.kill, process)
        self._empty_looks = 0 if found else self._empty_looks + 1

    def found(self) -> "list[int]":
        """The processes that run at this moment, except this one.

        If the system has no `/proc`, the groups that are not known to be empty.
        """
        try:
            names = os.listdir(_PROC)
        except OSError:
            return list(self._groups)
        own = str(os.getpid())
        return [
            int(name) for name in names if name.isdigit() and name != own and self._has(int(name))
        ]

    def _has(self, process: int) -> bool:
        if self._groups:
            fields = _read(process, "stat").rpartition(b") ")[2].split()
            if fields and fields[0] not in b"ZX" and int(fields[2]) in self._groups:
                return True
        return bool(self._mark) and self._mark in _read(process, "environ")


def _read(process: int, name: str) -> bytes:
    try:
        with open(f"{_PROC}/{process}/{name}", "rb") as file:
            return file.read()
    except OSError:
        # It has ended, or belongs to another user.
        return b""


def _kill(how: Callable[[int, int], None], number: int) -> bool:
    """Whether there is such a process or group."""
    try:
        how(number, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Without /proc, the processes of a group that have ended answer this, too.
        return os.path.isdir(_PROC)
    return True


class _Watcher:
    def __init__(self, descriptor: int, parent: int, token: str) -> None:
        self._descriptor = descriptor
        self._parent = parent
        self._token = token.encode()
        self._groups: set[int] = set()
        self._rest = b""

    def watch(self) -> None:
        """Serve the worker until it has ended."""
        while self._waited():
            try:
                data = os.read(self._descriptor, 65_536)
            except OSError:
                data = b""
            if not data:
                self._outlive()
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if line == b".":
                    return
                self._hear(line)
        self._end_all()

    def _end_all(self) -> None:
        left = Leftover(self._groups, self._token)
        last_s = time.monotonic() + LAST_S  # noqa: TID251 (a process of its own, without an engine)
        while not left.gone and time.monotonic() < last_s:  # noqa: TID251 (see above)
            left.end()
            time.sleep(LOOK_S)  # noqa: TID251 (see above)

    def _outlive(self) -> None:
        """Wait until the worker has ended: it may have closed the socket and still be running."""
        try:
            gone = os.pidfd_open(self._parent)
        except (AttributeError, OSError):
            while os.getppid() == self._parent:
                time.sleep(_PARENT_LOOK_S)  # noqa: TID251 (see above)
            return
        if os.getppid() == self._parent:
            select.select((gone,), (), ())
        os.close(gone)

    def _waited(self) -> bool:
        """Whether there is something to read; False if the worker has ended.

        The socket does not always show that: a process that was forked from the worker also holds
        the other end.
        """
        watched = [self._descriptor]
        gone = -1
        try:
            gone = os.pidfd_open(self._parent)
            watched.append(gone)
        except (AttributeError, OSError):
            pass
        try:
            while True:
                ready, _, _ = select.select(watched, (), (), _PARENT_LOOK_S if gone < 0 else None)
                if self._descriptor in ready:
                    return True
                if ready or os.getppid() != self._parent:
                    return False
        finally:
            if gone >= 0:
                os.close(gone)

    def _hear(self, line: bytes) -> None:
        if line[:1] == b"+":
            self._groups.add(int(line[1:]))
        elif line[:1] == b"-":
            self._groups.discard(int(line[1:]))


if __name__ == "__main__":
    _Watcher(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]).watch()

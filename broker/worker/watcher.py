"""A small process next to a worker. If the worker dies, it ends what the worker's tasks started.

`python -I -S watcher.py DESCRIPTOR PARENT TOKEN`, started by `Watch`. It imports only the standard
library, so it is cheap and starts quickly. It receives these messages over the socket:

    +NUMBER         a child process leads the process group NUMBER
    -NUMBER         that group has ended
    *NUMBER MARK    end that group, and processes with MARK in their environment; reply `*NUMBER`
    .               the worker has ended normally: leave everything alone, and exit

Invariants:
- When the worker's process has ended for any reason, the watcher ends every group that the worker
  has reported, and every process with the worker's token in its environment, in any session.
- It repeats this until passes find no such process: the next pass finds what was forked meanwhile.
- It gives up and exits after `LAST_S` at the latest.
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
_LOOK_S = 0.005
_EMPTY_LOOKS = 3
"""Only so many looks in a row say that nothing is left: what loads a program shows no environment
for a moment."""
_PARENT_LOOK_S = 0.25
_PROC = "/proc"


def marked(mark: bytes) -> list[int]:
    """The processes, except this one, that started with a mark in their environment.

    None if the system has no `/proc`.
    """
    found = []
    try:
        names = os.listdir(_PROC)
    except OSError:
        return []
    own = os.getpid()
    for name in names:
        if name.isdigit() and int(name) != own:
            try:
                with open(f"{_PROC}/{name}/environ", "rb") as file:
                    environment = file.read()
            except OSError:
                # It has ended, or belongs to another user.
                continue
            if mark in environment:
                found.append(int(name))
    return found


def end(groups: "set[int]", mark: bytes) -> None:
    """End process groups and every process with a mark; return when none of them is left."""
    last_s = time.monotonic() + LAST_S  # noqa: TID251 (a process of its own, without an engine)
    empty = 0
    while time.monotonic() < last_s:  # noqa: TID251 (see above)
        for group in groups:
            _kill(os.killpg, group)
        processes = marked(mark)
        for process in processes:
            _kill(os.kill, process)
        empty = 0 if processes else empty + 1
        if empty == _EMPTY_LOOKS:
            return
        time.sleep(_LOOK_S)  # noqa: TID251 (see above)


def _kill(how: Callable[[int, int], None], number: int) -> None:
    try:
        how(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


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
        end(self._groups, self._token)

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
        number, _, mark = line[1:].partition(b" ")
        if line[:1] == b"+":
            self._groups.add(int(number))
        elif line[:1] == b"-":
            self._groups.discard(int(number))
        elif line[:1] == b"*":
            end({int(number)}, mark)
            os.write(self._descriptor, b"*" + number + b"\n")  # noqa: TID251 (it is a socket)


if __name__ == "__main__":
    _Watcher(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]).watch()

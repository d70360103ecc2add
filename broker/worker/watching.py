"""The worker's side of its watcher: see `watcher`.

The watcher acts only when the worker dies. A worker that lives ends leftover processes itself.

Invariants:
- `Watch.end` returns when nothing is left, however long that takes. A slow one delays no other.
- A missing watcher delays nothing.
- Every process that a child's tasks start has the child's mark in its environment, unless the task
  removes it.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final
from uuid import uuid4  # noqa: TID251 (it only names processes to the system)

from broker.worker import watcher
from broker.worker.watcher import LOOK_S, VARIABLE, Leftover

_log = logging.getLogger(__name__)
_CLOSE_S: Final = 2.0
_PAUSE_S_MAX: Final = 0.25
_UNSENT_BYTES_MAX: Final = 1024 * 1024
_SEPARATOR: Final = ":"


class Watch:
    """One worker's watcher. All methods on the event loop that started it."""

    def __init__(self, *, marks: bool = True) -> None:
        """`marks`: whether processes that tasks start are also found by a mark."""
        self._token = uuid4().hex
        self._marks = marks
        self._number = 0
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent = bytearray()

    def start(self) -> None:
        """Start the process. If that fails, this is logged, and the worker works without it."""
        here, there = socket.socketpair()
        try:
            with there:
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-S", watcher.__file__),
                        *(str(there.fileno()), str(os.getpid()), self._token),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(there.fileno(),),
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            here.close()
            _log.warning("this worker has no watcher: if the worker is killed, %s: %s", _ON, error)
            return
        if not Path("/proc/self/environ").exists():
            _log.info("this system has no /proc: %s", _ON)
        here.setblocking(False)
        self._socket = here
        asyncio.get_running_loop().add_reader(here.fileno(), self._read)

    def environment(self) -> tuple[dict[str, str], str]:
        """The variables to add to a child's environment, and its mark ("" if it has none)."""
        if not self._marks:
            return {}, ""
        self._number += 1
        # The separator at the end means that a mark is never a prefix of another one.
        mark = f"{self._token}.{self._number}{_SEPARATOR}"
        # A worker that is itself a task of another worker passes on that worker's marks.
        return {VARIABLE: os.environ.get(VARIABLE, "") + mark}, mark

    def began(self, process_id: int) -> None:
        """A child leads a process group."""
        self._say(b"+%d\n" % process_id)

    def over(self, process_id: int) -> None:
        """The group has ended."""
        self._say(b"-%d\n" % process_id)

    async def end(self, process_id: int, mark: str) -> None:
        """End what a child has left running, by its group or mark; return when all have ended."""
        loop = asyncio.get_running_loop()
        left, pause_s = Leftover({process_id}, mark.encode()), LOOK_S
        while True:
            await loop.run_in_executor(None, left.end)
            if left.gone:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def close(self) -> None:
        """The worker ends normally. May be called twice."""
        self._say(b".\n")
        if self._unsent and self._socket is not None:
            # The watcher is behind. Without this line it would mistake the end for a failure.
            self._socket.settimeout(_CLOSE_S)
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().run_in_executor(
                    None, self._socket.sendall, bytes(self._unsent)
                )
        self._lose()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.get_running_loop().run_in_executor(None, _wait, process)

    def _say(self, line: bytes) -> None:
        if self._socket is not None:
            self._unsent += line
            self._send()

    def _send(self) -> None:
        """Send what waits, as far as the watcher takes it. It may be busy for some seconds."""
        assert self._socket is not None
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            _log.warning("this worker's watcher has ended: %s: %s", _ON, error)
            self._lose()
            return
        if len(self._unsent) > _UNSENT_BYTES_MAX:
            _log.warning("this worker's watcher does not answer: %s", _ON)
            self._lose()
            return
        loop = asyncio.get_running_loop()
        if self._unsent:
            loop.add_writer(self._socket.fileno(), self._send)
        else:
            loop.remove_writer(self._socket.fileno())

    def _lose(self) -> None:
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())
            self._unsent.clear()
            self._socket.close()
            self._socket = None

    def _read(self) -> None:
        """The watcher sends nothing: there is something to read when it has ended."""
        assert self._socket is not None
        try:
            self._socket.recv(1)
        except BlockingIOError:
            return
        except OSError:
            pass
        _log.warning("this worker's watcher has ended: %s", _ON)
        self._lose()


_ON: Final = "processes that its tasks start in their own sessions keep running if it is killed"


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until the watcher has ended. One that was not reached waits for this process's end."""
    try:
        process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""`python -m herd.sql.query_supervisor FD`: forks a node's query processes, and ends them.

It has loaded everything that queries need, and has a single thread that only waits, so it can fork
a query process within milliseconds.

Invariants:
- A process that holds more memory than its limit is killed, whatever the process and the node are
  doing.
- When less of the disk is free than is kept, the process with the largest files is killed, one at a
  time.
- Only a process that has not been waited for is sent a signal: its pid cannot have been reused.
- No query process outlives the supervisor, and the supervisor does not outlive the node.
- A process's files are deleted when it ends.
"""

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import socket
import stat
import sys
import threading
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from engine.settling import keep_loaded
from herd.sql import query_frames as frames
from herd.sql.query_child import private_bytes, run_child
from herd.sql.query_settings import PROCESS_BYTES, QuerySettings

_WATCH_S: Final = 0.02
_SLOW_NICE: Final = 10
_STDERR: Final = 2
_BLOCK_BYTES: Final = 512
_PR_SET_PDEATHSIG: Final = 1
_OOM_FIRST: Final = 1000
"""If a machine has no memory left, the system kills these processes first."""


class Start(msgspec.Struct, frozen=True, array_like=True):
    """What a supervisor receives first: the settings, and the folder of its processes' files."""

    settings: QuerySettings
    folder: str


@dataclass(slots=True)
class _Process:
    number: int
    first_bytes: int
    folder: str
    memory: bool = False
    disk: bool = False


def main() -> None:
    """Serve the node at the other end of a socket until it ends."""
    link = socket.socket(fileno=int(sys.argv[1]))
    frame = frames.receive(link)
    if frame is None:
        return
    start = msgspec.msgpack.decode(frame[1], type=Start)
    assert threading.active_count() == 1, "a fork copies no other threads"
    keep_loaded()
    _Supervisor(link, start).serve()


class _Supervisor:
    def __init__(self, link: socket.socket, start: Start) -> None:
        self._link = link
        self._start = start
        self._processes: dict[int, _Process] = {}
        """By process id."""
        self._freeing = ""
        """The folder of the process that was killed last because of the disk."""

    def serve(self) -> None:
        """Do what the node says, and look after the processes."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A terminal tells all its processes; the node ends this one.
            signal.signal(number, signal.SIG_IGN)
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        try:
            while True:
                if poll.poll(1000 * _WATCH_S if self._processes else None):
                    frame = frames.receive(self._link)
                    if frame is None:
                        return
                    self._hear(*frame)
                self._watch()
                self._watch_disk()
                self._wait()
        finally:
            for pid in self._processes:
                os.kill(pid, signal.SIGKILL)
            for pid in self._processes:
                os.waitpid(pid, 0)

    def _hear(self, kind: int, body: bytearray, fds: list[int]) -> None:
        number = int.from_bytes(body, "big")
        if kind == frames.FORK:
            self._fork(number, fds[0])
            return
        for pid, process in self._processes.items():
            if process.number == number:
                if kind == frames.KILL:
                    os.kill(pid, signal.SIGKILL)
                elif kind == frames.SLOW:
                    _slow(pid)

    def _fork(self, number: int, fd: int) -> None:
        folder = os.path.join(self._start.folder, str(number))
        parent = os.getpid()
        try:
            os.mkdir(folder, 0o700)
            pid = os.fork()
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
            # Without a process, the other end of the socket is closed, which the node notices.
            os.close(fd)
            self._tell(frames.Ended(number))
            return
        if pid == 0:
            self._link.close()
            _run(fd, self._start.settings, folder, parent)
        os.close(fd)
        self._processes[pid] = _Process(number, private_bytes("self"), folder)

    def _watch(self) -> None:
        limit = self._start.settings.memory_bytes + PROCESS_BYTES
        for pid, process in self._processes.items():
            with contextlib.suppress(OSError):
                if private_bytes(str(pid)) - process.first_bytes > limit:
                    process.memory = True
                    os.kill(pid, signal.SIGKILL)

    def _watch_disk(self) -> None:
        kept_bytes = self._start.settings.disk_kept_bytes
        if not kept_bytes or os.path.exists(self._freeing):
            return
        folder = self._start.folder
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free >= kept_bytes:
                return
            device = os.stat(folder).st_dev
            sizes = {pid: _file_bytes(pid, device) for pid in self._processes}
            largest = max(sizes, key=sizes.__getitem__, default=0)
            if sizes.get(largest):
                process = self._processes[largest]
                process.disk = True
                self._freeing = process.folder
                os.kill(largest, signal.SIGKILL)

    def _wait(self) -> None:
        while self._processes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            process = self._processes.pop(pid, None)
            if process is None:
                continue
            self._remove(process.folder)
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            self._tell(frames.Ended(process.number, number, process.memory, process.disk))

    def _remove(self, folder: str) -> None:
        """Remove a process's folder, in another process, because large files take long."""
        try:
            os.rmdir(folder)
        except OSError:
            with contextlib.suppress(OSError):
                if os.fork() == 0:
                    # The node must notice when this supervisor has ended.
                    self._link.close()
                    shutil.rmtree(folder, ignore_errors=True)
                    os._exit(0)

    def _tell(self, ended: frames.Ended) -> None:
        with contextlib.suppress(OSError):
            frames.send(self._link, frames.ENDED, msgspec.msgpack.encode(ended))


def _run(fd: int, settings: QuerySettings, folder: str, parent: int) -> NoReturn:
    """The life of a process, from its fork on."""
    try:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(_OOM_FIRST))
        run_child(socket.socket(fileno=fd), settings, folder)
    finally:
        os._exit(1)


def _file_bytes(pid: int, device: int) -> int:
    """What the files that a process has opened take of a disk. Raises `OSError` if it has ended."""
    taken = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        if int(name) <= _STDERR:
            continue
        with contextlib.suppress(OSError):
            found = os.stat(f"/proc/{pid}/fd/{name}")
            if stat.S_ISREG(found.st_mode) and found.st_dev == device:
                taken += _BLOCK_BYTES * found.st_blocks
    return taken


def _slow(pid: int) -> None:
    """Give a process the lowest priority from now on."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread), _SLOW_NICE)


if __name__ == "__main__":
    main()

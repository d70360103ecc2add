"""The processes of the story: the cluster, and the workers. And how some of them are killed.

Invariants:
- Each is a child of this process, ends with it, and is ended by its id.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.errors import Unavailable
from herdbook.finding import URL_VARIABLE
from herdbook.mailing.ending import children, end
from herdbook.node.ending_with import ending_with
from herdbook.node.status import read_status

WORKERS: Final = 2
_END_S: Final = 60
_LAST_CHARACTERS: Final = 500
_GRPC: Final = re.compile(r"gRPC at (\S+)")


class Processes:
    """The cluster of `herdbook dev`, in a process of its own, and two workers."""

    def __init__(self, folder: Path, data: Path | None, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._started: set[int] = set()
        kept = () if data is None else ("--data", str(data))
        with self._log("dev").open("wb") as log:
            self._dev = self._start(
                "dev", "--json", "--grace-ms", "60000", *kept, stdout=subprocess.PIPE, stderr=log
            )
        self._facts: dict[str, Any] = {}

    def wait_until_up(self) -> None:
        """Return when the cluster can be used. Raises `Unavailable`."""
        assert self._dev.stdout is not None
        line = self._dev.stdout.readline()
        if not line:
            raise Unavailable(f"the cluster did not start: {self._said('dev')}")
        self._facts = msgspec.json.decode(line)

    @property
    def url(self) -> str:
        """The cluster's."""
        return str(self._facts["url"])

    @property
    def login(self) -> str:
        """Where a browser is logged in to the console, once."""
        return str(self._facts["login"])

    def start_workers(self) -> None:
        """Start the workers, which wait for tasks."""
        for number in range(1, WORKERS + 1):
            name = f"worker-{number}"
            with self._log(name).open("wb") as log:
                words = ("--tasks", "herdbook.mailing.work", "--name", name, "--processes", "1")
                self._start("worker", *words, stdout=log, stderr=log)

    def kill_node(self, grpc: str, *, leading: bool) -> str:
        """`kill -9` of the node whose broker is reached there, or of another one; its name."""
        members = read_status(Path(self._facts["folder"], ".node")).members
        for name, state in sorted(members.items(), reverse=True):
            found = _GRPC.search(state.at.get("broker", ""))
            if state.pid and found is not None and (found[1] == grpc) is leading:
                os.kill(state.pid, signal.SIGKILL)
                return name
        raise Unavailable("no node to kill: they are not all up")

    def cut_short(self) -> None:
        """End what a thread may wait for: a cluster that is not up yet, and Spark's Java."""
        if not self._facts:
            self._dev.terminate()
        end(children() - self._started)

    def nodes_up(self) -> int:
        """How many nodes serve."""
        members = read_status(Path(self._facts["folder"], ".node")).members
        return sum(state.state == "serving" for state in members.values())

    def _start(self, *words: str, stdout: Any, stderr: Any) -> "subprocess.Popen[bytes]":
        environment = dict(os.environ)
        if words[0] == "worker":
            environment[URL_VARIABLE] = self.url
        process = subprocess.Popen(
            [sys.executable, "-m", "herdbook", *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            # Ctrl-C is for this process, which ends the others in their order.
            start_new_session=True,
            preexec_fn=ending_with(os.getpid()),
        )
        self._started.add(process.pid)
        self._stack.callback(_end, process)
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _said(self, name: str) -> str:
        return " ".join(self._log(name).read_text(errors="replace").split())[-_LAST_CHARACTERS:]


@contextmanager
def running(folder: Path, data: Path | None) -> Iterator[Processes]:
    """The cluster as long as the block lasts; it starts with it, and is not waited for."""
    with ExitStack() as stack:
        yield Processes(folder, data, stack)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()

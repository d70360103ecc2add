"""A real cluster for Spark's tests: ZooKeeper, three bookies and a node, each a process.

Invariants:
- Every process is a child of this one and is stopped by its process id.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from engine.errors import EngineError
from engine.place import Place, held_client, let_go
from herd.nodes import SpaceCommands
from herd.place import let_go as let_go_of_herd
from herdbook.zookeeper_server import ZooKeeperServer
from tests.acceptance.machines import ROOT, TimedOut, free_port

BOOKIES: Final = 3
_CHROOT: Final = "/spark"
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.05


class Process:
    """One command of `python -m herdbook`."""

    def __init__(self, log: Path, *arguments: str, runtime: str | None = None) -> None:
        """Its sockets beside ports are in `runtime`, if that is named: nobody else finds them."""
        self._log = log
        self._arguments = arguments
        self._environment = None if runtime is None else {**os.environ, "XDG_RUNTIME_DIR": runtime}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it serves a little later."""
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "herdbook", *self._arguments],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """`kill -9`, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class RunningCluster:
    """What a test works with."""

    def __init__(self, url: str, bookies: list[Process], node: Process) -> None:
        self.url = url
        self.bookies = bookies
        self.node = node

    def until_registered(self, count: int) -> None:
        """Wait until so many bookies are there."""

        def there() -> bool:
            held = held_client(Place(url=self.url))
            return len(held.run(lambda: held.client.store.children("/bookies"))) == count

        until(f"{count} bookies are there", there)

    def has_node(self) -> bool:
        """Whether a node runs tablespaces."""
        held = held_client(Place(url=self.url))
        client = held.client
        return bool(held.run(SpaceCommands(client.store, client.clock, client.rng).nodes))


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait until a condition of the processes outside holds. Raises `TimedOut`, naming it."""
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            if holds():
                return
        except EngineError as error:
            what = f"{what} ({error})"
        if time.monotonic() > end_s:
            raise TimedOut(f"not within {_PATIENCE_S:.0f} s: {what[:500]}")
        # Nothing in this process tells of a change in another one.
        threading.Event().wait(_POLL_S)


@contextmanager
def running_cluster(folder: Path) -> Iterator[RunningCluster]:
    """A cluster as long as the block lasts."""
    zookeeper = ZooKeeperServer(folder / "zookeeper", port=free_port())
    zookeeper.start()
    url = f"herdbook://{zookeeper.hosts}{_CHROOT}"
    # What is connected to bookies shows by their ports, and tests look for that.
    runtime = tempfile.mkdtemp(dir="/tmp")
    hosts = f"{zookeeper.hosts}{_CHROOT}"
    bookies = [_bookie(number, folder, hosts, runtime) for number in range(BOOKIES)]
    node = _node(folder, url)
    try:
        for bookie in bookies:
            bookie.start()
        cluster = RunningCluster(url, bookies, node)
        cluster.until_registered(BOOKIES)
        node.start()
        until("the node is there", cluster.has_node)
        yield cluster
    finally:
        let_go_of_herd(Place(url=url))
        let_go(Place(url=url))
        for process in (node, *bookies):
            process.kill()
        zookeeper.stop()
        shutil.rmtree(runtime)


def _bookie(number: int, folder: Path, hosts: str, runtime: str) -> Process:
    return Process(
        folder / f"bookie-{number}.log",
        *("bookie", "--data", str(folder / f"bookie-{number}"), "--zookeeper", hosts),
        *("--listen", f"127.0.0.1:{free_port()}", "--host", f"machine-{number}"),
        *("--repair-grace-ms", "600000"),
        runtime=runtime,
    )


def _node(folder: Path, url: str) -> Process:
    return Process(
        folder / "node.log",
        *("herd", "node", "--data", str(folder / "node"), "--url", url),
        *("--listen", f"127.0.0.1:{free_port()}"),
    )

"""A node that may have too few files open for all who come turns newcomers away, and goes on."""

import itertools
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

import herdbook
from herd.errors import StorageFailed

FILES: Final = 128
"""A node at rest has about half of them."""
CROWD: Final = 200
SERVE: Final = (
    *("bash", "-c", f'ulimit -n {FILES}; exec "$@"', "bash"),
    *(sys.executable, "-m", "herdbook", "serve", "--set", "http.listen=127.0.0.1:0"),
    *("--set", "broker.listen=127.0.0.1:0", "--set", "broker.grpc=127.0.0.1:0"),
)
_PATIENCE_S: Final = 60.0


class Node:
    """A node of a folder that may have few files open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            words = [*SERVE, "--data", str(self.folder)]
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.until(lambda: re.search("^ready$", self.log(), re.MULTILINE) is not None)
        [self.http] = re.findall(r"http serves at (\S+)", self.log())

    def log(self) -> str:
        return self._log.read_text()

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def until(self, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not holds():
            assert self._process.poll() is None and time.monotonic() < end_s, self.log()
            # Nothing tells this process of what happens in that one.
            time.sleep(0.1)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(_PATIENCE_S)

    def answers(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.http}/health/live", timeout=5.0).status_code == 200
        return False

    def doors(self) -> list[str]:
        """The Unix sockets at which it listens."""
        found = (json.loads(lock.read_text() or "{}") for lock in self.folder.rglob("lock"))
        return [said["address"].removeprefix("unix:") for said in found if said]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with closing(Node(tmp_path)) as found:
        yield found


def crowd(node: Node, stack: ExitStack) -> None:
    """Many who connect and say nothing, from many addresses and through every door."""
    url = httpx.URL(node.http)
    doors: list[tuple[int, Any]] = [
        (socket.AF_INET, (url.host, url.port)),
        *((socket.AF_UNIX, at) for at in node.doors()),
    ]
    for number, (family, at) in zip(range(CROWD), itertools.cycle(doors), strict=False):
        end = stack.enter_context(socket.socket(family))
        end.settimeout(0.2)
        if family == socket.AF_INET:
            end.bind((f"127.0.1.{number % 200 + 1}", 0))
        with suppress(OSError):
            end.connect(at)


def test_a_node_with_few_files_refuses_newcomers_and_serves_those_who_are_there(
    node: Node,
) -> None:
    with herdbook.open(node.folder) as book, book.sql(autocommit=True) as connection:
        connection.execute("CREATE TABLE cow (id BIGINT PRIMARY KEY)")
        bucket = book.blobs.create_bucket("photos")
        with ExitStack() as stack:
            crowd(node, stack)
            assert not node.answers()
            for number in range(20):
                connection.execute(f"INSERT INTO cow VALUES ({number})")
                bucket.put(str(number), b"moo")
            assert connection.execute("SELECT count(*) FROM cow").fetchall() == [(20,)]
            assert bucket.get("7") == b"moo"
            assert node.open_files() < FILES
        node.until(node.answers)
        with pytest.raises(StorageFailed, match=r"LimitNOFILE= .*ulimit -n"):
            for number in range(FILES):
                connection.execute(f"CREATE TABLESPACE space{number}")
        connection.execute("INSERT INTO cow VALUES (20)")
    with herdbook.open(node.folder) as another, another.sql(autocommit=True) as connection:
        connection.execute("DROP TABLESPACE space0")
        assert connection.execute("SELECT count(*) FROM cow").fetchall() == [(21,)]
    assert node.answers()
    assert "Traceback" not in node.log()
    assert f"a process of this node may have {FILES}, less than" in node.log()

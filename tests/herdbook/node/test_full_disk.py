"""A served folder on a real file system of 64 MiB that other files fill up."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import SkipTest

import grpc
import httpx
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from herdbook.zookeeper_server import free_port
from tests.herdbook.node.commands import Running, called, running

RESERVE_BYTES = 16_000_000
SOON_S = 5.0
QUERY = "/api/v1/tablespaces/default/query"
OBJECTS = "/api/v1/buckets/milk/objects"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system, mounted as long as the test runs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SkipTest(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, left_bytes: int) -> None:
    """Fill the disk until only this many bytes are free."""
    with (disk / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while (free := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) > left_bytes:
            file.write(bytes(min(65_536, free - left_bytes)))


class Node:
    """A command that serves the folder, and a client of its HTTP."""

    def __init__(self, disk: Path) -> None:
        self.data = disk / "data"
        self.errors = disk.parent / "errors"
        self.port = free_port("127.0.0.1")
        self.grpc = f"127.0.0.1:{free_port('127.0.0.1')}"
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=SOON_S)

    def words(self) -> list[str]:
        """The command's words."""
        told = {
            "reserve_bytes": RESERVE_BYTES,
            "http.listen": f"127.0.0.1:{self.port}",
            "broker.listen": f"127.0.0.1:{free_port('127.0.0.1')}",
            "broker.grpc": self.grpc,
        }
        sets = [word for key, value in told.items() for word in ("--set", f"{key}={value}")]
        return ["serve", "--data", str(self.data), *sets]

    def sql(self, text: str) -> int:
        """The status of a statement."""
        return self.http.post(QUERY, json={"sql": text}).status_code

    def refused(self, words: str) -> httpx.Response:
        """The answer to a put once it has these words: once the node has looked at its disk."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < SOON_S:
            reply = self.http.put(f"{OBJECTS}/c", content=bytes(2_000))
            if words in reply.text:
                return reply
        raise AssertionError(f"puts on a full disk are not refused with {words!r}")

    def serves(self, service: str) -> bool:
        """What the health service of the broker's gRPC says."""
        with grpc.insecure_channel(self.grpc) as channel:
            health, asked = HealthStub(channel), HealthCheckRequest(service=service)
            return bool(health.Check(asked).status == HealthCheckResponse.SERVING)

    def why(self) -> str:
        """Why it is not ready; "" if it is."""
        return str(self.http.get("/health/ready").json()["why"])


def kill(command: Running) -> None:
    """End it as a lost machine would."""
    assert command.end(signal.SIGKILL) == -signal.SIGKILL


def test_a_node_on_a_full_disk_reads_and_deletes_and_starts_again(disk: Path) -> None:
    node = Node(disk)
    with node.http:
        with running(node.errors, *node.words()) as command:
            command.until("ready")
            check_full(disk, node)
            kill(command)
        # With the reserve alone it starts, and deletes.
        with running(node.errors, *node.words()) as command:
            command.until("ready")
            check_exhausted(disk, node)
            kill(command)
        node.errors.unlink()
        failed = called(*node.words())
        assert failed.returncode not in (0, 2)
        assert f"{node.data} cannot be opened: a start needs" in failed.stderr
        assert "Traceback" not in failed.stderr and len(failed.stderr.splitlines()) == 1
        (disk / "ballast").unlink()
        with running(node.errors, *node.words()) as command:
            command.until("ready")
            assert node.why() == "" and node.serves("writes")
            assert node.sql("INSERT INTO cows VALUES (4)") == 200
            rows = node.http.post(QUERY, json={"sql": "SELECT id FROM cows ORDER BY id"}).json()
            assert rows["rows"] == [[3], [4]]
            assert command.end() == 0


def check_full(disk: Path, node: Node) -> None:
    """Below its reserve it refuses new data, says why, reads, and deletes."""
    assert node.sql("CREATE TABLE cows (id BIGINT PRIMARY KEY)") == 200
    assert node.sql("INSERT INTO cows VALUES (1), (2), (3)") == 200
    assert node.http.post("/api/v1/buckets", json={"name": "milk"}).status_code == 201
    for name in ("a", "b"):
        assert node.http.put(f"{OBJECTS}/{name}", content=b"moo").status_code == 201
    assert node.http.post("/api/v1/tasks", json={"type": "milk"}).status_code == 201
    assert node.why() == ""
    fill(disk, 8_000_000)
    refused = node.refused(str(node.data))
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_full")
    assert refused.json()["error"]["retryable"] is True
    assert node.sql("INSERT INTO cows VALUES (4)") == 507
    assert node.http.post("/api/v1/tasks", json={"type": "milk"}).status_code == 507
    assert node.sql("SELECT count(*) FROM cows WHERE id > 1") == 200
    assert node.http.get(f"{OBJECTS}/b").content == b"moo"
    assert str(node.data) in node.why()
    shown = called("serve", "--data", str(node.data), "--status")
    assert shown.returncode == 1 and "no space for new data" in shown.stdout
    assert node.sql("DELETE FROM cows WHERE id = 1") == 200
    assert node.http.delete(f"{OBJECTS}/a").is_success
    assert node.http.post("/api/v1/tasks/1/cancel").status_code == 200


def check_exhausted(disk: Path, node: Node) -> None:
    """Started with its reserve alone it deletes; without it reads go on."""
    assert str(node.data) in node.why()
    assert node.serves("herdbook.broker.v1.Broker") and not node.serves("writes")
    assert node.sql("INSERT INTO cows VALUES (4)") == 507
    assert node.sql("DELETE FROM cows WHERE id = 2") == 200
    # The first read closes the ledger that the killed node wrote to, which takes a little room.
    assert node.http.get(f"{OBJECTS}/b").content == b"moo"
    fill(disk, 0)
    assert node.refused("not even deletions").status_code == 507
    assert node.sql("DELETE FROM cows WHERE id = 3") == 507
    assert node.sql("SELECT id FROM cows WHERE id = 3") == 200
    assert node.http.delete(f"{OBJECTS}/b").status_code == 507
    assert node.http.get(f"{OBJECTS}/b").content == b"moo"

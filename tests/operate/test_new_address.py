"""A machine that has another name and another address when its node starts again."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import herdbook
from herdbook.zookeeper_server import ZooKeeperServer
from tests.herdbook.node.commands import called, running

ROLES = ("bookie", "herd", "broker")
DISKS = 3


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody has at an address."""
    ends = [socket.create_server((host, 0)) for _ in range(count)]
    ports = [int(end.getsockname()[1]) for end in ends]
    for end in ends:
        end.close()
    return ports


@contextmanager
def node(folder: Path, url: str, name: str, address: str) -> Iterator[Callable[[], str]]:
    """A node with a disk for each of three bookies, at an address; what it logged."""
    bookie, herd, broker, grpc = (f"{address}:{port}" for port in free_ports(address, 4))
    told = {
        "host": name,
        "bookie.folders": ",".join(str(folder / f"disk-{number}") for number in range(DISKS)),
        "bookie.listen": bookie,
        "herd.listen": herd,
        "broker.listen": broker,
        "broker.grpc": grpc,
    }
    words = [f"{key}={value}" for key, value in told.items()]
    roles = [word for role in ROLES for word in ("--role", role)]
    errors = folder / "errors"
    data = str(folder / "data")
    with running(
        errors,
        *("serve", "--data", data, "--url", url, *roles),
        *(each for word in words for each in ("--set", word)),
    ) as command:
        command.until("ready")
        yield errors.read_text
        assert command.end() == 0, errors.read_text()


def bookies(url: str) -> dict[str, Any]:
    said = called("bookie", "ls", "--url", url, "--json").stdout.splitlines()
    return {line["bookie"]: line for line in map(json.loads, said)}


def test_a_node_with_another_name_and_address_is_the_same_one_and_has_its_data(
    tmp_path: Path,
) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        url = f"herdbook://{zookeeper.hosts}/farm"
        with node(tmp_path, url, "old-name", "127.0.0.21"):
            before = bookies(url)
            with herdbook.connect(url) as cluster, cluster.sql(autocommit=True) as connection:
                connection.execute("CREATE TABLE cow (id BIGINT PRIMARY KEY)")
                connection.execute("INSERT INTO cow VALUES (1)")
                cluster.blobs.create_bucket("photos").put("resi", b"moo")
                task = cluster.tasks.submit("weigh", b"x").id
        with node(tmp_path, url, "new-name", "127.0.0.22") as logged:
            after = bookies(url)
            assert after.keys() == before.keys() and len(after) == DISKS
            for found in after.values():
                assert "127.0.0.22:" in found["address"] and found["host"] == "new-name"
            with herdbook.connect(url) as cluster, cluster.sql(autocommit=True) as connection:
                connection.execute("INSERT INTO cow VALUES (2)")
                rows = connection.execute("SELECT id FROM cow ORDER BY id").fetchall()
                assert rows == [(1,), (2,)]
                assert cluster.blobs.bucket("photos").get("resi") == b"moo"
                assert cluster.tasks.get(task).status.name == "WAITING"
            assert "Traceback" not in logged()

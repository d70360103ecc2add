"""`herdbook blob` and `blobit://` over a real cluster: ZooKeeper, bookies and a node of names."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import fsspec
import pytest
from click.testing import CliRunner
from typer.main import get_command

import herdbook
from broker.worker import task
from herdbook import blob_store
from herdbook.cli.blob import app
from herdbook.payload_store import BUCKET
from tests.acceptance.machines import free_port
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper

COMMAND: Any = get_command(app)
START_TIMEOUT_S = 30


@contextmanager
def running(*arguments: str) -> Iterator[None]:
    """A process of `herdbook`, from its first line on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "herdbook", *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "HERDBOOK_URL": ""},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_TIMEOUT_S)
        process.stdout.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = shared_zookeeper().hosts + fresh_chroot()
    folder = tmp_path_factory.mktemp("cluster")
    disks = [part for number in range(3) for part in ("--data", str(folder / f"disk-{number}"))]
    listen = ("--listen", "127.0.0.1:0")
    node = ("--data", str(folder / "node"), "--url", f"herdbook://{address}")
    with (
        running("bookie", "--zookeeper", address, *listen, *disks),
        running("herd", "node", *node, "--listen", f"127.0.0.1:{free_port()}"),
    ):
        yield f"herdbook://{address}"
        blob_store.let_go(f"herdbook://{address}")


def said(url: str, *arguments: str, typed: bytes | None = None) -> str:
    answer = CliRunner().invoke(COMMAND, [*arguments, "--url", url], input=typed)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_a_folder_goes_into_a_cluster_and_comes_back(url: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number in range(30):
        file = source / f"folder-{number % 3}" / str(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes([number]) * number * 1_000)
    (source / "big").write_bytes(bytes(3_000_000))
    said(url, "mb", "cows", "--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2")
    assert "31 put" in said(url, "put", "-r", str(source), "cows/all")
    assert said(url, "put", "-r", str(source), "cows/all") == "in cows/all: 31 there already\n"
    assert "31 got" in said(url, "get", "-r", "cows/all", str(tmp_path / "back"))
    for file in (path for path in source.rglob("*") if path.is_file()):
        assert (tmp_path / "back" / file.relative_to(source)).read_bytes() == file.read_bytes()
    (facts,) = map(json.loads, said(url, "stat", "cows", "--json").splitlines())
    assert facts["tablespace"] == "blobs__pool_1" and facts["ensemble"] == 3
    told = json.loads(said(url, "pool", "--buckets", "500", "--json"))
    assert told["limits"]["buckets"] == 500
    assert [each["tablespace"] for each in told["tablespaces"]] == ["blobs__pool_1"]
    assert "at most 500 buckets; new ones up to 10,000,000 objects" in said(url, "pool")
    assert said(url, "move", "cows") == "bucket cows is in blobs__pool_2\n"
    back = said(url, "move", "cows", "--to", "blobs__pool_1", "--json")
    assert json.loads(back) == {"bucket": "cows", "tablespace": "blobs__pool_1"}
    located = json.loads(said(url, "stat", "cows/all/big", "--locations", "--json"))
    assert all(len(each["bookies"]) == 3 for each in located["locations"])
    said(url, "mv", "-r", "cows/all", "cows/moved")
    assert said(url, "ls", "cows") == "moved/\n"
    # The same place by its url, as pandas and others reach it.
    with fsspec.open("blobit://cows/table.csv", "w", store=url) as written:
        written.write("name\nelsa\n")
    with fsspec.open("blobit://cows/table.csv", "rb", store=url) as read:
        assert read.read() == b"name\nelsa\n"
    assert said(url, "rm", "-r", "cows/moved") == "cows/moved: 31 objects are deleted\n"
    assert said(url, "rb", "--force", "cows") == "bucket cows is deleted\n"


_READ: Final = """
import sys, herdbook
with herdbook.connect(sys.argv[1]) as cluster:
    for number in range(int(sys.argv[2])):
        print(cluster.blobs.bucket(f"bucket-{number:03}").get("cow").decode())
"""


def test_two_hundred_buckets_share_one_tablespace_and_another_process_reads_each(
    url: str,
) -> None:
    numbers = range(200)
    with herdbook.connect(url) as cluster, ThreadPoolExecutor(8) as threads:

        def make(number: int) -> None:
            cluster.blobs.create_bucket(f"bucket-{number:03}").put("cow", b"%d" % number)

        list(threads.map(make, numbers))
        made = {info.name: info.tablespace for info in cluster.blobs.buckets()}
        assert {made[f"bucket-{number:03}"] for number in numbers} == {"blobs__pool_1"}
    read = subprocess.run(
        [sys.executable, "-c", _READ, url, str(len(numbers))],
        capture_output=True,
        check=True,
        timeout=START_TIMEOUT_S * 4,
    )
    assert read.stdout.split() == [b"%d" % number for number in numbers]


@task(name="cluster.turn")
def turn(data: bytes) -> bytes:
    """Run by a worker of the cluster."""
    return data[::-1]


def test_big_payloads_of_tasks_pass_through_a_cluster(url: str, tmp_path: Path) -> None:
    serve = ("task", "serve", "--url", url, "--state", str(tmp_path / "state"))
    worker = ("worker", "--tasks", __name__, "--url", url, "--processes", "1")
    with (
        running(*serve, "--listen", "127.0.0.1:0", "--grpc", f"127.0.0.1:{free_port()}"),
        running(*worker),
        herdbook.connect(url) as cluster,
    ):
        picture = bytes(range(256)) * 12_000
        handle = cluster.tasks.submit(turn, picture)
        assert handle.wait(60_000) == picture[::-1]
        assert len(list(cluster.blobs.bucket(BUCKET).scan())) == 2


def test_one_object_has_all_of_a_cluster(url: str) -> None:
    with herdbook.connect(url) as cluster:
        cluster.herd.create_tablespace("barn")
        with cluster.sql("barn", autocommit=True) as connection:
            connection.execute("CREATE TABLE calf (id INT PRIMARY KEY, name TEXT)")
        calves = cluster.table("calf", "barn")
        calves.put({"id": 1, "name": "Zenzi"})
        assert list(calves.scan()) == [{"id": 1, "name": "Zenzi"}]
        with cluster.changes("barn", tables=["calf"]) as changes:
            told = [next(changes).changes[0] for _ in range(2)]
        assert [(each.kind.value, each.row) for each in told] == [
            ("define", None),
            ("put", {"id": 1, "name": "Zenzi"}),
        ]
        writer = cluster.ledgers.create_ledger(2, 2, 2)
        writer.append(b"moo")
        reader = cluster.ledgers.open_ledger(writer.ledger_id)
        assert [entry.body for entry in reader.read(0, 0)] == [b"moo"]

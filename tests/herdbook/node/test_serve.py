"""`herdbook serve` as a real process: a node of a cluster with all roles, and a folder alone."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import herdbook
from engine.errors import InvalidRequest
from herdbook.node.serving import serve_node
from herdbook.node.settings import BrokerTable, HttpTable, NodeSettings, Role
from herdbook.node.status import read_status
from herdbook.zookeeper_server import free_port
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.herdbook.node.commands import Running, called, running
from tests.herdbook.node.test_supervisor import runs

HOST = "127.0.0.1"


def address() -> str:
    """One that nobody listens at."""
    return f"{HOST}:{free_port(HOST)}"


def open_to_others(folder: Path) -> list[str]:
    """What others than the owner may enter or read in a folder, and the folder itself."""
    found = [folder, *folder.rglob("*")]
    return [str(each) for each in found if each.lstat().st_mode & 0o077]


class Node:
    """A node with three bookies that is everything, and its file."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "node"
        # As earlier versions made them.
        for made in ("node", "node/herd", "one"):
            (folder / made).mkdir(mode=0o755)
        self.url = f"herdbook://{shared_zookeeper().hosts}{fresh_chroot()}"
        self.http = address()
        self.file = folder / "node.toml"
        self.file.write_text(
            f"""
roles = ["bookie", "repair", "herd", "broker", "http"]
data = "node"
url = "{self.url}"
[bookie]
folders = ["one", "two", "three"]
listen = "{address()}"
[herd]
listen = "{address()}"
[broker]
listen = "{address()}"
grpc = "{address()}"
[http]
listen = "{self.http}"
[supervisor]
restart_pause_ms = 1
silence_ms = 3000
"""
        )

    def pids(self) -> dict[str, int]:
        """Its processes, by role."""
        members = read_status(self.data / ".node").members
        return {name: each.pid for name, each in members.items()}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A node that is described, and does not run yet."""
    return Node(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def served(node: Node) -> Iterator[Running]:
    """That node, serving."""
    with running(node.data.parent / "errors", "serve", "--config", str(node.file)) as command:
        command.until("ready")
        yield command


def test_a_file_is_checked_and_shown_without_being_served(node: Node, tmp_path: Path) -> None:
    config = ("serve", "--config", str(node.file))
    assert "no errors: " in called(*config, "--check").stdout
    shown = called(
        *config, "--print", "--set", "herd.replica_grace_ms=7", HERDBOOK_RACK="/a"
    ).stdout
    assert "replica_grace_ms = 7" in shown and 'rack = "/a"' in shown
    refused = called(*config, "--check", "--set", "herd.listn=x", "--set", "broker.lease_ms=1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 2, refused.stderr
    assert not (tmp_path / "node").exists()


def test_each_role_has_a_process_and_says_where_it_serves(node: Node, served: Running) -> None:
    said = [line.split()[0] for line in served.lines if " serves at " in line]
    assert set(said) == {"bookie", "broker", "herd", "http", "repair"}
    assert said[0] == "bookie"
    pids = node.pids()
    assert len({*pids.values(), served.process.pid}) == 6
    shown = called("serve", "--config", str(node.file), "--status", "--json")
    told: dict[str, Any] = json.loads(shown.stdout)
    assert {name: each["pid"] for name, each in told["members"].items()} == pids
    assert {each["state"] for each in told["members"].values()} == {"serving"}


def test_what_all_its_roles_are_for_works(node: Node, served: Running) -> None:
    with herdbook.connect(node.url) as cluster:
        cluster.blobs.create_bucket("photos").put("elsa", b"moo")
        task = cluster.tasks.submit("milk", {"cow": "elsa"})
        with cluster.sql(autocommit=True) as connection:
            connection.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
    through = f"http://{node.http}/api/v1"
    got = httpx.get(f"{through}/buckets/photos/objects/elsa", timeout=30)
    assert (got.status_code, got.content) == (200, b"moo")
    assert httpx.get(f"{through}/tasks/{task.id}", timeout=30).json()["type"] == "milk"
    assert called("serve", "--config", str(node.file)).stderr.startswith("FolderLocked: ")


def test_nobody_else_may_read_what_any_of_its_roles_keeps(node: Node, served: Running) -> None:
    folders = [node.data, *(node.data.parent / name for name in ("one", "two", "three"))]
    assert [each for folder in folders for each in open_to_others(folder)] == []


def test_a_role_that_is_killed_comes_back_beside_the_others(node: Node, served: Running) -> None:
    before = node.pids()
    os.kill(before["herd"], signal.SIGKILL)
    served.until("herd serves at")
    after = node.pids()
    assert after["herd"] != before["herd"] and not runs(before["herd"])
    assert {**after, "herd": 0} == {**before, "herd": 0}
    assert "herd   | it was ended by SIGKILL; it starts again in 1 ms" in served.errors()


def test_a_role_whose_loop_stands_still_does_not_count_as_serving(
    node: Node, served: Running
) -> None:
    pid = node.pids()["repair"]
    os.kill(pid, signal.SIGSTOP)
    try:
        until_state(node, "repair", "silent")
        shown = called("serve", "--config", str(node.file), "--status", "--json")
        assert shown.returncode == 1
        ready = httpx.get(f"http://{node.http}/health/ready", timeout=30)
        assert (ready.status_code, ready.json()["why"]) == (503, "repair is silent")
    finally:
        os.kill(pid, signal.SIGCONT)
    until_state(node, "repair", "serving")
    assert node.pids()["repair"] == pid


def until_state(node: Node, role: str, state: str) -> None:
    """Wait until the supervisor says this of a role."""
    for _ in range(1_000):
        if read_status(node.data / ".node").members[role].state == state:
            return
        # What it waits for is a process.
        signal.sigtimedwait((), 0.02)
    raise AssertionError(read_status(node.data / ".node"))


def test_told_to_stop_it_leaves_in_order_and_no_process_behind(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with running(tmp_path / "errors", "serve", "--config", str(node.file)) as command:
        command.until("ready")
        pids = node.pids()
        assert command.end() == 0, command.errors()
        end = "draining, for 60 s at most; a second signal ends it at once"
        assert command.lines[-1] == end
        assert not any(runs(pid) for pid in pids.values())
        assert "Traceback" not in command.errors() and "leaked" not in command.errors()
    gone = called("serve", "--config", str(node.file), "--status")
    assert (gone.returncode, gone.stderr) == (1, f"no node runs in {node.data}\n")


def test_a_role_that_cannot_serve_ends_the_node_with_one_line(tmp_path: Path) -> None:
    """The folder of another cluster is no matter of trying again."""
    node = Node(tmp_path)
    roles = ("--set", "roles=bookie")
    with running(tmp_path / "errors", "serve", "--config", str(node.file), *roles) as first:
        first.until("ready")
        assert first.end() == 0
    elsewhere = f"herdbook://{shared_zookeeper().hosts}{fresh_chroot()}"
    refused = called("serve", "--config", str(node.file), *roles, "--url", elsewhere)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("NodeFailed: bookie: FolderMismatch: ")


@pytest.mark.parametrize("url", ["", "herdbook://127.0.0.1:9/x"])
def test_ports_that_somebody_has_are_named_with_what_moves_them_and_nothing_is_made(
    tmp_path: Path, url: str
) -> None:
    data = tmp_path / "data"
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        taken = [f"{HOST}:{each.getsockname()[1]}" for each in (one, other)]
        told = NodeSettings(
            data=str(data),
            url=url,
            roles=(Role.BROKER, Role.HTTP),
            broker=BrokerTable(listen=address(), grpc=taken[0]),
            http=HttpTable(listen=taken[1]),
        )
        said = (
            f"{taken[0]} is in use: name another, --set broker.grpc=HOST:PORT; "
            f"{taken[1]} is in use: name another, --set http.listen=HOST:PORT"
        )
        with pytest.raises(InvalidRequest) as refused:
            asyncio.run(serve_node(told, print))
        assert str(refused.value) == said
        assert not data.exists()
        # Nor does it begin where a node was before.
        told.own_folder.mkdir(parents=True)
        with pytest.raises(InvalidRequest):
            asyncio.run(serve_node(told, print))


def test_a_folder_alone_is_served_in_one_process(tmp_path: Path) -> None:
    data, http = tmp_path / "data", address()
    # As somebody made it.
    data.mkdir(mode=0o755)
    words = ["serve", "--data", str(data), "--set", f"http.listen={http}"]
    words += ["--set", f"broker.listen={address()}", "--set", f"broker.grpc={address()}"]
    with running(tmp_path / "errors", *words) as command:
        command.until("ready")
        made = called("sql", "-c", "CREATE TABLE cow (id INT PRIMARY KEY)", HERDBOOK_URL=str(data))
        assert made.returncode == 0, made.stderr
        tables = httpx.get(f"http://{http}/api/v1/tablespaces/default/tables", timeout=30)
        assert "cow" in tables.text
        assert open_to_others(data) == []
        assert command.end(signal.SIGINT) == 0, command.errors()
    with herdbook.open(data) as book, book.sql() as connection:
        assert connection.execute("SELECT count(*) FROM cow").fetchone() == (0,)


def test_a_folders_killed_node_restarts_with_the_same_command(
    tmp_path: Path,
) -> None:
    """Both alone, and next to a program that has taken over from the node."""
    data, errors = tmp_path / "data", tmp_path / "errors"
    words = ["serve", "--data", str(data), "--set", f"http.listen={address()}"]
    words += ["--set", f"broker.listen={address()}", "--set", f"broker.grpc={address()}"]
    with running(errors, *words) as node:
        node.until("ready")
        submitted = called("task", "submit", "milk", HERDBOOK_URL=str(data))
        assert submitted.stdout == "1\n", submitted.stderr
        node.end(signal.SIGKILL)
    with running(errors, *words) as node:
        node.until("ready")
        with herdbook.open(data) as book:
            assert book.tasks.get(1).type == "milk"
            with book.sql(autocommit=True) as connection:
                connection.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
                node.end(signal.SIGKILL)
            with book.sql(autocommit=True) as connection:
                connection.execute("INSERT INTO cow VALUES (7)")
            assert book.tasks.submit("milk").id == 2
            with running(errors, *words) as again:
                again.until("ready")
                shown = called("task", "show", "2", "--json", HERDBOOK_URL=str(data))
                assert json.loads(shown.stdout)["type"] == "milk", shown.stderr
                book.close()
                found = called("sql", "-c", "SELECT id FROM cow", HERDBOOK_URL=str(data))
                assert "7" in found.stdout, found.stderr
                assert again.end() == 0, again.errors()

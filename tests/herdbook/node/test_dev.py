"""`herdbook dev`: a whole cluster as one command."""

import json
import os
import re
import shlex
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import herdbook
from herdbook.cli.dev import say_what_to_try
from herdbook.cli.main import app
from herdbook.node.dev import DevCluster, DevSettings, Fates
from herdbook.node.supervisor import MemberState
from tests.herdbook.node.commands import Running, called, running
from tests.herdbook.node.test_supervisor import runs

LOOKS_MAX = 200


def facts_of(command: Running) -> dict[str, Any]:
    """What it prints when it can be used."""
    told: dict[str, Any] = json.loads(command.until("url"))
    return told


def ports_of(facts: dict[str, Any]) -> list[int]:
    """Where it listened, as far as it says so."""
    places = [
        facts["url"].partition("://")[2],
        *(each.partition("://")[2] for each in facts["console"]),
    ]
    return [int(place.partition("/")[0].rpartition(":")[2]) for place in places]


def test_it_is_used_by_every_way_in_and_is_there_again_with_the_same_data(tmp_path: Path) -> None:
    data = str(tmp_path / "cluster")
    with running(tmp_path / "errors", "dev", "--data", data, "--json") as command:
        facts = facts_of(command)
        assert len(facts["console"]) == 3
        write_through_each_way_in(facts)
        log_in_once(facts["login"])
        lose_a_node_and_get_it_back(command, facts)
        pids = [*facts["pids"].values(), zookeeper_of(data)]
        assert command.end(signal.SIGINT) == 0, command.errors()
        assert not any(runs(pid) for pid in pids)
        # Nothing but this, and no word of a library's.
        assert command.errors().splitlines() == [
            f"node-3 died: it was ended by SIGKILL. It is started again; see {data}/dev.log",
            "node-3 is back",
            f"ended; {data} is kept",
        ]
        for port in ports_of(facts):
            with socket.create_server(("127.0.0.1", port)):
                pass
    with running(tmp_path / "errors", "dev", "--data", data, "--json") as command:
        facts = facts_of(command)
        os.kill(zookeeper_of(data), signal.SIGKILL)
        read_it_all(facts["url"])
        assert f"see {data}/zookeeper/zookeeper.log" in command.errors()
        # A second signal, in the middle of ending, leaves nothing either.
        pids = [*facts["pids"].values(), zookeeper_of(data)]
        command.process.send_signal(signal.SIGTERM)
        command.end(signal.SIGTERM)
        assert not any(runs(pid) for pid in pids)


def write_through_each_way_in(facts: dict[str, Any]) -> None:
    """SQL by the command, an object over HTTP, a task from Python."""
    url = facts["url"]
    statements = ("-c", "CREATE TABLE cow (id INT PRIMARY KEY)", "-c", "INSERT INTO cow VALUES (1)")
    made = called("sql", *statements, HERDBOOK_URL=url)
    assert made.returncode == 0, made.stderr
    api = f"{facts['console'][1]}/api/v1"
    assert httpx.post(f"{api}/buckets", json={"name": "photos"}, timeout=30).status_code < 300
    nodes = httpx.get(f"{api}/cluster", timeout=30).json()["nodes"]
    named = sorted(each["host"] for each in nodes if each["role"] in ("bookie", "herd"))
    assert named == ["node-1", "node-1", "node-2", "node-2", "node-3", "node-3"]
    put = httpx.put(f"{api}/buckets/photos/objects/elsa", content=b"moo", timeout=30)
    assert put.status_code < 300, put.text
    with herdbook.connect(url) as cluster:
        task = cluster.tasks.submit("milk", {"cow": "elsa"})
        assert cluster.tasks.get(task.id).type == "milk"


def read_it_all(url: str) -> None:
    """What was written before."""
    with herdbook.connect(url) as cluster:
        assert cluster.blobs.bucket("photos").get("elsa") == b"moo"
        with cluster.sql() as connection:
            assert connection.execute("SELECT id FROM cow").fetchall() == [(1,)]
        assert [task.type for task in cluster.tasks.list().tasks] == ["milk"]


def log_in_once(login: str) -> None:
    """The address that it prints logs a browser in, one time."""
    first, second = (httpx.get(login, timeout=30) for _ in range(2))
    assert "set-cookie" in first.headers and "set-cookie" not in second.headers


def lose_a_node_and_get_it_back(command: Running, facts: dict[str, Any]) -> None:
    """A node that is killed is started again."""
    console = facts["console"][2]
    os.kill(facts["pids"]["node-3"], signal.SIGKILL)
    for _ in range(LOOKS_MAX):
        try:
            if httpx.get(f"{console}/health/ready", timeout=1).status_code == 200:
                return
        except httpx.HTTPError:
            # A request takes its time where nobody listens, too; what it waits for is a process.
            signal.sigtimedwait((), 0.1)
    raise AssertionError(command.errors())


def zookeeper_of(data: str) -> int:
    """The process id of the cluster's ZooKeeper."""
    settings = f"{data}/zookeeper/zoo.cfg".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if settings in words:
            return int(process.name)
    raise AssertionError("no ZooKeeper runs")


def test_a_folder_of_its_own_goes_with_it(tmp_path: Path) -> None:
    with running(tmp_path / "errors", "dev", "--nodes", "1", TMPDIR=str(tmp_path)) as command:
        command.until("Ctrl-C ends it.")
        shown = {line.split()[0]: line.split()[1] for line in command.lines if line[:2] == "  "}
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", shown["console"])
        assert shown["log"] == f"{shown['data']}/dev.log"
        folder = next(line.split()[1] for line in command.lines if line.startswith("  data "))
        assert Path(folder).is_dir() and Path(folder).parent == tmp_path
        assert command.end(signal.SIGINT) == 0, command.errors()
        assert command.errors().splitlines()[-1] == "ended; what it held is removed"
    assert not Path(folder).exists()
    assert tempfile.gettempdir() != str(tmp_path)


def test_told_to_stop_before_it_is_up_it_says_so_by_its_status(tmp_path: Path) -> None:
    with running(tmp_path / "errors", "dev", "--nodes", "1", TMPDIR=str(tmp_path)) as command:
        for _ in range(LOOKS_MAX):
            if "starting ZooKeeper" in command.errors():
                break
            signal.sigtimedwait((), 0.05)
        assert command.end(signal.SIGINT) == 130
        assert command.lines == []
        last = command.errors().splitlines()[-1]
        assert last == "ended before it was up; what it held is removed"
    assert not list(tmp_path.glob("herdbook-dev-*"))


def test_what_becomes_of_nodes_is_told_once_all_of_them_have_served() -> None:
    told: list[str] = []
    fates = Fates(told.append, Path("dev.log"))
    states = {name: MemberState() for name in ("node-1", "node-2")}

    def becomes(state: str, error: str = "") -> None:
        states["node-2"].state, states["node-2"].error = state, error
        fates.note(states)

    for state in ("waiting", "serving"):
        becomes(state, "too early")
    states["node-1"].state = "serving"
    for state in ("serving", "silent", "serving", "serving", "starting", "serving", "ended"):
        becomes(state)
    becomes("waiting", "it fell")
    assert told == [
        "node-2 is silent: its event loop stands still; see dev.log",
        "node-2 is back",
        "node-2 is back",
        "node-2 died: it fell. It is started again; see dev.log",
    ]


def test_ports_that_others_have_are_named_with_those_taken_instead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, moved = "herdbook://127.0.0.1:28451/dev", {"ZooKeeper": (2181, 28451)}
    console = ("http://127.0.0.1:7380",)
    cluster = DevCluster(url, Path("there"), console, "", moved, dict)
    say_what_to_try(cluster, DevSettings(nodes=1))
    assert "\n  in use       ZooKeeper 2181 (now 28451)\n" in capsys.readouterr().out


def test_what_a_cluster_prints_to_try_works_twice_and_beside_the_tutorial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = DevCluster("herdbook://127.0.0.1:2181/dev", tmp_path, ("http://there",), "", {}, dict)
    say_what_to_try(cluster, DevSettings())
    printed = capsys.readouterr().out.splitlines()
    lines = [line.strip() for line in printed if "herdbook " in line and "bookie ls" not in line]
    assert len(lines) == 5
    tutorial = Path("docs/start/tutorial.md").read_text()
    assert all(name not in tutorial for name in (" visit ", "letters"))
    monkeypatch.chdir(tmp_path)
    # A folder takes the same commands, and is there at once.
    with herdbook.open(tmp_path / "data"):
        monkeypatch.setenv("HERDBOOK_URL", str(tmp_path / "data"))
        for command in [each for line in lines * 2 for each in line.split(" && ")]:
            given, piped, told = command.partition(" | ")
            words = shlex.split(told if piped else given)
            answer = CliRunner().invoke(app, words[1:], input=given if piped else None)
            assert answer.exit_code == 0, (command, answer.output)


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    refused = called("dev", "--data", str(tmp_path / "data"), PATH=str(tmp_path), JAVA_HOME="")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "apt-get install openjdk-17-jre-headless" in refused.stderr
    assert not (tmp_path / "data").exists()

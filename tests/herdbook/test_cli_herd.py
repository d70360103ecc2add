"""`herdbook herd` where there is no cluster; with one: `tests/acceptance/test_herd.py`."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import herd
from engine.log import Position
from herd.checking import Difference, Verdict
from herd.nodes.facts import NodeFact, ReplicaReport, SpaceFact
from herdbook.cli.herd import rows_of
from herdbook.cli.main import app

RUNNER = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with herd.open_folder(tmp_path / "data") as opened:
            await opened.make("farm")

    asyncio.run(fill())
    return tmp_path / "data"


def test_a_folders_tablespaces_are_listed_as_its_owners(folder: Path) -> None:
    found = RUNNER.invoke(app, ["herd", "tablespaces", "--url", str(folder), "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["name"], told["expected"], told["replicas"]) == ("farm", 0, [])
    shown = RUNNER.invoke(app, ["herd", "tablespaces", "--url", str(folder)])
    assert "farm" in shown.stdout and "owner" in shown.stdout
    nodes = RUNNER.invoke(app, ["herd", "nodes", "--url", str(folder), "--json"])
    assert nodes.exit_code == 0 and nodes.stdout == ""


def test_tablespaces_are_listed_with_the_names_of_their_nodes() -> None:
    ids = ("49fa42582fed", "b005f2bdb7a9", "ca70f63add58")
    does = {"farm": ReplicaReport("u", "follower", 1, 12, 7)}
    nodes = {
        ids[0]: NodeFact("tcp:127.0.0.1:7180", 1, does, host="node-1"),
        ids[1]: NodeFact("tcp:127.0.0.1:7181", 1, does),
    }
    fact = SpaceFact("u", 1, 3, ids, ids[0])
    [row] = rows_of({"farm": fact}, nodes, {"farm": "tcp:127.0.0.1:7180"})
    leader = ("node-1 49fa4258", "node-1 49fa4258")
    assert row[:5] == ("farm", *leader, "3", "2, 1 missing")
    assert row[5].splitlines() == [
        "node-1 49fa4258 (follower at 12/7)",
        "b005f2bdb7a9 (follower at 12/7)",
        "ca70f63add58 (away)",
    ]
    enough = msgspec.structs.replace(fact, expected=2, by_default=True)
    [row] = rows_of({"farm": enough}, nodes, {"farm": ""})
    assert row[3:5] == ("2 by default", "2")


def test_the_default_number_of_replicas_is_shown_and_set(folder: Path) -> None:
    def told(*words: str) -> str:
        answer = RUNNER.invoke(app, ["herd", "default-replicas", *words, "--url", str(folder)])
        assert answer.exit_code == 0, answer.output
        return answer.stdout.strip()

    assert told() == "3 replicas by default"
    assert json.loads(told("5", "--json")) == {"default_replicas": 5}
    assert told() == "5 replicas by default"
    wrong = RUNNER.invoke(app, ["herd", "set-replicas", "farm", "few", "--url", str(folder)])
    assert wrong.exit_code == 2 and "neither a number" in wrong.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["create", "other"], "no node"),
        (["add-replica", "farm", "n1"], "no node has 'n1'"),
        (["move-leader", "farm", "n1"], "no node has 'n1'"),
        (["set-replicas", "farm", "3"], "owner of its folder"),
        (["set-replicas", "farm", "default"], "owner of its folder"),
        (["drop", "nowhere", "--yes"], "no tablespace nowhere"),
        (["drop", "farm", "--yes"], "owner of its folder"),
    ],
)
def test_what_needs_nodes_says_so_where_there_are_none(
    folder: Path, words: list[str], says: str
) -> None:
    found = RUNNER.invoke(app, ["herd", *words, "--url", str(folder)])
    assert found.exit_code == 1
    assert says in found.stderr and found.stdout == "", found.output


def test_a_node_is_not_run_on_a_folder_nor_keeps_its_states_in_a_cluster(
    folder: Path, tmp_path: Path
) -> None:
    words = ["herd", "node", "--data", str(tmp_path / "node"), "--url", str(folder)]
    found = RUNNER.invoke(app, words)
    assert found.exit_code == 1 and "nodes are for clusters" in found.stderr, found.output
    words = ["herd", "node", "--data", "herdbook://host:1/x", "--url", "herdbook://host:1/x"]
    assert RUNNER.invoke(app, words).exit_code == 2


def test_replicas_are_compared_by_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["herd", "check", "farm", "--url", str(folder)]
    shown = RUNNER.invoke(app, words)
    assert shown.exit_code == 0 and "all replicas agree at " in shown.stdout, shown.output
    told = [json.loads(line) for line in RUNNER.invoke(app, [*words, "--json"]).stdout.splitlines()]
    assert [one["verdict"] for one in told] == ["leader"]
    bad = Verdict(Position(1, 2), (), (Difference("b", "table cow", 1, 2),), (), "a", {})
    monkeypatch.setattr("herd.opening.Herd.check_replicas", lambda *_: bad)
    found = RUNNER.invoke(app, words)
    assert found.exit_code == 1 and "table cow" in found.stdout
    assert RUNNER.invoke(app, [*words, "--json"]).exit_code == 1


def test_a_drop_is_asked_about(folder: Path) -> None:
    found = RUNNER.invoke(app, ["herd", "drop", "farm", "--url", str(folder)], input="n\n")
    assert found.exit_code == 1
    listed = RUNNER.invoke(app, ["herd", "tablespaces", "--url", str(folder), "--json"])
    assert json.loads(listed.stdout)["name"] == "farm"

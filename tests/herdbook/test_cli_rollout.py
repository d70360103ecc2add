"""`herdbook task rollout`, in a folder."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

import herdbook
from herdbook.cli.main import app
from tests.broker.rollouts.agents import document


def rollout(folder: Path, *words: str, status: int = 0, stdin: str | None = None) -> Result:
    call = ["task", "rollout", *words, "--url", str(folder)]
    told = CliRunner().invoke(app, call, input=stdin, env={"COLUMNS": "200", "TERM": "dumb"})
    assert told.exit_code == status, told.output
    return told


def test_an_operator_starts_looks_clears_and_cancels(tmp_path: Path) -> None:
    file, folder = tmp_path / "document.json", tmp_path / "data"
    folder.mkdir()
    file.write_text(json.dumps(document("a", "b", task_id="geo-1")))
    # A folder that nobody made is not made by a look.
    rollout(folder, "ls", status=2)
    with herdbook.open(folder):
        pass
    assert rollout(folder, "start", str(file)).output.strip() == "geo-1"
    again = rollout(folder, "start", "-", stdin=file.read_text(), status=1)
    assert "there is a roll-out geo-1 already" in again.output
    rollout(folder, "start", str(tmp_path / "nowhere"), status=2)
    wrong = json.dumps({**document("a"), "run": "rm"})
    assert "run" in rollout(folder, "start", "-", stdin=wrong, status=1).output
    [listed] = [json.loads(line) for line in rollout(folder, "ls", "--json").output.splitlines()]
    assert listed["name"] == "geo-1" and listed["state"] in ("starting", "running")
    shown = rollout(folder, "show", "geo-1").output
    assert "restart" in shown and "no agent is connected of a and 1 more nodes" in shown
    assert "started: restart 1 of storage" in rollout(folder, "show", "geo-1", "--notes").output
    assert "no node c" in rollout(folder, "clear", "geo-1", "c", status=1).output
    assert "there is no roll-out x" in rollout(folder, "pause", "x", status=1).output
    assert rollout(folder, "cancel", "geo-1").output.strip() == "geo-1 is being cancelled"
    rollout(folder, "resume", "geo-1", status=1)


def test_what_is_wired_up_wrongly_is_told_at_once(tmp_path: Path) -> None:
    with herdbook.open(tmp_path / "data"):
        pass
    serve = ["task", "serve", "--url", str(tmp_path / "data")]
    for option, value in (("--discover", "racks"), ("--on-alarm", "mail 'elsa")):
        assert CliRunner().invoke(app, [*serve, option, value]).exit_code == 2
    agent = ["worker", "--url", str(tmp_path / "data"), "--tasks", "farm", "--agent", "a/b"]
    told = CliRunner().invoke(app, agent)
    assert told.exit_code == 1 and "'a/b' is no node" in told.output

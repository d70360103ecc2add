"""The benchmark of replicas: its commands have the size that it states, and it prints JSON."""

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks import replica
from benchmarks.__main__ import app
from engine.log.position import Position
from engine.state.memory import MemoryState
from examples.replicated_map import MapMachine


def test_every_command_has_the_size_that_is_stated_and_is_carried_out() -> None:
    state, machine = MemoryState(), MapMachine()
    for number in (0, 7, 999_999):
        body = replica.command(number)
        assert len(body) == replica.COMMAND_BYTES
        machine.apply(state, body, Position(1, number))
    assert state.get(b"size") == b"3"


def test_a_quick_scenario_of_replicas_prints_json_and_nothing_else(tmp_path: Path) -> None:
    arguments = ["replica", "--json", "--quick", "--only", "propose-one", "--folder", str(tmp_path)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    (line,) = [json.loads(line) for line in answer.stdout.splitlines()]
    assert (line["subject"], line["scenario"]) == ("replica", "propose-one")
    assert line["value"] > 0 and line["limit"] > 0

"""The benchmark of tables: its rows have the size that it states, its peers the same table."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import herd_peers, herd_postgres
from benchmarks.__main__ import app
from benchmarks.herd_peers import Peer, row, spread, sqlite
from benchmarks.result import Result, show
from herd.rows import encode_row


def test_a_row_has_about_a_hundred_bytes() -> None:
    for number in (0, 99_999, 9_999_999):
        assert 90 <= len(encode_row(list(row(number)))) <= 110


def test_keys_are_spread_over_the_whole_table_and_none_is_outside() -> None:
    keys = spread(1_000, 1_000)
    assert sorted(keys) == list(range(1_000))


def test_a_result_with_peers_says_how_it_stands_beside_each() -> None:
    result = Result("herd", "get-kv", 300.0, "rows/s", None, {"sqlite": 200.0, "postgres": 100.0})
    said = json.loads(result.as_json())
    assert (said["sqlite"], said["ratio_sqlite"], said["ratio_postgres"]) == (200.0, 1.5, 3.0)
    assert "peers" not in said


def test_a_table_of_results_has_a_place_for_each_peer(capsys: pytest.CaptureFixture[str]) -> None:
    show(
        [
            Result("herd", "one", 3.0, "rows/s", None, {"sqlite": 2.0}),
            Result("herd", "two", 1.0, "s", 1.0),
        ]
    )
    shown = capsys.readouterr().out
    assert "sqlite" in shown and "1.50" in shown


def test_sqlite_has_every_commit_on_the_disk_and_all_rows(tmp_path: Path) -> None:
    peer: Peer = sqlite(tmp_path / "peer.sqlite")
    peer.fill(500)
    connection = peer.connect()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    keys = spread(100, 500)
    assert min(peer.update_rate(keys), peer.update_rate(keys, 4), peer.select_rate(keys)) > 0
    assert peer.insert_rate(500, 200) > 0 and peer.aggregate_s() > 0
    changed = "SELECT count(*), sum(amount) - sum(id * 7 % 1000) FROM accounts"
    assert connection.execute(changed).fetchone() == (700, 200)
    connection.close()


def test_a_thread_that_fails_is_heard_of() -> None:
    def work(place: int) -> None:
        raise KeyError(place)

    with pytest.raises(KeyError):
        herd_peers.at_once(2, work)


def test_the_newest_postgres_is_found_or_none(tmp_path: Path) -> None:
    for version in ("9.6", "15", "16.1"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "initdb").touch()
    assert herd_postgres.programs("", tmp_path) == tmp_path / "16.1" / "bin"
    assert herd_postgres.programs("", tmp_path / "nothing") is None


def test_a_folder_that_another_user_cannot_reach_has_no_postgres(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert not herd_postgres._open_to_all(closed)
    with herd_postgres.postgres(closed) as connect:
        assert connect is None or os.geteuid() != 0
    assert list(closed.iterdir()) == []


@pytest.mark.parametrize("scenario", ["update-pk-many", "get-kv", "checkpoint-p999"])
def test_a_quick_scenario_of_tables_prints_json_and_nothing_else(
    tmp_path: Path, scenario: str
) -> None:
    arguments = ["herd", "--json", "--quick", "--only", scenario, "--folder", str(tmp_path)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert scenario in [line["scenario"] for line in lines]
    assert all(line["subject"] == "herd" and line["value"] > 0 for line in lines)
    if scenario != "checkpoint-p999":
        assert all(line["ratio_sqlite"] > 0 for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_opening_a_folder_whose_owner_was_killed_is_measured(tmp_path: Path) -> None:
    arguments = ["herd", "--json", "--quick", "--only", "open-1000-tables"]
    answer = CliRunner().invoke(app, [*arguments, "--folder", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["scenario"] for line in lines] == ["open-1000-tables", "open-1000-tables-killed"]
    assert all(0 < line["value"] < line["limit"] for line in lines)

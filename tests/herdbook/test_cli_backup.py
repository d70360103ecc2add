"""Backups, checkpoints and rows in files, by command."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import herd
from herdbook.cli.main import app


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"HERDBOOK_URL": ""})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("store")
    with herd.connect(path, autocommit=True) as connection:
        connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT, milk DECIMAL(6, 2))")
        connection.execute("CREATE VIEW milker AS SELECT id FROM cow WHERE milk > 0")
        connection.execute("INSERT INTO cow VALUES (1, 'Elsa', 21.5), (2, NULL, NULL)")
    # Who opens a folder that is open opens it at once.
    with herd.open_herd(path) as opened, opened.connect():
        yield path


def cows(folder: Path, tablespace: str = "default") -> list[tuple[object, ...]]:
    with herd.connect(folder, tablespace) as connection:
        return connection.execute("SELECT id, name, CAST(milk AS TEXT) FROM cow").fetchall()


def test_a_backup_is_checked_and_becomes_another_tablespace(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "cows.herd"
    made = call("backup", folder, file, "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout) == {"file": str(file), "bytes": file.stat().st_size}
    assert call("backup", folder, file).exit_code == 1
    facts = json.loads(call("check-backup", file, "--json").stdout)
    assert facts["tables"] == [{"name": "cow", "rows": 2, "pages": 1}]
    assert (facts["tablespace"], facts["views"], facts["rows"]) == ("default", ["milker"], 2)
    assert "cow" in call("check-backup", file).stdout
    restored = call("restore", file, tmp_path / "other", "sales", "--create")
    assert restored.exit_code == 0 and "2 rows in 1 table" in restored.stdout, restored.output
    assert cows(tmp_path / "other", "sales") == cows(folder)
    again = call("restore", file, tmp_path / "other", "sales")
    assert again.exit_code == 1 and "there is a tablespace sales already" in again.stderr


def test_a_tablespace_is_restored_to_a_position_that_its_changes_show(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with herd.connect(folder, autocommit=True) as connection:
        connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT, milk DECIMAL(6, 2))")
        connection.execute("INSERT INTO cow VALUES (1, 'Elsa', 21.5)")
        connection.execute("CREATE TABLE horse (id INT PRIMARY KEY)")
        connection.execute("DELETE FROM cow")
    shown = call("changes", folder, "--json", "--table", "cow")
    assert shown.exit_code == 0, shown.output
    made, put, gone = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [one["kind"] for one in (made, put, gone)] == ["define", "put", "delete"]
    assert put["row"] == {"id": 1, "name": "Elsa", "milk": "21.50"}
    position = f"{put['ledger']}/{put['entry']}"
    later = call("changes", folder, "--after", position).stdout.splitlines()
    assert [line.split()[1:3] for line in later] == [["horse", "define"], ["cow", "delete"]]
    assert later[-1].endswith("  cow  delete  id = 1"), "which row it was"
    assert (gone["key"], gone["row"], made["key"]) == ({"id": 1}, None, None)
    restored = call("restore-until", folder, "default", position, "then", "--json")
    assert restored.exit_code == 0, restored.output
    assert json.loads(restored.stdout)["tablespace"] == "then"
    assert cows(folder, "then") == [(1, "Elsa", "21.50")] and cows(folder) == []
    again = call("restore-until", folder, "default", position, "then")
    assert again.exit_code == 1 and "already" in again.stderr
    assert call("restore-until", folder, "default", "yesterday", "other").exit_code == 2
    assert call("changes", folder, "--after", "1").exit_code == 2


def test_a_damaged_backup_is_found_before_anything_is_made(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "cows.herd"
    call("backup", folder, file)
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    for command in (["check-backup", file], ["restore", file, folder, "sales"]):
        answer = call(*command)
        assert answer.exit_code == 1 and answer.stderr.startswith("CannotRead: "), answer.output
    assert call("check-backup", tmp_path / "nowhere").exit_code == 1
    with herd.open_herd(folder) as opened:
        assert opened.names() == ["default"]


def test_a_checkpoint_is_taken_by_command(folder: Path) -> None:
    answer = call("checkpoint", folder)
    assert (answer.exit_code, answer.stdout) == (0, "default has a new checkpoint\n")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_rows_go_to_files_and_come_back(folder: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"cows.{suffix}"
    written = call("export", folder, "cow", file, "--json")
    assert json.loads(written.stdout) == {"file": str(file), "rows": 2}
    other = tmp_path / "other"
    with herd.connect(other, autocommit=True) as connection:
        connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT, milk DECIMAL(6, 2))")
    added = call("import", other, "cow", file, "--commit-rows", "1")
    assert (added.exit_code, added.stdout) == (0, "2 rows were added to cow\n"), added.output
    assert sorted(cows(other)) == sorted(cows(folder))
    again = call("import", other, "cow", file)
    assert again.exit_code == 1 and "23505" in again.stderr
    assert call("export", folder, "cow", file).exit_code == 1


def test_a_query_goes_to_lines_of_json(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "cows.jsonl"
    answer = call("export", folder, "SELECT id, milk FROM cow ORDER BY id", file)
    assert answer.stdout == f"2 rows are in {file}\n"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [{"id": 1, "milk": "21.50"}, {"id": 2, "milk": None}]


def test_what_cannot_be_written_or_read_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"moo")
    for command in (
        ["export", folder, "cow", tmp_path / "cows.txt"],
        ["export", folder, "horse", tmp_path / "horse.csv"],
        ["export", folder, "cow", tmp_path / "no" / "cows.csv"],
        ["import", folder, "cow", tmp_path / "broken.parquet"],
        ["import", folder, "cow", tmp_path / "nowhere.csv"],
        ["import", folder, "horse", tmp_path / "broken.parquet"],
        ["backup", folder, tmp_path / "no" / "cows.herd"],
    ):
        answer = call(*command)
        assert answer.exit_code == 1 and answer.stderr, command
        assert not isinstance(answer.exception, OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.parquet"]
    assert call("backup", tmp_path / "nowhere", tmp_path / "x.herd").exit_code == 2


def test_the_commands_work_beside_a_program_that_has_the_folder_open(
    folder: Path, tmp_path: Path
) -> None:
    query = ["sql", str(folder), "--csv", "-c", "SELECT count(*) AS n FROM cow"]
    for command in (query, ["backup", str(folder), str(tmp_path / "cows.herd")]):
        done = subprocess.run(
            [sys.executable, "-m", "herdbook", *command], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "cows.herd").stat().st_size > 0

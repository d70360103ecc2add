"""After a loss of metadata nobody begins a log anew beside ledgers that came back."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import herd
from engine.bookie.__main__ import app as bookie_app
from herdbook.cli.main import app


def test_tables_whose_log_was_lost_are_neither_begun_anew_nor_swept_away(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with herd.connect(folder, autocommit=True) as connection:
        connection.cursor().execute("CREATE TABLE cow (id INT PRIMARY KEY)")
    shutil.rmtree(folder / "metadata")
    bookies = [str(path) for path in folder.glob("bookie-*")]
    run = CliRunner().invoke
    rebuilt = run(
        bookie_app, ["rebuild-metadata", *bookies, "--into", str(folder / "metadata"), "--json"]
    )
    assert rebuilt.exit_code == 1 and '"lost_logs":["herd/default"]' in rebuilt.stdout
    for _ in range(2):
        with pytest.raises(herd.Error, match="the list of log herd/default was lost"):
            herd.connect(folder)
    listed = run(app, ["ledger", "ls", "--url", str(folder), "--json"])
    assert "log:herd/default" in listed.stdout
    other = run(app, ["repair", "forget-log", "broker", "--yes", "--url", str(folder)])
    assert other.exit_code == 1 and "lost are: herd/default" in other.stderr
    asked = run(app, ["repair", "forget-log", "herd/default", "--url", str(folder)], input="n\n")
    assert asked.exit_code == 1
    forgotten = run(
        app, ["repair", "forget-log", "herd/default", "--yes", "--json", "--url", str(folder)]
    )
    assert forgotten.exit_code == 0 and '"forgotten"' in forgotten.stdout
    with herd.connect(folder) as connection:
        # What the folder's own state had applied is there.
        assert connection.cursor().execute("SELECT count(*) FROM cow").fetchall() == [(0,)]

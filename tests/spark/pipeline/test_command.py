"""The jobs of the pipeline as their users run them: as commands, and under `spark-submit`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark

import pipeline.tasks
from herdbook.book import Book
from tests.acceptance.machines import ROOT

_PATIENCE_S = 400
_CHILD = """
import contextlib, io, json, sys
from herdbook.cli.main import app

for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(["pipeline", *arguments])
        except SystemExit as ended:
            status = ended.code or 0
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""
"""Several commands of one process: only the first one starts Java."""


def test_each_job_runs_as_a_command(book: Book, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_bytes(b"m" * number)
    book.blobs.create_bucket("commanded")
    store = ["--data", book.url, "--master", "local[2]"]
    to = str(tmp_path / "out")
    calls = [
        ["load", str(source), "--bucket", "commanded", "--table", "commanded", "--json", *store],
        ["usage", "--bucket", "commanded", "--json", *store],
        ["scrub", "--bucket", "commanded", "--json", *store],
        ["export", "commanded", "--to", to, "--json", *store],
        ["export", "--changes", "--to", f"{to}-changes", "--json", *store],
        ["tasks", *store],
        ["export", "nothing", "--to", f"{to}-2", *store],
        ["scrub", *store],
    ]
    done = _run(calls)
    assert [status for status, _, _ in done] == [0, 0, 0, 0, 0, 0, 1, 2], done
    loaded, used, scrubbed, exported, changed = (json.loads(out) for _, out, _ in done[:5])
    assert (loaded["objects"], loaded["bytes"], loaded["rows"]) == (3, 3, 3)
    assert [(row["bucket"], row["objects"]) for row in used["rows"]] == [("commanded", 3)]
    assert scrubbed["objects"]["subjects"] == 3 and scrubbed["ledgers"]["corrupt"] == 0
    assert exported["rows"] == 3 and list(Path(to).glob("*.parquet"))
    assert changed["rows"] > 0 and Path(changed["folder"]).is_dir()
    told = done[6][2].strip().splitlines()
    assert told[-1].startswith("NoSuchTable: there is no table nothing in tablespace default")
    assert "--bucket or --ledgers" in done[7][2]


def test_a_job_runs_under_spark_submit(book: Book) -> None:
    book.tasks.submit("milk", tenant="submitted")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    assert pipeline.tasks.__file__ is not None
    done = subprocess.run(
        [
            *(str(submit), "--master", "local[1]", pipeline.tasks.__file__),
            *("--data", book.url, "--json"),
        ],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    # Under spark-submit both of a program's streams are its output.
    assert done.returncode == 0, done.stdout
    rows = json.loads(done.stdout.strip().splitlines()[-1])["rows"]
    assert [row["states"] for row in rows if row["tenant"] == "submitted"] == [{"waiting": 1}]


def _run(calls: list[list[str]]) -> list[tuple[int, str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(calls)],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def _environment() -> dict[str, Any]:
    """No session of this process's is seen by the child, and Java compiles for a short life."""
    own = {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    java = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    return {**kept, **java, "PYSPARK_PYTHON": sys.executable}

"""Every example of docs/tasks.md runs, and every option in it is one of the command's."""

import os
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from herdbook.cli import app

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "tasks.md").read_text()
MODULE = re.compile(r"# (\w+\.py)\n")


def test_every_example_of_the_page_runs(tmp_path: Path) -> None:
    program = []
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        named = MODULE.match(block)
        if named is not None:
            (tmp_path / named[1]).write_text(block)
        else:
            program.append(block)
    assert len(program) > 8
    # A program of its own: its workers are its children, and its modules are beside it.
    (tmp_path / "page.py").write_text("\n".join(program))
    done = subprocess.run(
        [sys.executable, "-c", "import page"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cancelled" in done.stdout


def test_every_option_of_the_page_is_one_of_the_worker() -> None:
    told = CliRunner().invoke(app, ["worker", "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    known = set(re.findall(r"--[a-z][a-z-]+", told.output))
    named = set(re.findall(r"--[a-z][a-z-]+", TEXT))
    assert named and named <= known, named - known

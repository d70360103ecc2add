"""Every example of docs/rollouts.md runs, and every command and option in it is one."""

import os
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from herdbook.cli import app

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "rollouts.md").read_text()
MODULE = re.compile(r"# (\w+\.py)\n")


def test_every_example_of_the_page_runs(tmp_path: Path) -> None:
    program = []
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        named = MODULE.match(block)
        if named is not None:
            (tmp_path / named[1]).write_text(block)
        else:
            program.append(block)
    assert len(program) > 4
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


def test_every_command_and_option_of_the_page_is_one() -> None:
    known = set()
    for call in (["worker"], ["task", "serve"]):
        told = CliRunner().invoke(app, [*call, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        known |= set(re.findall(r"--[a-z][a-z-]+", told.output))
    for command in re.findall(r"herdbook task rollout (\w+)", TEXT):
        call = ["task", "rollout", command, "--help"]
        told = CliRunner().invoke(app, call, env={"COLUMNS": "200", "TERM": "dumb"})
        assert told.exit_code == 0, command
        known |= set(re.findall(r"--[a-z][a-z-]+", told.output))
    named = set(re.findall(r"--[a-z][a-z-]+", TEXT))
    assert named and named <= known, named - known

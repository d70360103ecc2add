"""The pages of docs/ about tasks: their examples, their commands and their options."""

import os
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from herdbook.cli.main import app

ROOT = Path(__file__).parents[2]
_MODULE = re.compile(r"# (\w+\.py)\n")
_OPTION = re.compile(r"--[a-z][a-z-]+")


def text_of(name: str) -> str:
    """What a page says."""
    return (ROOT / "docs" / name).read_text()


def examples_run(text: str, folder: Path, *, at_least: int) -> subprocess.CompletedProcess[str]:
    """The examples of a page, one after the other: how that ended.

    They are a program of its own: its workers are its children, and its modules are beside it.
    """
    program = []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        named = _MODULE.match(block)
        if named is not None:
            (folder / named[1]).write_text(block)
        else:
            program.append(block)
    assert len(program) >= at_least
    (folder / "page.py").write_text("\n".join(program))
    return subprocess.run(
        [sys.executable, "-c", "import page"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )


def options_in(text: str) -> set[str]:
    """The options that a text names."""
    return set(_OPTION.findall(text))


def options_of(*command: str) -> set[str]:
    """The options that a command has."""
    environment = {"COLUMNS": "200", "TERM": "dumb"}
    told = CliRunner().invoke(app, [*command, "--help"], env=environment)
    assert told.exit_code == 0, command
    return options_in(told.output)

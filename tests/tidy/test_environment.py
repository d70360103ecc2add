"""`make venv`: what it does with an environment that is there already."""

import os
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
PYTHON = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/../called"
[ "$2" != venv ] || { mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }
"""


def make(folder: Path) -> subprocess.CompletedProcess[str]:
    """Make the environment with a Python that only writes down how it was called."""
    python = folder / "own" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
    command = ["make", "-f", str(MAKEFILE), "venv", f"PYTHON={python}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stamp", [None, "", "by others\n"])
def test_an_environment_that_somebody_made_is_kept_and_installed_into(
    tmp_path: Path, stamp: str | None
) -> None:
    assert make(tmp_path).returncode == 0
    made = tmp_path / ".venv"
    (made / "pyvenv.cfg").touch()
    (made / "theirs").touch()
    (made / ".installed").unlink()
    if stamp is not None:
        (made / ".installed").write_text(stamp)
        os.utime(made / ".installed", (0, 0))
    again = make(tmp_path)
    assert again.returncode == 0 and "was here before: it stays" in again.stdout
    assert (made / "theirs").exists() and "install" in (made / "called").read_text()
    assert (made / ".installed").read_text() == "by others\n"


def test_an_environment_that_was_made_here_is_made_anew_for_other_versions(tmp_path: Path) -> None:
    assert make(tmp_path).returncode == 0
    (tmp_path / ".venv" / "left").touch()
    os.utime(tmp_path / ".venv" / ".installed", (0, 0))
    again = make(tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert not (tmp_path / ".venv" / "left").exists()


def test_what_is_no_environment_is_left_alone_and_named(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "theirs").touch()
    answer = make(tmp_path)
    assert answer.returncode == 2 and ".venv is no environment of Python" in answer.stdout
    assert (tmp_path / ".venv" / "theirs").exists()

"""`make venv`: what it does with an environment that is there already, and what it puts there."""

import os
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"
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


def test_every_version_that_is_installed_takes_the_oldest_python_that_we_take() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    wanted: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name = Requirement(line).name
            try:
                wanted[name] = str(metadata(name).json.get("requires_python") or "")
            except PackageNotFoundError:
                continue
    assert len(wanted) > 50
    assert not {name: says for name, says in wanted.items() if oldest not in SpecifierSet(says)}

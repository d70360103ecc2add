"""The wheel as a stranger has it: built, installed into an empty environment, and used there."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tidy.test_readme import ROOT

PACKAGES = ("engine", "herd", "blobit", "broker", "herdbook", "pipeline")
SHIPPED = (".py", ".pyi", "py.typed", ".html", ".css", ".js", ".svg", ".json", ".toml")
INSTALLED_MB_MAX = 450
IMPORT_S_MAX = 0.2
IMPORT_MIB_MAX = 60
EXAMPLE = re.compile(r"```python\n(>>> import herdbook.*?)```", re.DOTALL)

IMPORTING = """
import time
begun = time.process_time()
import herdbook
took = time.process_time() - begun
kib = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(took, int(kib) / 1024, herdbook.__file__)
"""
"""Its own processor time: how long it waits behind other processes says nothing of it."""

TRYING = """
import doctest, sys
failed, tried = doctest.testfile(sys.argv[1], module_relative=False)
print(tried)
sys.exit(failed)
"""


class Installed(NamedTuple):
    """The wheel, and the environment that holds it and what it asks for, nothing else."""

    wheel: Path
    environment: Path
    folder: Path

    def run(self, *arguments: str | Path) -> str:
        """What a program of the environment prints. It fails the test if that fails."""
        program, *rest = arguments
        command = [self.environment / "bin" / program, *rest]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return said(command, cwd=self.folder, env=kept)


def said(
    command: list[str | Path], cwd: Path | None = None, env: dict[str, str] | None = None
) -> str:
    """What a program prints. It fails the test if that fails."""
    ended = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def sources() -> list[str]:
    """The project's files below its packages, as git knows them."""
    listing = ["git", "ls-files", "-co", "--exclude-standard", *PACKAGES]
    found = said([*listing], cwd=ROOT).split()
    return [name for name in found if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("wheel")
    source, environment, empty = folder / "source", folder / "environment", folder / "empty"
    empty.mkdir()
    # From a copy: what an earlier build left behind would be packed, too.
    for name in [*sources(), "pyproject.toml", "README.md"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    said([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source])
    (wheel,) = folder.glob("herdbook-*.whl")
    said([sys.executable, "-m", "venv", "--without-pip", environment])
    python, constraints = environment / "bin" / "python", ROOT / "constraints.txt"
    said([*pip, "--python", python, "install", "-c", constraints, wheel])
    yield Installed(wheel, environment, empty)
    shutil.rmtree(folder)


def test_the_wheel_has_all_that_runs_and_nothing_of_tests(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name for name in sources() if name.endswith(SHIPPED)}
    assert {name.partition("/")[0] for name in packed} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
    assert "herdbook/console/index.html" in packed


def test_an_installation_without_spark_fits(installed: Installed) -> None:
    found = [path.lstat() for path in installed.environment.rglob("*") if path.is_file()]
    assert sum(each.st_blocks for each in found) * 512 / 1e6 <= INSTALLED_MB_MAX
    names = {path.name for path in installed.environment.glob("lib/python*/site-packages/*")}
    assert names & {"pyspark", "sqlalchemy", "pytest", "tests", "benchmarks"} == set()
    assert {"duckdb", "grpc", "kazoo", "pyarrow", "starlette"} <= names


def test_the_import_is_quick_and_small(installed: Installed) -> None:
    (installed.folder / "importing.py").write_text(IMPORTING)
    tries = [installed.run("python", "importing.py").split() for _ in range(5)]
    assert min(float(took) for took, _, _ in tries) <= IMPORT_S_MAX
    assert max(float(mib) for _, mib, _ in tries) <= IMPORT_MIB_MAX
    assert tries[0][2].startswith(str(installed.environment))


def test_the_first_example_of_the_readme_works_there(installed: Installed) -> None:
    example = EXAMPLE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert example is not None
    (installed.folder / "first.md").write_text(example[1])
    (installed.folder / "trying.py").write_text(TRYING)
    assert int(installed.run("python", "trying.py", "first.md")) >= 3


def test_the_command_and_a_typed_program_work_there(installed: Installed) -> None:
    assert installed.run("herdbook", "--version").startswith("herdbook ")
    program = shutil.copy(ROOT / "examples" / "farm.py", installed.folder)
    told = installed.run("python", program, "data").splitlines()
    assert told == [
        "define cow",
        "put {'id': 0, 'name': 'Alma'}",
        "put {'id': 1, 'name': 'Berta'}",
        "put {'id': 2, 'name': 'Cilli'}",
        "delete {'id': 1}",
        "2 cows",
    ]
    shown = installed.run("herdbook", "blob", "ls", "photos/2026/", "--url", "data")
    assert "alma.jpg" in shown


def test_a_users_program_passes_the_strictest_look_at_its_types(installed: Installed) -> None:
    program = shutil.copy(ROOT / "examples" / "farm.py", installed.folder)
    python = installed.environment / "bin" / "python"
    mypy: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        python,
    ]
    cache = installed.folder / "mypy"
    told = said([*mypy, "--cache-dir", cache, program], cwd=installed.folder)
    assert told == "Success: no issues found in 1 source file\n"

"""A real tree goes in by `herdbook blob put -r`, is listed and compared, and comes out identical.

`HERDBOOK_REAL_TREE=/usr/share python -m pytest tests/herdbook/test_cli_blob_real_tree.py` takes
any folder; without it, it is some packages of the Python standard library.
"""

import filecmp
import json
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from typer.main import get_command

from herdbook.cli.blob import app
from herdbook.cli.blob_folders import LocalItem, walk

COMMAND: Any = get_command(app)
PACKAGES = ("asyncio", "email", "encodings", "json", "sqlite3", "xml")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    named = os.environ.get("HERDBOOK_REAL_TREE", "")
    if named:
        return Path(named)
    root = tmp_path / "library"
    root.mkdir()
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in PACKAGES:
        # Caches may be written while they are looked at.
        shutil.copytree(library / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def run(url: Path, *arguments: str) -> str:
    answer = CliRunner().invoke(COMMAND, [*arguments, "--url", str(url)])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def items_of(root: Path) -> dict[str, LocalItem]:
    """What is below a folder, by name."""
    return {each.name: each for each in walk(str(root)) if isinstance(each, LocalItem)}


def test_a_real_tree_comes_out_identical(tree: Path, tmp_path: Path) -> None:
    store, back = tmp_path / "store", tmp_path / "back"
    put = ("put", "-r", str(tree), "real/tree")
    run(store, "mb", "real", "--create")
    source = items_of(tree)
    assert len(source) > 100
    assert f"{len(source):,} put" in run(store, *put)
    # It is listed: each name, length, mode and time.
    listed = run(store, "ls", "-r", "--json", "real/tree/")
    objects = {
        row["name"].removeprefix("tree/"): row for row in map(json.loads, listed.splitlines())
    }
    assert objects.keys() == source.keys()
    for name, item in source.items():
        assert objects[name]["bytes"] == item.size_bytes
        assert objects[name]["metadata"] == item.metadata
    # It is compared: a second run finds nothing to do.
    assert run(store, *put) == f"in real/tree: {len(source):,} there already\n"
    # It comes out identical: names, bytes, links, modes and times.
    assert f"{len(source):,} got" in run(store, "get", "-r", "real/tree", str(back))
    result = items_of(back)
    assert result.keys() == source.keys()
    for name, item in source.items():
        assert result[name].kind == item.kind and result[name].metadata == item.metadata
        if item.kind == "file":
            assert filecmp.cmp(item.path, result[name].path, shallow=False), name

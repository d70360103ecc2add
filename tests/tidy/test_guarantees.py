"""Every test that a document names as its proof exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda path: path.as_posix()
)


@cache
def proofs_in(name: str) -> frozenset[str]:
    """The names of the test functions and methods in a file."""
    path = ROOT / name
    if not path.is_file():
        return frozenset()
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def missing_proofs(text: str) -> list[str]:
    """The tests that a text names and that do not exist."""
    return [f"{file}::{name}" for file, name in NAMED.findall(text) if name not in proofs_in(file)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    assert missing_proofs(document.read_text()) == []


def test_every_promise_has_a_proof() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    promises = text.split("## What is not promised")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")]
    unproved = [
        row
        for row in rows
        if not NAMED.search(row) and "---" not in row and not row.endswith("| test |")
    ]
    assert len(rows) > 60
    assert unproved == []


def test_a_document_that_names_no_such_test_is_noticed() -> None:
    here = "tests/tidy/test_guarantees.py"
    assert missing_proofs(f"`{here}::test_every_promise_has_a_proof`") == []
    gone = f"{here}::test_{'nobody'}_wrote"
    assert missing_proofs(f"`{gone}`") == [gone]

"""Every planted fault still fits the code, and the test that must notice it still exists."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import Mutant, PatchMisfit, PytestKiller, by_test
from tests.mutants.runner import ROOT

MUTANTS_MIN = 40


@cache
def names_of_tests(path: Path) -> set[str]:
    """The tests of a file, as they stand in a node id behind the file's name."""
    found: set[str] = set()
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    for node in statements:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{name}" for name in _functions(node.body)}
            found |= {f"{node.name}::{name}" for name in _inherited(node)}
    return found | set(_functions(statements))


def _functions(body: list[ast.stmt]) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in body if isinstance(node, kinds) and node.name.startswith("test_")]


def _inherited(node: ast.ClassDef) -> list[str]:
    """Tests of a contract suite: the class of that name in a file called `*_contract.py`."""
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    bases |= {base.attr for base in node.bases if isinstance(base, ast.Attribute)}
    return [
        name for suite in _contracts() if suite.name in bases for name in _functions(suite.body)
    ]


@cache
def _contracts() -> list[ast.ClassDef]:
    """Every class of the files of contracts."""
    return [
        suite
        for path in sorted((ROOT / "tests").rglob("*_contract.py"))
        for suite in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(suite, ast.ClassDef)
    ]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_fits_the_code_and_its_killer_exists(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    patched = mutant.patched(text)
    compile(patched, mutant.file, "exec")
    assert patched != text
    assert mutant.rule
    if isinstance(mutant.killer, PytestKiller):
        file, _, name = mutant.killer.node_id.partition("::")
        assert name.partition("[")[0] in names_of_tests(ROOT / file)


def test_there_are_enough_mutants_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("text", ["nothing of it", "twice twice"])
def test_a_patch_that_does_not_fit_exactly_once_is_an_error(text: str) -> None:
    mutant = Mutant("m", "r", "f.py", "twice", "once", by_test("x.py", "test_y"))
    with pytest.raises(PatchMisfit):
        mutant.patched(text)

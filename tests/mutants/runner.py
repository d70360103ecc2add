"""Plants mutants in copies of the tree, runs what must kill them, and tells which survived.

Invariants:
- A mutant counts as killed only if its killer fails on it *and* passes without it.
- Exit status 1 kills. Any other status but 0 (no such test, a syntax error) is a broken mutant.
- The working tree is only read.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.mutant import Killer, Mutant, PytestKiller

ROOT: Final = Path(__file__).resolve().parents[2]
_COPIED: Final = ("engine", "herd", "blobit", "broker", "herdbook", "tests", "pyproject.toml")
_TIMEOUT_S: Final = 150
_LINES_SHOWN: Final = 15


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    mutant: Mutant
    fate: str
    seconds: float
    output: str

    @property
    def killed(self) -> bool:
        """Whether the suite noticed it."""
        return self.fate == KILLED


KILLED: Final = "killed"
SURVIVED: Final = "SURVIVED"
BROKEN: Final = "BROKEN"


def run_mutants(
    mutants: Sequence[Mutant], jobs: int, tell: Callable[[Verdict], None]
) -> list[Verdict]:
    """Run mutants, `jobs` at a time, and `tell` of each as it ends; in the order given."""
    with ThreadPoolExecutor(jobs) as pool:

        def run(mutant: Mutant) -> Verdict:
            verdict = run_mutant(mutant)
            tell(verdict)
            return verdict

        return list(pool.map(run, mutants))


def run_mutant(mutant: Mutant) -> Verdict:
    """Plant one mutant in a copy of its own and run its killer there."""
    with copied_tree() as tree:
        mutant.apply(tree)
        start_s = time.monotonic()
        status, output = _run(mutant.killer.command(), tree)
        seconds = time.monotonic() - start_s
    fate = {0: SURVIVED, 1: KILLED}.get(status, BROKEN)
    return Verdict(mutant, fate, seconds, output)


def check_killers(killers: Sequence[Killer]) -> str | None:
    """Run all killers on the tree as it is; what the first one that fails says, or None."""
    with copied_tree() as tree:
        tests = list(dict.fromkeys(k.node_id for k in killers if isinstance(k, PytestKiller)))
        others = [killer for killer in killers if not isinstance(killer, PytestKiller)]
        commands = [[*PytestKiller(tests[0]).command(), *tests[1:]]] if tests else []
        commands += [killer.command() for killer in dict.fromkeys(others)]
        for command in commands:
            status, output = _run(command, tree)
            if status:
                return output
    return None


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of what tests need, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(source, tree / name, ignore=ignored)
            else:
                shutil.copy2(source, tree / name)
        yield tree


def _run(command: Sequence[str], tree: Path) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        result = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"not done after {_TIMEOUT_S} s"
    return result.returncode, "\n".join(result.stdout.splitlines()[-_LINES_SHOWN:])

"""What a planted fault is: a small patch, the rule it removes, and the command that must notice.

Invariants:
- A patch replaces text that stands exactly once in its file.
- A mutant is killed by one named test or by a range of simulation seeds, never by the whole suite.
"""

import sys
from dataclasses import dataclass
from pathlib import Path


class PatchMisfit(Exception):
    """The text that a mutant replaces is not there exactly once any more: write the patch anew."""


@dataclass(frozen=True)
class PytestKiller:
    """One test, by its node id."""

    node_id: str

    @property
    def name(self) -> str:
        """What the table shows."""
        return self.node_id.removeprefix("tests/").replace(".py::", ": ")

    def command(self) -> list[str]:
        """The command that must fail with exit status 1."""
        quiet = ["-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
        return [sys.executable, "-m", "pytest", *quiet, "-p", "no:randomly", self.node_id]


@dataclass(frozen=True)
class SeedsKiller:
    """Seeds of the simulation, `first` and so many after it."""

    first: int
    count: int
    kind: str = ""
    """The option of its run: "--herd", for example."""

    @property
    def name(self) -> str:
        """What the table shows."""
        return f"{self.kind} seeds {self.first} to {self.first + self.count - 1}".strip()

    def command(self) -> list[str]:
        """The command that must fail with exit status 1."""
        seeds = ["--first", str(self.first), "--seeds", str(self.count), "--jobs", "1"]
        kind = [self.kind] if self.kind else []
        return [sys.executable, "-m", "tests.simulation", *kind, *seeds]


Killer = PytestKiller | SeedsKiller


@dataclass(frozen=True)
class Mutant:
    """One planted fault. `rule` says what it takes away and where the rule comes from."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    killer: Killer

    def apply(self, tree: Path) -> None:
        """Plant it in a copy of the tree. Raises `PatchMisfit`."""
        path = tree / self.file
        path.write_text(self.patched(path.read_text(encoding="utf-8")), encoding="utf-8")

    def patched(self, text: str) -> str:
        """The file's text with the fault in it. Raises `PatchMisfit`."""
        found = text.count(self.old)
        if found != 1:
            raise PatchMisfit(f"mutant {self.name}: its text stands {found} times in {self.file}")
        return text.replace(self.old, self.new)


def by_test(file: str, name: str) -> PytestKiller:
    """Killed by a test, given by its file under `tests/` and its name."""
    return PytestKiller(f"tests/{file}::{name}")


def by_seeds(first: int, count: int = 1, kind: str = "") -> SeedsKiller:
    """Killed by a range of simulation seeds."""
    return SeedsKiller(first, count, kind)

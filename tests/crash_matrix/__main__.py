"""The crash matrix at full size; see the package.

Each round is a line of JSON in the file of `--out`. With the same file, the same command continues
after the rounds in it. Exit status 1: something did not start, or was lost.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from herdbook.zookeeper_server import ZooKeeperServer
from tests.crash_matrix.rounds import LIMIT_S, Outcome, made
from tests.crash_matrix.rows import COMMAND_ROWS, RUNNING_ROWS, CommandRow, Row

ROWS: tuple[Row | CommandRow, ...] = (*RUNNING_ROWS, *COMMAND_ROWS)


def shares(rows: Iterable[Row | CommandRow], rounds: int) -> dict[str, int]:
    """How many of the rounds each row has, by its weight; all of them together as many as said."""
    weights = {row.name: row.weight for row in rows}
    whole = sum(weights.values())
    found, given, past = {}, 0, 0
    for name, weight in weights.items():
        past += weight
        found[name] = rounds * past // whole - given
        given += found[name]
    return found


class Book:
    """The finished rounds, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.outcomes: list[Outcome] = []
        if path.exists():
            lines = path.read_text().split("\n")[:-1]
            self.outcomes = [Outcome(**json.loads(line)) for line in lines]

    def has(self, row: str, number: int) -> bool:
        """Whether a round is finished."""
        return any((each.row, each.round) == (row, number) for each in self.outcomes)

    def add(self, outcome: Outcome) -> None:
        """Record a round, and print what was wrong with it."""
        with self._lock:
            self.outcomes.append(outcome)
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
            if not outcome.good:
                print(f"{outcome.row} {outcome.round} ({outcome.what}):", flush=True)
                for each in (
                    *outcome.late,
                    *outcome.not_started,
                    *outcome.lost[:5],
                    *outcome.faults,
                ):
                    print(f"  {each}", flush=True)


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """The results, one line per row."""
    form = "{:<24}{:>7}{:>13}{:>6}{:>6}{:>8}{:>11}{:>9}"
    head = ("row", "rounds", "not started", "late", "lost", "faults", "looked at", "slowest")
    lines = [form.format(*head)]
    found = list(outcomes)
    for name in [*(row.name for row in ROWS), "all"]:
        of = [each for each in found if name in (each.row, "all")]
        if of:
            lines.append(
                form.format(
                    name,
                    len(of),
                    sum(bool(each.not_started) for each in of),
                    sum(bool(each.late) for each in of),
                    sum(len(each.lost) for each in of),
                    sum(bool(each.faults) for each in of),
                    sum(each.looked_at for each in of),
                    f"{max(each.slow_s for each in of):.1f} s",
                )
            )
    return lines


def run(rows: list[Row | CommandRow], told: argparse.Namespace, book: Book, hosts: str) -> None:
    """Work through rows, several at a time."""
    counts = shares(rows, told.rounds)
    left = deque(rows)
    ends_s = time.monotonic() + 60 * told.minutes

    def work() -> None:
        while True:
            try:
                row = left.popleft()
            except IndexError:
                return
            numbers = [n for n in range(counts[row.name]) if not book.has(row.name, n)]
            url = f"herdbook://{hosts}/{row.name}"
            folder = told.folder / row.name
            if not numbers:
                continue
            with made(row, folder, url, told.seed) as rounds:
                for number in numbers:
                    if time.monotonic() > ends_s:
                        return
                    book.add(rounds.round(number, f"{told.seed}/{row.name}/{number}"))

    threads = [threading.Thread(target=work) for _ in range(told.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """The program; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_matrix")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--seed", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="no round begins later")
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    told.seed = told.seed or f"{random.SystemRandom().getrandbits(32):08x}"
    rows = [row for row in ROWS if not told.row or row.name in told.row]
    told.folder = Path(tempfile.mkdtemp(prefix="herdbook-matrix-"))
    book = Book(told.out or told.folder / "rounds.jsonl")
    print(f"seed {told.seed}, {told.rounds} rounds, in {told.folder}", flush=True)
    with ExitStack() as stack:
        hosts = ""
        if any(row.cluster for row in rows):
            server = ZooKeeperServer(told.folder / "zookeeper", ends_with_parent=True)
            hosts = stack.enter_context(server).hosts
        run(rows, told, book, hosts)
    print("\n".join(table(book.outcomes)))
    bad = [each for each in book.outcomes if not each.good]
    slow = max((each.slow_s for each in book.outcomes), default=0.0)
    load = max((each.load for each in book.outcomes), default=0.0)
    verdict = f"{len(book.outcomes)} rounds, {len(bad)} bad, slowest start {slow:.1f} s"
    print(f"seed {told.seed}: {verdict} (limit {LIMIT_S:g} s), highest load {load:.1f}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())

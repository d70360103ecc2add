"""Many seeds in a few processes.

Invariants:
- Each seed runs alone in its process; results come back in the order of the seeds.
- Workers are fresh interpreters: no state of this process reaches a run.
"""

import gc
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.simulation.running import Outcome, RunSeed
from tests.simulation.scenario import run_seed

SEEDS_FOLDER: Final = Path(__file__).parent.parent / "seeds"
_SEEDS_A_TASK: Final = 4


def run_many(seeds: Sequence[int], jobs: int, run: RunSeed = run_seed) -> Iterator[Outcome]:
    """Run seeds in `jobs` processes (1: in this one) and yield their outcomes."""
    if jobs <= 1:
        yield from map(run, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_begin) as pool:
        yield from pool.imap(run, seeds, chunksize=_SEEDS_A_TASK)


def _begin() -> None:
    """Initialize a worker: exclude its imports from the garbage collections between runs."""
    gc.freeze()


def committed_seeds(kind: str = "") -> list[int]:
    """The seeds that failed once: the first word of each line of `tests/seeds/*.txt`.

    Those of another kind of run are in the folder of its option's name.
    """
    found: dict[int, None] = {}
    for file in sorted((SEEDS_FOLDER / kind.strip("-")).glob("*.txt")):
        for line in file.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                found[int(line.split()[0])] = None
    return list(found)


def describe(outcome: Outcome, kind: str = "") -> str:
    """Describe a failure, with the command that replays it. `kind` is the option of its run."""
    replay = f"make sim SEED={outcome.seed}"
    if kind:
        replay = f"python -m tests.simulation {kind} --seed {outcome.seed}"
    return f"SEED={outcome.seed} {outcome.error}\nreplay: {replay}"

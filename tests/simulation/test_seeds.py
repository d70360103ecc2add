"""The seeds that every run of the suite plays, and that a seed says everything."""

import os
import subprocess
import sys
from typing import Final

from tests.simulation.pool import committed_seeds, describe, run_many

SEEDS: Final = 100
DETERMINISM_SEEDS: Final = 3
_JOBS: Final = 2


def test_every_seed_that_failed_once_holds_its_promises_now() -> None:
    failures = [found for found in run_many(committed_seeds(), _JOBS) if found.error]
    assert not failures, "\n".join(map(describe, failures))


def test_the_first_seeds_hold_every_promise() -> None:
    failures = [found for found in run_many(range(SEEDS), _JOBS) if found.error]
    assert not failures, "\n".join(map(describe, failures))


def test_a_seed_leaves_the_same_trace_in_processes_with_other_hash_seeds() -> None:
    traces = [_traces(hash_seed) for hash_seed in ("1", "2")]
    assert traces[0] == traces[1]
    assert len(set(traces[0])) == DETERMINISM_SEEDS


def _traces(hash_seed: str) -> list[str]:
    code = (
        "from tests.simulation import run_seed\n"
        f"for seed in range({DETERMINISM_SEEDS}): print(run_seed(seed).digest)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split()

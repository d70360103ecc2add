"""Three replicas on five bookies: the seeds that every run of the suite plays."""

import os
import subprocess
import sys
from typing import Final

from tests.simulation.pool import committed_seeds, describe, run_many
from tests.simulation.replicas import run_replica_seed

KIND: Final = "--replicas"
SEEDS: Final = 20
DETERMINISM_SEEDS: Final = 2
_JOBS: Final = 2


def test_the_first_seeds_of_replicas_hold_every_promise() -> None:
    seeds = [*committed_seeds(KIND), *range(SEEDS)]
    failures = [found for found in run_many(seeds, _JOBS, run_replica_seed) if found.error]
    assert not failures, "\n".join(describe(failure, KIND) for failure in failures)


def test_a_seed_of_replicas_leaves_the_same_trace_with_another_hash_seed() -> None:
    traces = [_traces(hash_seed) for hash_seed in ("1", "2")]
    assert traces[0] == traces[1]
    assert len(set(traces[0])) == DETERMINISM_SEEDS


def _traces(hash_seed: str) -> list[str]:
    code = (
        "from tests.simulation.replicas import run_replica_seed\n"
        f"for seed in range({DETERMINISM_SEEDS}): print(run_replica_seed(seed).digest)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split()

"""Three replicas of a tablespace on five bookies: the seeds that every run of the suite plays."""

from typing import Final

from tests.simulation.herd import run_herd_seed
from tests.simulation.pool import committed_seeds, describe, run_many

KIND: Final = "--herd"
SEEDS: Final = 4
_JOBS: Final = 2


def test_the_first_seeds_of_a_tablespace_hold_every_promise() -> None:
    seeds = [*committed_seeds(KIND), *range(SEEDS)]
    failures = [found for found in run_many(seeds, _JOBS, run_herd_seed) if found.error]
    assert not failures, "\n".join(describe(failure, KIND) for failure in failures)


def test_a_seed_of_a_tablespace_leaves_the_same_trace_again() -> None:
    assert run_herd_seed(0).digest == run_herd_seed(0).digest

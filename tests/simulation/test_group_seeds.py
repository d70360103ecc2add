"""Many tablespaces on five nodes: the seeds that every run of the suite plays."""

from typing import Final

from tests.simulation.groups import run_group_seed
from tests.simulation.pool import committed_seeds, describe, run_many

KIND: Final = "--groups"
SEEDS: Final = 4
_JOBS: Final = 2


def test_the_first_seeds_of_many_tablespaces_hold_every_promise() -> None:
    seeds = [*committed_seeds(KIND), *range(SEEDS)]
    failures = [found for found in run_many(seeds, _JOBS, run_group_seed) if found.error]
    assert not failures, "\n".join(describe(failure, KIND) for failure in failures)


def test_a_seed_of_many_tablespaces_leaves_the_same_trace_again() -> None:
    assert run_group_seed(0).digest == run_group_seed(0).digest

"""Three brokers and five workers on five bookies: the seeds that every run of the suite plays."""

from typing import Final

from tests.simulation.brokers import run_broker_seed
from tests.simulation.pool import committed_seeds, describe, run_many

KIND: Final = "--broker"
SEEDS: Final = 20
_JOBS: Final = 2


def test_the_first_seeds_of_brokers_hold_every_promise() -> None:
    seeds = [*committed_seeds(KIND), *range(SEEDS)]
    failures = [found for found in run_many(seeds, _JOBS, run_broker_seed) if found.error]
    assert not failures, "\n".join(describe(failure, KIND) for failure in failures)


def test_a_seed_of_brokers_leaves_the_same_trace_again() -> None:
    assert run_broker_seed(0).digest == run_broker_seed(0).digest

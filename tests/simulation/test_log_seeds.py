"""The seeds of a log that every run of the suite plays."""

from typing import Final

from tests.simulation.logs import run_log_seed
from tests.simulation.pool import committed_seeds, describe, run_many

KIND: Final = "--log"
SEEDS: Final = 3
_JOBS: Final = 2


def test_the_first_seeds_of_a_log_hold_every_promise() -> None:
    seeds = [*committed_seeds(KIND), *range(SEEDS)]
    failures = [found for found in run_many(seeds, _JOBS, run_log_seed) if found.error]
    assert not failures, "\n".join(describe(found, KIND) for found in failures)


def test_a_seed_of_a_log_leaves_the_same_trace_again() -> None:
    assert run_log_seed(1).digest == run_log_seed(1).digest

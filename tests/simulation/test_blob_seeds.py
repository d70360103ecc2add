"""A store of objects under faults: the seeds that every run of the suite plays."""

from typing import Final

from tests.simulation.blobs import run_blob_seed
from tests.simulation.pool import committed_seeds, describe, run_many

KIND: Final = "--blobs"
SEEDS: Final = 3
_JOBS: Final = 2


def test_the_first_seeds_of_a_store_of_objects_hold_every_promise() -> None:
    seeds = [*committed_seeds(KIND), *range(SEEDS)]
    failures = [found for found in run_many(seeds, _JOBS, run_blob_seed) if found.error]
    assert not failures, "\n".join(describe(failure, KIND) for failure in failures)


def test_a_seed_of_a_store_of_objects_leaves_the_same_trace_again() -> None:
    assert run_blob_seed(0).digest == run_blob_seed(0).digest

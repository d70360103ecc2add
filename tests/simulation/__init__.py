"""The whole ledger layer in one seeded event loop with virtual time and faults.

`run_seeds(range(100))` runs seeds in this process; `python -m tests.simulation --seed 7` replays
one in words, `--seeds 1000 --jobs 2` runs many.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.running import Outcome
    from tests.simulation.scenario import Failure, run_seed, run_seeds

__all__ = ["Failure", "Outcome", "run_seed", "run_seeds"]


def __getattr__(name: str) -> object:
    """Load the scenario on first use: a mutant may be planted before."""
    if name not in __all__:
        raise AttributeError(name)
    from tests.simulation import scenario

    return getattr(scenario, name)

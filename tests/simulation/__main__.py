"""`python -m tests.simulation`: replay one seed in words, or run many.

Invariants:
- The exit status is 0 only if every promise held in every seed.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tests.simulation.blobs import run_blob_seed
from tests.simulation.brokers import run_broker_seed
from tests.simulation.groups import run_group_seed
from tests.simulation.herd import run_herd_seed
from tests.simulation.logs import run_log_seed
from tests.simulation.pool import committed_seeds, describe, run_many
from tests.simulation.replicas import run_replica_seed
from tests.simulation.running import RunSeed
from tests.simulation.scenario import run_seed

RUNS: Final[dict[str, RunSeed]] = {
    "": run_seed,
    "--log": run_log_seed,
    "--replicas": run_replica_seed,
    "--herd": run_herd_seed,
    "--groups": run_group_seed,
    "--blobs": run_blob_seed,
    "--broker": run_broker_seed,
}


def main() -> int:
    """Run what the arguments ask for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--log", action="store_true", help="of a log, not of ledgers")
    parser.add_argument("--replicas", action="store_true", help="of replicas, not of ledgers")
    parser.add_argument("--herd", action="store_true", help="of a tablespace's replicas")
    parser.add_argument("--groups", action="store_true", help="of nodes with many tablespaces")
    parser.add_argument("--blobs", action="store_true", help="of a store of objects")
    parser.add_argument("--broker", action="store_true", help="of brokers and workers")
    parser.add_argument("--seed", type=int, help="replay this seed and print every event")
    parser.add_argument("--quiet", action="store_true", help="with --seed: only the last line")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    kinds = [kind for kind in RUNS if kind and getattr(arguments, kind.strip("-"))]
    kind = kinds[0] if kinds else ""
    if arguments.seed is not None:
        return _replay(arguments.seed, kind, quiet=arguments.quiet)
    wanted = range(arguments.first, arguments.first + arguments.seeds)
    return _many([*committed_seeds(kind), *wanted], kind, arguments.jobs)


def _replay(seed: int, kind: str, *, quiet: bool) -> int:
    outcome = RUNS[kind](seed, None if quiet else print)
    print(
        f"seed {seed}: trace {outcome.digest}, {outcome.operations} operations, "
        f"{outcome.faults} faults, {outcome.virtual_s:.0f} virtual seconds"
    )
    if outcome.error is not None:
        print(f"FAILED: {outcome.error}")
    return 0 if outcome.error is None else 1


def _many(seeds: Sequence[int], kind: str, jobs: int) -> int:
    started_s = time.monotonic()
    failed = 0
    totals: Counter[str] = Counter()
    for outcome in run_many(seeds, jobs, RUNS[kind]):
        totals.update(operations=outcome.operations, faults=outcome.faults)
        if outcome.error is not None:
            failed += 1
            print(describe(outcome, kind), flush=True)
    print(
        f"{len(seeds)} seeds, {totals['operations']} operations, {totals['faults']} faults, "
        f"{failed} failed, in {time.monotonic() - started_s:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run many seeds and tell what came of them: `python -m tests.herd.differential`."""

import argparse
import asyncio

from tests.herd.differential.running import Tally, run_seed
from tests.herd.differential.three import Disagreement


def main() -> None:
    """Every second seed goes without the quick ways."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--statements", type=int, default=20_000)
    parser.add_argument("--each", type=int, default=500, help="statements a seed")
    parser.add_argument("--seed", type=int, default=None, help="only this one")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    seeds = range(given.first, given.first - (-given.statements // given.each))
    if given.seed is not None:
        seeds = range(given.seed, given.seed + 1)
    total, failed = Tally(), 0
    for seed in seeds:
        try:
            total.add(asyncio.run(run_seed(seed, given.each, fast=seed % 2 == 0)))
        except Disagreement as error:
            failed += 1
            print(f"SEED={seed} {error}", flush=True)
    print(
        f"{len(seeds)} seeds, {total.statements} statements, {total.refused} refused, "
        f"{total.disagreed} that the others disagree about, {failed} seeds failed"
    )
    print(", ".join(f"{kind} {count}" for kind, count in total.kinds.most_common()))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()

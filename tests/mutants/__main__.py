"""`python -m tests.mutants`: plant every mutant, show who killed it; status 1 if one survives."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import Mutant, PatchMisfit, SeedsKiller
from tests.mutants.runner import ROOT, Verdict, check_killers, run_mutants


def main() -> int:
    """Run what the arguments ask for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="only show what there is")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="just this one")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument(
        "--by-seeds",
        type=int,
        metavar="COUNT",
        help="ask the simulation alone: which mutants do its first seeds notice? Never fails",
    )
    parser.add_argument("--trust", action="store_true", help="do not run the killers alone first")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if mutant.name in arguments.only or not arguments.only]
    unknown = set(arguments.only) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}; see --list")
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.name:42} {mutant.rule}\n{'':42} {mutant.file}; {mutant.killer.name}")
        return 0
    if arguments.by_seeds:
        seeds = SeedsKiller(0, arguments.by_seeds)
        _show(run_mutants([replace(one, killer=seeds) for one in chosen], arguments.jobs, _tell))
        return 0
    return _run(chosen, arguments.jobs, trust=arguments.trust)


def _run(chosen: Sequence[Mutant], jobs: int, *, trust: bool) -> int:
    try:
        for mutant in chosen:
            mutant.patched((ROOT / mutant.file).read_text(encoding="utf-8"))
    except PatchMisfit as error:
        print(error)
        return 1
    failed = None if trust else check_killers([mutant.killer for mutant in chosen])
    if failed is not None:
        print(f"{failed}\nA test fails without any mutant: it can kill none.")
        return 1
    verdicts = run_mutants(chosen, jobs, _tell)
    _show(verdicts)
    return 0 if all(verdict.killed for verdict in verdicts) else 1


def _tell(verdict: Verdict) -> None:
    print(f"{verdict.fate:8} {verdict.seconds:6.1f} s  {verdict.mutant.name}", flush=True)
    if not verdict.killed:
        print(verdict.output, flush=True)


def _show(verdicts: Sequence[Verdict]) -> None:
    print(f"\n{'mutant':42} {'fate':9} {'seconds':>7}  rule; killed by")
    for verdict in verdicts:
        mutant = verdict.mutant
        print(f"{mutant.name:42} {verdict.fate:9} {verdict.seconds:7.1f}  {mutant.rule}")
        print(f"{'':42} {'':9} {'':7}  {mutant.killer.name}")
    killed = sum(verdict.killed for verdict in verdicts)
    print(f"\n{killed} of {len(verdicts)} mutants killed")
    for verdict in verdicts:
        if not verdict.killed:
            print(f"not killed: {verdict.mutant.name} ({verdict.fate})")


if __name__ == "__main__":
    sys.exit(main())

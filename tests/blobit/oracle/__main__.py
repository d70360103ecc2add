"""usage: python -m tests.blobit.oracle [--operations N] [--seed N] [--folder DIR]

Random operations on a real store beside a dictionary. Prints what was done; the exit code is 1 if
the store did anything else than the dictionary says.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from engine.ports.system_loop import new_event_loop
from tests.blobit.oracle.running import Run


def main() -> int:
    """Run, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    chosen = parser.parse_args()
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="herdbook-oracle-", dir=chosen.folder) as folder:
        run = Run(chosen.seed, Path(folder))
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(run.run(chosen.operations))
        except AssertionError as error:
            print(f"after {run.report.operations} operations: {error}")
            print(f"again: python -m tests.blobit.oracle --seed {chosen.seed}")
            return 1
    took_s = time.perf_counter() - began_s
    done = ", ".join(f"{value} {name}" for name, value in asdict(run.report).items())
    print(f"seed {chosen.seed}: {done} in {took_s:.1f} s: no byte lost or mixed, no ledger left")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

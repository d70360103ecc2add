"""Explore the model of leadership: `python -m tests.leadership [--large]`."""

import argparse
import sys
import time
from typing import Final

from tests.leadership.model import Bounds, Rules, explore

LARGE: Final = (
    Bounds(leases=(2, 2), attempts=3, epochs=3, appends=2),
    Bounds(leases=(1, 1, 1), attempts=2, epochs=3, appends=1, removals=1),
)


def main() -> int:
    """Tell the number of states; exit status 1 and the way there where an invariant breaks."""
    parser = argparse.ArgumentParser(prog="python -m tests.leadership", description=__doc__)
    parser.add_argument(
        "--large", action="store_true", help="longer leases, three processes; some minutes"
    )
    parser.add_argument("--without", action="append", default=[], help="leave a rule out")
    asked = parser.parse_args()
    rules = Rules().without(*asked.without)
    for bounds in LARGE if asked.large else (Bounds(),):
        print(bounds, flush=True)
        began_s = time.monotonic()
        found = explore(rules, bounds, lambda states: print(f"{states:,} states", flush=True))
        took_s = time.monotonic() - began_s
        print(f"{found.states:,} states in {took_s:.0f} s", *found.trace, sep="\n  ")
        print(found.violation or "every invariant holds", flush=True)
        if found.violation:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

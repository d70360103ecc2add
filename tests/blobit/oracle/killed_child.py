"""A process that changes objects until it is killed. usage: python -m … FOLDER FIRST_ROUND

Round r puts `whole/<i>` anew, adds a line to `log/<i>`, and joins two objects to `pair`, all at
once; then it prints r. Garbage is collected beside it.
"""

import asyncio
import sys
from pathlib import Path

from tests.blobit.oracle.store import Store

OBJECTS = 6


def body(round_number: int, index: int) -> bytes:
    """What an object holds after a round: long enough for several entries."""
    return b"%d of round %d, " % (index, round_number) * (40 * index + 1)


def line(round_number: int) -> bytes:
    """What a round adds to a log."""
    return b"%d\n" % round_number


async def main(folder: Path, first: int) -> None:
    """Change objects for ever."""
    store = Store(folder)
    await store.open()
    bucket = store.buckets["plain"]
    number = first
    while True:
        beside = [store.blobs.collect()] if number % 7 == 3 else []
        await asyncio.gather(
            *[bucket.put(f"whole/{index}", body(number, index)) for index in range(OBJECTS)],
            *[bucket.append(f"log/{index}", line(number)) for index in range(OBJECTS)],
            *beside,
        )
        await bucket.concat("pair", ["whole/0", "whole/1"], keep=True)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))

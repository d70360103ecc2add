"""Processes killed with kill -9 in the middle of changes: what was answered is there, and whole.

`HERDBOOK_BLOB_KILLS` says how many are killed: more in the soak.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from tests.blobit.oracle.killed_child import OBJECTS, body, line
from tests.blobit.oracle.store import HOUR_MS, Store

KILLS = int(os.environ.get("HERDBOOK_BLOB_KILLS", "2"))


async def _killed(folder: Path, first: int, rounds: int) -> int:
    """The last round that was answered by a process that was killed some time after it."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.blobit.oracle.killed_child", str(folder), str(first)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    answered = first - 1
    for _ in range(rounds):
        answered = int(await child.stdout.readline())
    child.kill()
    # What it printed before the kill reached it was answered, too.
    rest = (await child.stdout.read()).split()
    await child.wait()
    return int(rest[-1]) if rest else answered


async def _check(store: Store, answered: int) -> None:
    """Everything is of the last round that was answered, or of the one after it."""
    bucket, rounds = store.buckets["plain"], (answered, answered + 1)
    lines = b"".join(line(number) for number in range(answered + 1))
    for index in range(OBJECTS):
        whole, log = await bucket.get(f"whole/{index}"), await bucket.get(f"log/{index}")
        right = whole in [body(number, index) for number in rounds]
        assert right, f"whole/{index} is of no round about {answered}: {whole[:60]!r}"
        right = log in (lines, lines + line(answered + 1))
        assert right, f"log/{index} lacks or repeats lines near {answered}: {log[-40:]!r}"
    pair = await bucket.get("pair")
    assert pair in [body(number, 0) + body(number, 1) for number in rounds], pair[:60]


async def test_what_a_killed_process_was_answered_is_there_and_nothing_else(
    tmp_path: Path,
) -> None:
    rng = random.Random(3)
    store = Store(tmp_path)
    first = 0
    for _ in range(KILLS):
        answered = await _killed(tmp_path, first, rng.randint(2, 12))
        await store.open()
        await _check(store, answered)
        # The next round is made whole, so that logs have one line of each.
        bucket = store.buckets["plain"]
        first = answered + 1
        for index in range(OBJECTS):
            lines = b"".join(line(number) for number in range(first))
            if await bucket.get(f"log/{index}") != lines:
                await bucket.put(f"log/{index}", lines)
        await store.close()
    await store.open()
    for name in [info.name async for info in store.buckets["plain"].scan()]:
        await store.buckets["plain"].delete(name)
    await store.close()
    await store.open()
    for _ in range(8):
        store.clock.ahead_ms += 8 * HOUR_MS
        await store.blobs.collect()
    assert await store.ledgers_of_buckets() == []
    await store.close()

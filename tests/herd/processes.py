"""A real process that changes a folder's tables until it is killed; started by `test_kill.py`.

    python -m tests.herd.processes FOLDER        transactions over two tables, without end

Each line of output tells one thing: `open POSITION`, `committed CALLER SEQUENCE`, `checkpoint N`.

Each caller has one row in `totals` that counts its transactions, and a row for each of them in
`steps`; both are changed by the same transaction.
"""

import asyncio
import sys

from herd.checkpoint.child import ReadPage
from herd.checkpoint.order import Order
from herd.settings import HerdSettings
from herd.store import AsyncHerd, open_folder
from herd.table import AsyncTable
from herd.tablespace import Tablespace
from herd.types import BIGINT, TEXT
from tests.engine.cluster.processes import _say

CALLERS = 6
_CHECKPOINT_MS = 400


def text_of(caller: int, sequence: int) -> str:
    """What stands in a step's row."""
    return f"{caller}/{sequence} " * (1 + sequence % 40)


async def open_tables(herd: AsyncHerd) -> tuple[AsyncTable, AsyncTable]:
    """Both tables, made if they are not there."""
    space = await herd.tablespace()
    if not space.catalog.names:
        await herd.create_table("totals", {"caller": BIGINT, "count": BIGINT}, ["caller"])
    if len(space.catalog.names) == 1:
        types = {"caller": BIGINT, "sequence": BIGINT, "text": TEXT}
        await herd.create_table("steps", types, ["caller", "sequence"])
    return await herd.table("totals"), await herd.table("steps")


async def _call(space: Tablespace, totals: AsyncTable, steps: AsyncTable, caller: int) -> None:
    """One transaction after the other, each over both tables."""
    row = await totals.get(caller)
    sequence = 0 if row is None else row["count"]
    while True:
        sequence += 1
        transaction = space.begin()
        await totals.put({"caller": caller, "count": sequence}, transaction=transaction)
        text = text_of(caller, sequence)
        step = {"caller": caller, "sequence": sequence, "text": text}
        await steps.insert(step, transaction=transaction)
        await transaction.commit()
        _say("committed", caller, sequence)


def _tell_checkpoints(space: Tablespace) -> None:
    """Tell of each one when its pages are built, and its record is about to be written."""
    assert space.checkpointer is not None
    build = space.checkpointer.build

    async def telling(order: Order, read: ReadPage) -> bytes:
        built = await build(order, read)
        _say("checkpoint", order.number)
        return built

    space.checkpointer.build = telling


async def _main(folder: str) -> None:
    settings = HerdSettings(checkpoint_ms=_CHECKPOINT_MS)
    async with open_folder(folder, settings=settings) as herd:
        totals, steps = await open_tables(herd)
        space = await herd.tablespace()
        _say("open", *space.replica.position)
        _tell_checkpoints(space)
        await asyncio.gather(*(_call(space, totals, steps, n) for n in range(CALLERS)))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))

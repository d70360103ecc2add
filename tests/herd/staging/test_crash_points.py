"""A leader that ends at any step of a write in bulk has written all of it, or nothing."""

from unittest.mock import patch

import pytest

from engine.ledger.client import LedgerClient
from herd.checkpoint.blobs import BlobWriter
from herd.checkpoint.manifest import Locator
from herd.rows import encode_row
from herd.schema import Table
from herd.staging.ingesting import ingest
from herd.staging.layout import (
    Block,
    Job,
    Mode,
    Order,
    Staged,
    digest,
    encode_order,
    encode_pairs,
    encode_staged,
)
from herd.staging.marks import JobMark
from herd.staging.registry import Label
from herd.tablespace import Tablespace
from tests.herd.crashing import Machine, at_every_step
from tests.herd.spaces import index_is_right, insert, made, rows_of
from tests.herd.test_crash_points import INDEXES, row, settled

JOB = Job("nightly").identity
STAGED = Label(tablespace="farm", job=Job("nightly")).metadata
OLD, NEW = range(0, 30, 2), range(1, 41, 2)


async def staged(client: LedgerClient, table: Table, mode: Mode) -> Locator:
    """An order for rows that lie among those of the table."""
    blobs = BlobWriter(await client.create_ledger(metadata=STAGED))
    blocks, numbers = [], list(NEW)
    for start in range(0, len(numbers), 4):
        some = numbers[start : start + 4]
        pairs = [(table.encode_primary((one,)), encode_row(row(one))) for one in some]
        blocks.append(Block(pairs[0][0], len(pairs), await blobs.write(encode_pairs(pairs))))
    index = await blobs.write(encode_staged(Staged(len(numbers), 2_000, 1, tuple(blocks))))
    order = await blobs.write(encode_order(Order(table.id, digest(table), mode, (index,))))
    await blobs.close()
    return order


@pytest.mark.parametrize("together", [0, 200_000], ids=["in bulk", "one transaction"])
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE])
def test_a_write_that_ends_at_any_step_is_whole_or_leaves_nothing(
    mode: Mode, together: int
) -> None:
    orders: list[Locator] = []
    old = [row(number) for number in OLD]
    kept = OLD if mode is Mode.APPEND else ()
    new = [row(number) for number in sorted({*kept, *NEW})]

    async def before(machine: Machine, space: Tablespace) -> None:
        cows = await made(space, "cows", indexes=INDEXES)
        transaction = space.begin()
        await insert(transaction, cows, *old)
        await transaction.commit()
        orders[:] = [await staged(machine.client, cows, mode)]

    async def doomed(machine: Machine, space: Tablespace) -> None:
        machine.count()
        assert not (await ingest(space, machine.workers, JOB, orders[0])).repeated

    async def after(machine: Machine, space: Tablespace) -> None:
        cows = space.catalog.table("cows")
        written = await JobMark(space, cows.id, JOB).is_written()
        assert rows_of(space, cows) == (new if written else old)
        await settled(space)
        assert (await ingest(space, machine.workers, JOB, orders[0])).repeated is written
        await settled(space)
        cows = space.catalog.table("cows")
        assert rows_of(space, cows) == new
        index_is_right(space, cows)

    with (
        patch("herd.staging.ingesting._ROWS_TOGETHER_MAX", together),
        patch("herd.staging.merging._AT_ONCE", (1, 1)),
    ):
        assert at_every_step(before, doomed, after) >= (3 if together else 10)

"""A checkpoint stands in nobody's way: neither while it is being built nor when it fails."""

import asyncio
from pathlib import Path

import pytest

from engine.errors import CannotRead
from herd.catalog import erasing
from herd.checkpoint.child import ReadPage
from herd.checkpoint.order import Order
from tests.herd.checkpoint.built_here import in_this_process
from tests.herd.checkpoint.test_building import change, opened, read, taken


class Held:
    """A build that begins, and ends when it is told to."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def __call__(self, order: Order, read: ReadPage) -> bytes:
        self.began.set()
        await self.goes_on.wait()
        return await in_this_process(order, read)


async def test_writers_go_on_beside_a_checkpoint_which_holds_nothing_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, dict.fromkeys(range(300), "before"))
        at = setup.space.replica.position
        setup.checkpointer.build = held = Held()
        taking = asyncio.ensure_future(taken(setup))
        await held.began.wait()
        await change(setup, dict.fromkeys(range(200, 400), "meanwhile"), remove=range(100))
        held.goes_on.set()
        manifest = await taking
        assert manifest.position == at
        assert await read(setup, manifest) == dict.fromkeys(range(300), "before")
        setup.checkpointer.build = in_this_process
        again = await read(setup, await taken(setup))
        assert sorted(again) == list(range(100, 400))
        assert again[150] == "before" and again[250] == "meanwhile"


async def test_a_table_is_emptied_while_a_checkpoint_is_built_from_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, dict.fromkeys(range(300), "before"))
        setup.checkpointer.build = held = Held()
        taking = asyncio.ensure_future(taken(setup))
        await held.began.wait()
        transaction = setup.space.begin()
        await transaction.lock_table(setup.table, exclusive=True)
        catalog, changes = transaction.catalog.without_table(setup.table)
        transaction.set_catalog(catalog, [*changes, erasing(setup.table.store)])
        await transaction.commit()
        held.goes_on.set()
        assert len(await read(setup, await taking)) == 300


async def test_a_checkpoint_that_failed_locks_nothing_and_the_next_one_is_whole(
    tmp_path: Path,
) -> None:
    async def broken(order: Order, read: ReadPage) -> bytes:
        raise CannotRead("the child fell over")

    async with opened(tmp_path) as setup:
        await change(setup, dict.fromkeys(range(300), "before"))
        setup.checkpointer.build = broken
        with pytest.raises(CannotRead, match="fell over"):
            await taken(setup)
        assert len(setup.space.locks) == 0
        await change(setup, {7: "after"})
        setup.checkpointer.build = in_this_process
        manifest = await taken(setup)
        assert manifest.number == 1
        assert (await read(setup, manifest))[7] == "after"

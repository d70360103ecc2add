"""The list of checkpoints when leaders change, and when what it names is lost."""

from pathlib import Path

import pytest

from engine.errors import CannotRead, Deposed, NotFound
from engine.log.position import Position
from herd.checkpoint.child import ReadPage
from herd.checkpoint.manifest import Checkpoints, Locator, ManifestRecord
from herd.checkpoint.order import Order
from tests.herd.checkpoint.built_here import in_this_process
from tests.herd.checkpoint.test_building import change, opened, read, taken

AT = Locator(1, 0, 1, 0)


async def test_a_leader_that_was_replaced_names_nothing_that_the_next_one_swept(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a"})
        await taken(setup)
        term, checkpointer = setup.space.term, setup.checkpointer

        async def while_another_leads(order: Order, read: ReadPage) -> bytes:
            await checkpointer.sweep(term + 1)
            return await in_this_process(order, read)

        checkpointer.build = while_another_leads
        with pytest.raises(Deposed, match="claimed"):
            await checkpointer.take(term)
        checkpointer.build = in_this_process
        await checkpointer.sweep(term + 2)
        kept = (await checkpointer.list.get()).kept
        assert [record.number for record in kept] == [1]
        assert await read(setup, await checkpointer.manifest(kept[0])) == {1: "a"}
        assert (await checkpointer.take(term + 2)).number == 2


async def test_a_list_that_a_newer_leader_claimed_is_closed_to_older_ones(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        held = await setup.checkpointer.list.claim(7)
        assert held.epoch == 7 and held == await setup.checkpointer.list.claim(7)
        with pytest.raises(Deposed):
            await setup.checkpointer.list.claim(6)
        with pytest.raises(Deposed):
            await setup.checkpointer.list.add(ManifestRecord(1, Position(1, 1), 6, 0, AT))
        with pytest.raises(Deposed):
            await setup.checkpointer.sweep(6)
        assert (await setup.checkpointer.list.get()).kept == ()


async def test_a_list_outlives_its_tablespace_and_names_nothing_of_an_older_epoch(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a"})
        await taken(setup)
        term, checkpoints = setup.space.term, setup.checkpointer.list
        with pytest.raises(Deposed):
            await checkpoints.forget(term - 1)
        await checkpoints.forget(term + 1)
        assert await checkpoints.get() == Checkpoints(epoch=term + 1)
        with pytest.raises(Deposed):
            await checkpoints.add(ManifestRecord(2, Position(1, 1), term, 0, AT))
        with pytest.raises(NotFound, match="no checkpoint"):
            await checkpoints.pin("reader", None, 1_000)
        assert (await setup.checkpointer.take(term + 2)).number == 1


async def test_two_manifests_of_one_number_are_not_taken_for_each_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a"})
        manifest = await taken(setup)
        (record,) = (await setup.checkpointer.list.get()).kept
        other = ManifestRecord(record.number, record.position, record.epoch + 1, 0, AT)
        assert await setup.checkpointer.manifest(record) == manifest
        with pytest.raises(CannotRead):
            await setup.checkpointer.manifest(other)


async def test_after_a_checkpoint_was_lost_the_next_one_is_written_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        rows = dict.fromkeys(range(500), "a")
        await change(setup, rows)
        first = await taken(setup)
        (record,) = (await setup.checkpointer.list.get()).kept
        await setup.client.delete_ledger(record.locator.ledger_id)
        setup.checkpointer._manifests.clear()
        second = await taken(setup)
        assert second.number == first.number + 1
        assert not set(second.ledgers) & set(first.ledgers)
        assert await read(setup, second) == rows


async def test_pages_whose_ledger_is_lost_are_written_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        rows = dict.fromkeys(range(500), "a")
        await change(setup, rows)
        (lost,) = (await taken(setup)).ledgers
        await change(setup, {7: "b"})
        await taken(setup)
        await setup.client.delete_ledger(lost)
        third = await taken(setup)
        assert lost not in third.ledgers
        assert await read(setup, third) == rows | {7: "b"}


async def test_a_child_that_outlived_its_leader_writes_into_no_other_checkpoint(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, {1: "a"})
        orders: list[Order] = []

        async def noted(order: Order, read: ReadPage) -> bytes:
            orders.append(order)
            return await in_this_process(order, read)

        setup.checkpointer.build = noted
        await taken(setup)
        await taken(setup)
        assert not {orders[0].copy, orders[0].output} & {orders[1].copy, orders[1].output}
        assert not (tmp_path / "taking").exists()


async def test_pages_of_a_checkpoint_that_went_stay_for_those_that_name_them(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as setup:
        rows = dict.fromkeys(range(500), "a")
        await change(setup, rows)
        first = await taken(setup)
        for turn in range(4):
            await change(setup, {7: f"{turn}"})
            newest = await taken(setup)
        assert set(newest.ledgers) & set(first.ledgers)
        setup.checkpointer._manifests.clear()
        assert await read(setup, newest) == rows | {7: "3"}

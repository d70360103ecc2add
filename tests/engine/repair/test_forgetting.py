"""Forgetting a bookie: only one that is gone and that no ledger names."""

import pytest

from engine.errors import InvalidRequest, NotEnoughBookies
from engine.metadata.bookies import DECOMMISSIONS, LOST, FolderPlace
from engine.repair.forgetting import forget
from engine.repair.status import repair_status
from tests.engine.repair.yard import Yard


async def test_a_forgotten_bookie_is_in_no_list_and_gets_no_ledger() -> None:
    yard = await Yard.of(3)
    await yard.lose("b2")
    await yard.store.create("/garbage/b2", b"{}")
    await yard.registry.keep_place("b2", FolderPlace("barn", "/disk-2/bookie"))
    await forget(yard.workshop(), "b2")
    assert await yard.store.children("/garbage") == []
    assert await yard.registry.places() == {}
    assert await yard.registry.known() == ["b0", "b1"]
    status = await repair_status(yard.store)
    assert (status.lost_bookies, status.leaving_bookies) == ((), ())
    with pytest.raises(NotEnoughBookies):
        await yard.written()
    with pytest.raises(InvalidRequest, match="never was"):
        await forget(yard.workshop(), "b2")


async def test_a_bookie_that_is_there_is_not_forgotten() -> None:
    yard = await Yard.of(3)
    with pytest.raises(InvalidRequest, match="stop it first"):
        await forget(yard.workshop(), "b1")
    assert await yard.store.children(DECOMMISSIONS) == []
    await yard.written()


async def test_a_bookie_that_a_ledger_names_is_not_forgotten_nor_left() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    await yard.lose("b1")
    with pytest.raises(InvalidRequest, match=f"ledger {metadata.ledger_id} among them"):
        await forget(yard.workshop(), "b1")
    assert await yard.store.children(DECOMMISSIONS) == []
    assert "b1" in await yard.registry.known()


async def test_a_ledger_whose_metadata_cannot_be_read_may_name_the_bookie() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    key = next(
        f"/ledgers/{name}" for name in await yard.store.children("/ledgers") if name.isdecimal()
    )
    held = await yard.store.get(key)
    assert held is not None
    await yard.store.set(key, b"no metadata", held.version)
    await yard.lose("b3")
    with pytest.raises(InvalidRequest, match=f"ledger {metadata.ledger_id} may name it"):
        await forget(yard.workshop(), "b3")


async def test_a_ledger_that_was_placed_at_that_very_moment_is_repaired() -> None:
    yard = await Yard.of(4)
    metadata = await yard.written()
    name = metadata.fragments[0].ensemble[0]
    workshop = yard.workshop()
    await yard.lose(name)
    await yard.store.create(f"{LOST}/{name}", b"0")
    await yard.registry.store.delete(f"/boots/{name}")
    assert (await workshop.outlook()).to_replace(name)
    auditor, repairer = yard.auditor(), yard.repairer()
    await auditor.look()
    await repairer.run_once()
    assert name not in (await yard.metadata(metadata.ledger_id)).bookies()


async def test_a_folder_that_comes_back_is_a_bookie_again() -> None:
    yard = await Yard.of(3)
    await yard.lose("b2")
    await forget(yard.workshop(), "b2")
    await yard.add("b2")
    await yard.auditor().look()
    assert await yard.store.children(LOST) == []
    await yard.written()

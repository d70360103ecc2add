"""Whose folder a bookie starts on, and what its replies say of it."""

import pytest

from engine.bookie.segment import (
    name_of,
)
from engine.errors import FolderMismatch, FolderRolledBack
from engine.metadata.bookies import Bookies
from engine.metadata.memory import MemoryTree
from tests.engine.bookie.stable import (
    Stable,
    append,
    run_of,
    three_batches,
    writable,
)


async def test_replies_carry_the_id_and_every_start_counts() -> None:
    yard = Stable()
    service = await yard.start()
    bookie_id = service.bookie_id
    for boot in (1, 2, 3):
        reply = await append(service, run_of(7, boot, boot))
        assert (reply.bookie_id, reply.boot) == (bookie_id, boot)
        info = await service.info()
        assert (info.bookie_id, info.boot, info.cluster_id) == (bookie_id, boot, "cluster")
        found = await Bookies(yard.tree.session()).available()
        assert found[bookie_id].boot == boot
        await service.close()
        assert await Bookies(yard.tree.session()).available() == {}
        service = await yard.start()


async def test_a_folder_of_another_cluster_does_not_start() -> None:
    yard = Stable()
    await (await yard.start()).close()
    yard.tree = MemoryTree("another")
    with pytest.raises(FolderMismatch):
        await yard.start()


async def test_a_folder_that_was_rolled_back_does_not_start() -> None:
    yard = Stable()
    await (await yard.start()).close()
    old = yard.disk.read("identity", 0, 4096)
    for _ in range(2):
        await (await yard.start()).close()
    yard.disk.replace("identity", old)
    with pytest.raises(FolderRolledBack):
        await yard.start()


async def test_a_segment_of_another_bookie_is_refused() -> None:
    yard, other = Stable(1), Stable(2)
    for each in (yard, other):
        await (await three_batches(each)).close()
    foreign = other.disk.read(name_of(1), 0, 1 << 20)
    yard.disk.replace(name_of(1), foreign)
    with pytest.raises(FolderMismatch):
        await yard.start()


async def test_a_registration_that_got_lost_is_made_again() -> None:
    yard = Stable()
    service = await yard.start()
    session = yard.tree.session()
    await Bookies(session).unregister(service.bookie_id)
    assert await writable(yard) == [True]

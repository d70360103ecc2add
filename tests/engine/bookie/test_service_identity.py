"""Whose folder a bookie starts on, and what its replies say of it."""

import asyncio
import errno
from dataclasses import replace

import pytest

from engine.bookie.folder import read_identity
from engine.bookie.index_memory import MemoryIndex
from engine.bookie.marking import Marker
from engine.bookie.segment import name_of
from engine.errors import BookieUnavailable, FolderMismatch, FolderRolledBack
from engine.metadata.bookies import Bookies, FolderAge, Registration
from engine.metadata.memory import FaultyStore, MemoryTree
from engine.transport.contract import Status
from tests.engine.bookie.stable import (
    SETTINGS,
    Stable,
    append,
    run_of,
    three_batches,
    turns,
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


def read_mark(yard: Stable) -> int:
    identity = read_identity(yard.disk)
    assert identity is not None
    return identity.mark


def copy_of(yard: Stable) -> dict[str, bytes]:
    """What a backup holds of the folder."""
    names = ["identity", *(f"journal/{name}" for name in yard.disk.names("journal"))]
    return {name: yard.disk.read(name, 0, 1 << 26) for name in names}


def put_back(yard: Stable, copy: dict[str, bytes]) -> None:
    for name in yard.disk.names("journal"):
        yard.disk.remove(f"journal/{name}")
    for name, data in copy.items():
        yard.disk.replace(name, data)
    yard.index = MemoryIndex()


@pytest.mark.parametrize("starts", [1, 2])
async def test_a_folder_that_was_rolled_back_does_not_start(starts: int) -> None:
    yard = Stable()
    await (await yard.start()).close()
    old = copy_of(yard)
    for _ in range(starts):
        service = await yard.start()
        await append(service, run_of(7, 0, 3))
        await yard.crash()
    put_back(yard, old)
    with pytest.raises(FolderRolledBack):
        await yard.start()


async def test_a_copy_made_while_the_bookie_ran_does_not_start_once_it_has_ended_well() -> None:
    yard = Stable()
    service = await yard.start()
    old = copy_of(yard)
    await append(service, run_of(7, 0, 3))
    await service.close()
    new = copy_of(yard)
    put_back(yard, old)
    with pytest.raises(FolderRolledBack):
        await yard.start()
    put_back(yard, new)
    assert (await yard.start()).boot == 2


async def test_a_copy_older_than_the_last_mark_does_not_start_after_a_crash() -> None:
    yard = Stable(settings=replace(SETTINGS, mark_interval_ms=1))
    service = await yard.start()
    old = copy_of(yard)
    async with asyncio.timeout(10):
        while read_mark(yard) < 2:
            await turns(1)
    await service._marker.stop()
    assert (await yard.crash()).boot == 2
    put_back(yard, old)
    with pytest.raises(FolderRolledBack):
        await yard.start()


async def test_a_mark_that_the_disk_refused_is_the_last_and_harms_no_start() -> None:
    yard = Stable()
    service = await yard.start()
    before = read_mark(yard)

    def refuse(name: str, data: bytes) -> None:
        raise OSError(errno.EIO, "bad sector")

    yard.disk.replace = refuse  # type: ignore[method-assign]
    await service.close()
    del yard.disk.replace
    assert read_mark(yard) == before
    assert (await yard.start()).boot == 2


async def test_a_mark_whose_reply_was_lost_harms_no_start() -> None:
    yard = Stable()
    await (await yard.start()).close()
    identity = read_identity(yard.disk)
    assert identity is not None
    store = FaultyStore(yard.tree.session())
    marker = Marker(yard.disk, yard.workers, Bookies(store), identity, 60_000)
    store.lose_reply()
    await marker.mark()
    await marker.mark()
    store.lose_request()
    await marker.mark()
    assert (await yard.start()).boot == 2


async def test_no_mark_says_that_a_bookie_ended_well_whose_disk_failed() -> None:
    yard = Stable()
    service = await yard.start()
    before = read_mark(yard)
    service._fail(OSError(errno.EIO, "bad sector"))
    await service.close()
    assert read_mark(yard) == before


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


async def beside(yard: Stable) -> Stable:
    """Another machine with a copy of the folder, and the same metadata store."""
    other = Stable(2)
    other.tree = yard.tree
    other.disk.make_folder("journal")
    put_back(other, copy_of(yard))
    return other


async def registered(yard: Stable) -> int | None:
    """The start that is registered; None if there is none."""
    [*found] = (await Bookies(yard.tree.session()).available()).values()
    return found[0].boot if found else None


async def test_a_bookie_stops_when_a_copy_of_its_folder_is_registered() -> None:
    yard = Stable()
    original = await yard.start()
    await append(original, run_of(7, 0, 3))
    copy = await (await beside(yard)).start()
    async with asyncio.timeout(5):
        await original.failed()
    assert isinstance(original.failure, FolderRolledBack)
    reply = await append(original, run_of(7, 4, 4))
    assert reply.status is Status.UNAVAILABLE and not original.writable
    with pytest.raises(BookieUnavailable):
        await original.info()
    await turns()
    assert await registered(yard) == copy.boot == 2
    await original.close()
    assert await registered(yard) == copy.boot
    assert (await append(copy, run_of(7, 4, 4))).status is Status.OK
    with pytest.raises(FolderRolledBack):
        await yard.start()


async def test_a_bookie_that_did_not_see_a_copy_stops_at_its_next_mark() -> None:
    yard = Stable()
    original = await yard.start()
    await Bookies(yard.tree.session()).raise_age(original.bookie_id, FolderAge(2))
    await turns()
    assert original.writable
    await original._marker.mark()
    assert isinstance(original.failure, FolderRolledBack)
    reply = await append(original, run_of(7, 0, 0))
    assert reply.status is Status.UNAVAILABLE
    await turns()
    assert await registered(yard) is None
    mark = read_mark(yard)
    await original.close()
    assert read_mark(yard) == mark


async def test_a_bookie_whose_session_was_lost_does_not_replace_a_copys_registration() -> None:
    yard = Stable()
    original = await yard.start()
    original._publisher._unwatches.pop()()
    copy = await (await beside(yard)).start()
    await turns()
    assert original.failure is None
    original._publisher._on_session_lost()
    async with asyncio.timeout(5):
        await original.failed()
    await turns()
    assert await registered(yard) == copy.boot


async def test_a_registration_that_an_older_start_replaced_is_made_again() -> None:
    yard = Stable()
    await (await yard.start()).close()
    service = await yard.start()
    bookies = Bookies(yard.tree.session())
    await bookies.unregister(service.bookie_id)
    await bookies.register(Registration(service.bookie_id, 1))
    await turns()
    assert await registered(yard) == service.boot == 2
    with pytest.raises(FolderRolledBack, match="start 2 of its folder is registered"):
        await bookies.register(Registration(service.bookie_id, 1))
    await bookies.unregister(service.bookie_id, 1)
    assert await registered(yard) == 2

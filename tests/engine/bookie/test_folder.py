"""A bookie's folder knows whose it is and refuses to start where it must not."""

import random
from pathlib import Path

import pytest

from engine.bookie.folder import FILE_NAME, FolderIdentity, read_identity, start_folder
from engine.errors import (
    FolderDamaged,
    FolderMismatch,
    FolderRolledBack,
    FormatTooNew,
    MetadataUnavailable,
)
from engine.metadata.bookies import Bookies
from engine.metadata.memory import FaultyStore, MemoryTree
from engine.ports.system_disk import SystemDisk

RNG = random.Random(1)


def registry(cluster_id: str = "cluster") -> Bookies:
    return Bookies(MemoryTree(cluster_id).session())


async def test_each_start_raises_the_boot_count_and_keeps_the_id(tmp_path: Path) -> None:
    disk, bookies = SystemDisk(tmp_path), registry()
    first = await start_folder(disk, bookies, RNG)
    second = await start_folder(disk, bookies, RNG)
    assert (first.boot, second.boot) == (1, 2)
    assert first.bookie_id == second.bookie_id and first.salt == second.salt


async def test_a_wiped_folder_is_a_new_bookie(tmp_path: Path) -> None:
    disk, bookies = SystemDisk(tmp_path), registry()
    first = await start_folder(disk, bookies, RNG)
    disk.remove(FILE_NAME)
    assert (await start_folder(disk, bookies, RNG)).bookie_id != first.bookie_id


async def test_a_folder_of_another_cluster_is_refused_and_unchanged(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    await start_folder(disk, registry("ours"), RNG)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(FolderMismatch):
        await start_folder(disk, registry("theirs"), RNG)
    assert (tmp_path / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("starts", [1, 2])
async def test_a_folder_that_was_rolled_back_is_refused(tmp_path: Path, starts: int) -> None:
    disk, bookies = SystemDisk(tmp_path), registry()
    await start_folder(disk, bookies, RNG)
    old = (tmp_path / FILE_NAME).read_bytes()
    for _ in range(starts):
        await start_folder(disk, bookies, RNG)
    (tmp_path / FILE_NAME).write_bytes(old)
    for _ in range(2):
        with pytest.raises(FolderRolledBack):
            await start_folder(SystemDisk(tmp_path), bookies, RNG)
        assert (tmp_path / FILE_NAME).read_bytes() == old


async def test_a_start_may_end_at_any_moment_and_the_next_one_is_no_roll_back(
    tmp_path: Path,
) -> None:
    disk, tree = SystemDisk(tmp_path), MemoryTree("cluster")
    before = await start_folder(disk, Bookies(tree.session()), RNG)
    for harm in (FaultyStore.lose_request, FaultyStore.lose_reply, FaultyStore.lose_request):
        store = FaultyStore(tree.session())
        harm(store)
        with pytest.raises(MetadataUnavailable):
            await start_folder(disk, Bookies(store), RNG)
        after = await start_folder(disk, Bookies(tree.session()), RNG)
        assert after.boot > before.boot
        before = after


async def test_what_the_store_remembers_the_folder_held_before(tmp_path: Path) -> None:
    disk, tree = SystemDisk(tmp_path), MemoryTree("cluster")
    seen: list[FolderIdentity | None] = []

    async def look() -> None:
        seen.append(read_identity(disk))

    for boot in (1, 2):
        store = FaultyStore(tree.session())
        store.before_write(look)
        await start_folder(disk, Bookies(store), RNG)
        found = seen.pop()
        assert found is not None and found.boot == boot


async def test_of_two_copies_started_at_once_one_runs_and_the_other_never_does(
    tmp_path: Path,
) -> None:
    first, tree = SystemDisk(tmp_path / "first"), MemoryTree("cluster")
    second = SystemDisk(tmp_path / "second")
    first.make_folder("")
    second.make_folder("")
    await start_folder(first, Bookies(tree.session()), RNG)
    second.replace(FILE_NAME, first.read(FILE_NAME, 0, 4096))
    store = FaultyStore(tree.session())

    async def start_first() -> None:
        await start_folder(first, Bookies(tree.session()), RNG)

    store.before_write(start_first)
    for bookies in (Bookies(store), Bookies(tree.session())):
        with pytest.raises(FolderRolledBack):
            await start_folder(second, bookies, RNG)
    assert (await start_folder(first, Bookies(tree.session()), RNG)).boot == 3


async def test_a_newer_format_and_damage_are_told_apart_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    disk, bookies = SystemDisk(tmp_path), registry()
    await start_folder(disk, bookies, RNG)
    good = (tmp_path / FILE_NAME).read_bytes()
    for data, error in [
        (good[:8] + b"\x00\x63" + good[10:], FormatTooNew),
        (good[:-1] + bytes([good[-1] ^ 1]), FolderDamaged),
        (good[:10], FolderDamaged),
        (b"somebody" + good[8:], FolderMismatch),
    ]:
        (tmp_path / FILE_NAME).write_bytes(data)
        with pytest.raises(error):
            read_identity(SystemDisk(tmp_path))
        assert (tmp_path / FILE_NAME).read_bytes() == data


async def test_a_journal_without_an_identity_is_not_taken_for_a_new_folder(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    disk.make_folder("journal")
    disk.replace("journal/000000000001.segment", b"x")
    with pytest.raises(FolderDamaged):
        await start_folder(disk, registry(), RNG)

"""Folders of bookies that are empty, vanish, or are copied: they are not created again."""

import asyncio
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

import engine
from engine.bookie.settings import BookieSettings
from engine.errors import FolderDamaged, FolderError, FolderLocked, MetadataUnavailable
from engine.folder.lock import FolderLock
from engine.metadata.bookies import DECOMMISSIONS, Bookies, FolderPlace, Registration
from engine.ports.disk import RootGone
from engine.ports.system_disk import SystemDisk
from engine.server_settings import ServerSettings
from engine.transport.address import TCP, parse_host_port
from tests.engine.test_server import Site, site

HERE = ServerSettings(host="here", bookie=BookieSettings(space_check_ms=10))


async def stopped(made: Site, name: str) -> str:
    """Have a bookie served once from a folder; returns its id."""
    server = await made.serve(name, settings=HERE)
    (bookie_id,) = server.bookies
    await server.close()
    return bookie_id


async def test_an_empty_folder_where_a_bookie_has_its_data_is_refused_and_stays_empty(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as made:
        bookie_id = await stopped(made, "one")
        (tmp_path / "one").rename(tmp_path / "away")
        for mount_point in (False, True):
            if mount_point:
                (tmp_path / "one").mkdir()
            with pytest.raises(FolderDamaged, match=f"mount.*decommission {bookie_id}") as caught:
                await made.serve("one", settings=HERE)
            assert str(tmp_path / "one") in str(caught.value)
            assert mount_point == (tmp_path / "one").exists()
        assert not os.listdir(tmp_path / "one")
        # The other disks of the machine serve, and so does the folder when it is there again.
        assert len((await made.serve("one", "two", settings=HERE)).bookies) == 1
        (tmp_path / "one").rmdir()
        (tmp_path / "away").rename(tmp_path / "one")
        assert (await made.serve("one", settings=HERE)).bookies == [bookie_id]


async def test_a_new_bookie_starts_where_a_bookie_was_declared_lost(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        bookie_id = await stopped(made, "one")
        shutil.rmtree(tmp_path / "one")
        store = made.tree.session()
        await store.create(f"{DECOMMISSIONS}/{bookie_id}", b"its disk is lost")
        server = await made.serve("one", settings=HERE)
        assert server.bookies != [bookie_id]
        places = await Bookies(store).places()
        assert places[server.bookies[0]] == FolderPlace("here", str(tmp_path / "one"))


async def test_a_machine_of_another_name_may_use_the_same_path(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        bookie_id = await stopped(made, "one")
        shutil.rmtree(tmp_path / "one")
        there = replace(HERE, host="there")
        assert (await made.serve("one", settings=there)).bookies != [bookie_id]


async def test_a_folder_that_vanishes_stops_its_bookie_and_nothing_is_made_in_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as made:
        server = await made.serve("one", settings=HERE)
        writer = await made.client(1).create_ledger()
        assert await writer.append(b"moo") == 0
        (tmp_path / "one").rename(tmp_path / "away")
        (tmp_path / "one").mkdir()
        async with asyncio.timeout(30):
            failure = str(await server.failed())
        assert str(tmp_path / "one") in failure and "mounted" in failure
        assert str(tmp_path / "one") in caplog.text
        assert not await made.registered()
        await server.close()
        with pytest.raises(FolderDamaged):
            await made.serve("one", settings=HERE)
        assert not os.listdir(tmp_path / "one")


def test_a_disk_makes_nothing_below_a_root_that_vanished(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path / "root")
    disk.make_folder("journal")
    (tmp_path / "root").rename(tmp_path / "away")
    for mount_point in (False, True):
        if mount_point:
            (tmp_path / "root").mkdir()
        for make in (
            lambda: disk.make_folder("index"),
            lambda: disk.make_folder(""),
            lambda: disk.replace("identity", b"me"),
            lambda: disk.open_append("segment", create=True).close(),
            lambda: disk.space(),
        ):
            with pytest.raises(RootGone, match="root"):
                make()
        assert mount_point == (tmp_path / "root").exists()
    assert not os.listdir(tmp_path / "root")


def test_a_lock_of_a_folder_that_vanished_makes_no_other_one(tmp_path: Path) -> None:
    lock = FolderLock.of(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(FolderError, match="mount"):
        lock.try_take()
    assert not (tmp_path / "store").exists()
    lock.close()


async def test_a_copy_of_a_running_bookies_folder_does_not_start_elsewhere(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        server = await made.serve("one", settings=HERE)
        before = await made.registered()
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        with pytest.raises(FolderLocked) as caught:
            await made.serve("copy", settings=replace(HERE, host="there"))
        assert server.address in str(caught.value) and "machine here" in str(caught.value)
        assert await made.registered() == before
        assert server.bookies == list(before), "the original goes on"


async def test_a_bookie_that_was_killed_starts_at_another_port_at_once(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        bookie_id = await stopped(made, "one")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        left = Registration(bookie_id, 1, address=f"{TCP}127.0.0.1:{port}", host="here")
        await Bookies(made.tree.session()).register(left)
        server = await made.serve("one", settings=HERE)
        assert server.bookies == [bookie_id]
        assert parse_host_port(server.address.removeprefix(TCP))[1] != port


async def test_a_bookie_whose_journal_is_gone_does_not_start(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        bookie_id = await stopped(made, "one")
        journal = tmp_path / "one" / "journal"
        journal.rename(tmp_path / "away")
        for new in (False, True):
            if new:
                journal.mkdir()
            with pytest.raises(FolderDamaged, match=f"{bookie_id}: its journal is missing"):
                await made.serve("one", settings=HERE)
            assert new == journal.exists()
        journal.rmdir()
        (tmp_path / "away").rename(journal)
        assert (await made.serve("one", settings=HERE)).bookies == [bookie_id]


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_stores_folder_that_lost_a_bookie_makes_no_other_one(
    lost: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine.open(tmp_path / "store", bookies=3) as first:
        ids = first.bookies
    gone = tmp_path / "store" / f"bookie-{lost}"
    shutil.rmtree(gone)
    async with engine.open(tmp_path / "store") as again:
        left = [each for each in ids if each != ids[lost - 1]]
        assert [each for each in again.bookies if each] == left
        assert ids[lost - 1] in caplog.text and not gone.exists()
        await again.store.create(f"{DECOMMISSIONS}/{ids[lost - 1]}", b"it is lost")
    async with engine.open(tmp_path / "store") as renewed:
        assert len(renewed.bookies) == 3 and all(renewed.bookies)
        assert renewed.bookies[lost - 1] != ids[lost - 1]


async def test_a_store_whose_only_bookie_is_lost_does_not_open(tmp_path: Path) -> None:
    async with engine.open(tmp_path / "store") as first:
        (bookie_id,) = first.bookies
    shutil.rmtree(tmp_path / "store" / "bookie-1")
    with pytest.raises(FolderDamaged, match=f"bookie-1.*{bookie_id}"):
        async with engine.open(tmp_path / "store"):
            pass
    assert not (tmp_path / "store" / "bookie-1").exists()


async def test_a_stores_metadata_takes_nothing_when_its_folder_vanished(tmp_path: Path) -> None:
    async with engine.open(tmp_path / "store") as client:
        (tmp_path / "store").rename(tmp_path / "away")
        (tmp_path / "store").mkdir()
        with pytest.raises(MetadataUnavailable, match="is its disk mounted"):
            await client.store.create("/moo", b"")
    assert not os.listdir(tmp_path / "store")

"""A bookie process and its cluster: which one it joins, when it makes one, and what it says."""

import asyncio
import errno
import re
from pathlib import Path

import pytest

from engine.bookie.folder import FolderIdentity, write_identity
from engine.errors import NoSuchCluster
from engine.metadata.cluster_url import ClusterUrl
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from engine.ports.system_disk import SystemDisk
from engine.server import BookieServer, serve
from herdbook.bookie_cluster import ClusterDoor
from tests.engine.metadata.zookeeper_fixture import fresh_chroot, shared_zookeeper
from tests.herdbook.bookie_processes import BookieProcess, processes


def bookie(folder: Path, chroot: str, *more: str, name: str = "disk") -> BookieProcess:
    """A process that is told to serve one folder under a chroot."""
    zookeeper = shared_zookeeper().hosts + chroot
    options = ("--data", str(folder / name), "--zookeeper", zookeeper, "--listen", "127.0.0.1:0")
    return BookieProcess(folder / f"{chroot[1:]}.log", *options, *more)


async def assert_no_cluster_at(chroot: str) -> None:
    with pytest.raises(NoSuchCluster):
        await ZooKeeperStore.connect(shared_zookeeper().hosts, chroot=chroot, make=False)


async def test_a_new_cluster_is_announced_and_an_old_one_is_not(tmp_path: Path) -> None:
    chroot = fresh_chroot()
    process = bookie(tmp_path, chroot)
    async with processes(process):
        assert (await process.start()).startswith("serving ")
        assert await process.terminate() == 0
        url = f"herdbook://{shared_zookeeper().hosts}{chroot}"
        assert process.said().count(f"a new cluster was made at {url}: ") == 1
        assert (tmp_path / "disk" / "cluster-url").read_text() == url
        assert (await process.start()).startswith("serving ")
        assert await process.terminate() == 0
    assert process.said().count("a new cluster was made") == 1


async def test_a_folder_of_another_cluster_makes_none_by_a_misspelt_url(tmp_path: Path) -> None:
    home, misspelt = fresh_chroot(), fresh_chroot()
    process, astray = bookie(tmp_path, home), bookie(tmp_path, misspelt)
    async with processes(process, astray):
        await process.start()
        await process.terminate()
        assert await astray.start() == "" and await astray.ended() == 1
    hosts = shared_zookeeper().hosts
    said = astray.said()
    assert f"there is no cluster at herdbook://{hosts}{misspelt}" in said
    assert f"(last served at herdbook://{hosts}{home})" in said and "rebuild-metadata" in said
    await assert_no_cluster_at(misspelt)


async def test_a_folder_of_one_cluster_is_refused_by_another_with_both_urls(tmp_path: Path) -> None:
    home, other = fresh_chroot(), fresh_chroot()
    process, neighbour = bookie(tmp_path, home), bookie(tmp_path, other, name="other")
    astray = bookie(tmp_path, other)
    async with processes(process, neighbour, astray):
        for each in (process, neighbour):
            assert (await each.start()).startswith("serving ")
            await each.terminate()
        assert await astray.start() == "" and await astray.ended() == 1
    hosts = shared_zookeeper().hosts
    assert f"is at herdbook://{hosts}{other}" in astray.said()
    assert f"last served at herdbook://{hosts}{home}" in astray.said()


async def test_one_folder_of_three_with_a_damaged_identity_does_not_end_the_process(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    where = ClusterUrl(shared_zookeeper().hosts, fresh_chroot())

    async def served() -> list[str]:
        door = ClusterDoor(where, ZooKeeperSettings(), folders, print)
        bookies: list[str] = []
        ended = asyncio.Event()

        def started(server: BookieServer) -> None:
            door.remember()
            bookies.extend(server.bookies)
            ended.set()

        await serve(folders, open_store=door.open, started=started, ended=ended)
        return bookies

    before = await served()
    (folders[1] / "identity").write_text("junk")
    (folders[2] / "cluster-url").unlink()
    assert await served() == [before[0], before[2]]
    assert (folders[2] / "cluster-url").read_text() == str(where)


def test_a_folder_that_cannot_be_written_keeps_no_other_from_remembering_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_identity(SystemDisk(folder), FolderIdentity(f"{number:016x}", "cluster", 1, 1))
    replace = SystemDisk.replace

    def refuse(disk: SystemDisk, name: str, data: bytes) -> None:
        if disk.root == folders[1]:
            raise OSError(errno.EROFS, "Read-only file system")
        replace(disk, name, data)

    monkeypatch.setattr(SystemDisk, "replace", refuse)
    where = ClusterUrl("zookeeper:2181", "/prod")
    ClusterDoor(where, ZooKeeperSettings(), folders, print).remember()
    assert [(each / "cluster-url").exists() for each in folders] == [True, False, True]


async def test_a_secret_beside_an_open_zookeeper_is_warned_of(tmp_path: Path) -> None:
    chroot = fresh_chroot()
    (tmp_path / "secret").write_text("known to this cluster alone")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "password").write_text("moo")
    (tmp_path / "password").chmod(0o600)
    guarded = ("--secret-file", str(tmp_path / "secret"))
    user = ("--zookeeper-user", "cow", "--zookeeper-password-file", str(tmp_path / "password"))
    careless, careful = (
        bookie(tmp_path, chroot, *guarded),
        bookie(tmp_path, fresh_chroot(), *guarded, *user, name="other"),
    )
    async with processes(careless, careful):
        for each in (careless, careful):
            assert (await each.start()).startswith("serving ")
            await each.terminate()
    assert "warning: " in careless.said() and "--zookeeper-user" in careless.said()
    assert "warning: " not in careful.said()


async def test_lines_of_the_log_have_times(tmp_path: Path) -> None:
    process = bookie(tmp_path, fresh_chroot())
    async with processes(process):
        await process.start()
        await process.terminate()
    lines = process.said().splitlines()
    assert any(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO ", line) for line in lines)

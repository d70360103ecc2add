"""The file system as a disk: the contract, and what only a real one can get wrong."""

import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from engine.errors import DiskFull
from engine.ports import system_disk
from engine.ports.disk import Disk
from engine.ports.system_disk import SystemDisk, naming
from tests.engine.ports.disk_contract import DiskContract


class TestSystemDisk(DiskContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Disk:
        return SystemDisk(tmp_path)


def test_the_root_is_made_with_its_parents(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path / "a" / "b")
    assert disk.names("") == []
    disk.make_folder("")
    assert (tmp_path / "a" / "b").is_dir()


def test_disks_of_one_file_system_have_one_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    names = {SystemDisk(folder).space().name for folder in (tmp_path, tmp_path / "other")}
    assert len(names) == 1 and all(names)
    assert SystemDisk(Path("/proc")).space().name not in names


def test_a_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(descriptor: int, parts: list[bytes]) -> int:
        return os.write(descriptor, b"".join(parts)[:5])

    monkeypatch.setattr(os, "writev", short)
    disk = SystemDisk(tmp_path)
    file = disk.open_append("file", create=True)
    assert file.write([b"0123", b"4567", b"89"]) == 10
    assert disk.read("file", 0, 99) == b"0123456789"


def test_a_short_read_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_read = os.pread

    def short(descriptor: int, length: int, offset: int) -> bytes:
        return whole_read(descriptor, min(length, 3), offset)

    disk = SystemDisk(tmp_path)
    disk.replace("file", b"0123456789")
    monkeypatch.setattr(os, "pread", short)
    assert disk.read("file", 1, 8) == b"12345678"
    assert disk.read("file", 1, 99) == b"123456789"


def test_a_failed_sync_is_never_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = []

    def failing(descriptor: int) -> None:
        syncs.append(descriptor)
        raise OSError(5, "input/output error")

    disk = SystemDisk(tmp_path)
    file = disk.open_append("file", create=True)
    file.write([b"moo"])
    monkeypatch.setattr(system_disk, "_sync", failing)
    for _ in range(3):
        with pytest.raises(OSError):
            file.sync()
    with pytest.raises(OSError):
        file.write([b"baa"])
    assert len(syncs) == 1


def test_a_replacement_that_fails_leaves_the_old_content_and_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SystemDisk(tmp_path)
    disk.replace("file", b"old")

    def failing(descriptor: int) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(system_disk, "_sync", failing)
        with pytest.raises(OSError):
            disk.replace("file", b"new")
    assert disk.read("file", 0, 9) == b"old"
    assert disk.names("") == ["file"]
    disk.replace("file", b"newer")
    assert disk.read("file", 0, 9) == b"newer"


def test_read_descriptors_are_bounded_and_closed(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    # What an earlier test left in a cycle must not be closed between the two counts.
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    for index in range(300):
        disk.replace(f"file-{index}", index.to_bytes(2))
    for index in range(300):
        assert disk.read(f"file-{index}", 0, 2) == index.to_bytes(2)
    assert len(os.listdir("/dev/fd")) - before <= 130
    del disk
    # What others let go of meanwhile is closed, too.
    assert len(os.listdir("/dev/fd")) <= before


def test_threads_that_read_while_files_come_and_go_see_the_right_bytes(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    wrong: list[bytes] = []
    names = [f"file-{index}" for index in range(200)]
    for name in names:
        disk.replace(name, name.encode())

    def read() -> None:
        for _ in range(5):
            wrong.extend(
                data for name in names if (data := disk.read(name, 0, 99)) != name.encode()
            )

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for name in names:
        disk.replace(name, name.encode())
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_error_that_names_its_file_is_raised_as_it_is() -> None:
    for error in (DiskFull("full"), FileExistsError(errno.EEXIST, "there is one", "there")):
        with pytest.raises(OSError) as caught, naming(Path("here")):
            raise error
        assert caught.value is error and error.__cause__ is None


def test_an_error_without_a_file_names_the_one_that_was_written() -> None:
    with pytest.raises(DiskFull, match="here"), naming(Path("here")):
        raise OSError(errno.ENOSPC, "no space")
    with pytest.raises(OSError, match="'here'"), naming(Path("here")):
        raise OSError(errno.EIO, "broken")

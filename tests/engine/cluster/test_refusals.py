"""Folders that cannot be opened: one clear error each, and nothing changed."""

import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
from engine.errors import (
    FolderError,
    FolderLocked,
    FolderMismatch,
    FormatTooNew,
    InvalidRequest,
)
from engine.folder import sockets
from engine.folder.owner import FolderSettings
from engine.transport.address import SOCKET_PATH_BYTES_MAX
from tests.engine.cluster.processes import started

IMPATIENT = FolderSettings(open_timeout_ms=100)


async def assert_refused(path: Path, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        async with engine.open(path, folder_settings=IMPATIENT):
            pass


def everything(root: Path) -> dict[str, bytes]:
    """Every file under a folder but the lock, with its content."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def socket_of(folder: Path) -> Path:
    address: str = json.loads((folder / "lock").read_text())["address"]
    return Path(address.removeprefix("unix:"))


async def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "herd.txt"
    path.write_text("moo")
    await assert_refused(path, FolderMismatch, "not a folder")
    await assert_refused(path / "below", FolderMismatch, "not a folder")
    assert path.read_text() == "moo"


async def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    await assert_refused(tmp_path, FolderMismatch, "letters")
    assert os.listdir(tmp_path) == ["letters"]


async def test_a_folder_that_cannot_be_made_is_named() -> None:
    await assert_refused(Path("/proc/herd"), FolderError, "/proc/herd cannot be used")


async def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Root may write anywhere: the system's refusal is played.
    monkeypatch.setattr(Path, "touch", refuse)
    await assert_refused(tmp_path, FolderError, "Permission denied")


async def test_a_bookie_of_another_cluster_is_refused_and_unchanged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        async with engine.open(tmp_path / name):
            pass
    (tmp_path / "a" / "bookie-1").rename(tmp_path / "right")
    shutil.copytree(tmp_path / "b" / "bookie-1", tmp_path / "a" / "bookie-1")
    before = everything(tmp_path / "a")
    await assert_refused(tmp_path / "a", FolderMismatch, "belongs to cluster")
    after = everything(tmp_path / "a")
    assert after["bookie-1/identity"] == before["bookie-1/identity"]
    # The lock is free again, and the right folder opens.
    shutil.rmtree(tmp_path / "a" / "bookie-1")
    (tmp_path / "right").rename(tmp_path / "a" / "bookie-1")
    async with engine.open(tmp_path / "a") as client:
        assert client.owner


async def test_a_copied_bookie_is_not_started_twice(tmp_path: Path) -> None:
    async with engine.open(tmp_path):
        pass
    shutil.copytree(tmp_path / "bookie-1", tmp_path / "bookie-2")
    await assert_refused(tmp_path, FolderError, "bookie")


async def test_bookies_without_metadata_ask_for_a_rebuild(tmp_path: Path) -> None:
    async with engine.open(tmp_path):
        pass
    shutil.rmtree(tmp_path / "metadata")
    await assert_refused(tmp_path, FolderMismatch, "rebuild the metadata")
    assert not (tmp_path / "metadata").exists()


async def test_an_owner_that_does_not_answer_is_named_after_a_while(tmp_path: Path) -> None:
    async with engine.open(tmp_path):
        pass
    with (tmp_path / "lock").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        await assert_refused(tmp_path, FolderLocked, "starting or ending")
        (tmp_path / "lock").write_text('{"process":77,"nonce":"n","address":"unix:/nobody"}')
        await assert_refused(tmp_path, FolderLocked, "process 77")
        (tmp_path / "lock").write_text(
            '{"process":77,"nonce":"n","address":"unix:/nobody","format_major":2}'
        )
        await assert_refused(tmp_path, FormatTooNew, "newer")
    async with engine.open(tmp_path) as client:
        assert client.owner


async def test_a_socket_of_another_folder_is_not_taken_for_the_right_one(tmp_path: Path) -> None:
    async with engine.open(tmp_path / "a"), engine.open(tmp_path / "b"):
        stolen = json.loads((tmp_path / "a" / "lock").read_text())
        stolen["nonce"] = json.loads((tmp_path / "b" / "lock").read_text())["nonce"]
        (tmp_path / "b" / "lock").write_text(json.dumps(stolen))
        await assert_refused(tmp_path / "b", FolderLocked, "does not answer")


async def test_a_socket_left_by_a_killed_owner_is_removed(tmp_path: Path) -> None:
    async with started("hold", tmp_path) as owner:
        await owner.line("open")
        left = socket_of(tmp_path)
        await owner.kill()
        assert left.is_socket()
        async with engine.open(tmp_path) as client:
            assert client.owner
            assert not left.exists()
            own = socket_of(tmp_path)
        assert not own.exists()
        assert (tmp_path / "lock").read_bytes() == b""


async def test_old_sockets_where_nobody_listens_are_swept_away_and_others_stay(
    tmp_path: Path,
) -> None:
    async with engine.open(tmp_path / "a"):
        alive = socket_of(tmp_path / "a")
        ends = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        old, young = (alive.with_name(f"herdbook-swept-{name}.sock") for name in "ab")
        for end, path in zip(ends, (old, young), strict=True):
            path.unlink(missing_ok=True)
            end.bind(str(path))
        for path in (old, alive):
            os.utime(path, (1, 1))
        async with engine.open(tmp_path / "b"):
            assert alive.exists() and young.exists() and not old.exists()
        for end in ends:
            end.close()
        young.unlink()


async def test_the_socket_and_its_folder_are_the_users_alone(tmp_path: Path) -> None:
    async with engine.open(tmp_path):
        path = socket_of(tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
        assert len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) & 0o077 == 0


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with room for a socket's path below it, which pytest's own may not have."""
    with tempfile.TemporaryDirectory(prefix="h") as folder:
        yield Path(folder)


def test_a_runtime_folder_that_is_open_to_others_or_too_long_is_passed_over(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, long, temporary = short_path / "s", short_path / ("l" * 100), short_path / "t"
    for folder in (shared, long, temporary):
        folder.mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    name = "herdbook-0123456789abcdef.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared))
    assert sockets.runtime_folder(name) == shared
    shared.chmod(0o755)
    own = temporary / f"herdbook-{os.geteuid()}"
    assert sockets.runtime_folder(name) == own
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert sockets.runtime_folder(name) == own


def test_without_any_folder_for_a_socket_the_error_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    with pytest.raises(FolderError, match=r"too long a path.*XDG_RUNTIME_DIR"):
        sockets.runtime_folder("x" * SOCKET_PATH_BYTES_MAX)


async def test_a_child_that_cannot_own_the_folder_says_why(tmp_path: Path) -> None:
    async with engine.open(tmp_path):
        pass
    shutil.rmtree(tmp_path / "metadata")
    with pytest.raises(FolderMismatch, match="rebuild the metadata"):
        async with engine.open(tmp_path, process=True):
            pass


async def test_a_count_of_bookies_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for count in (0, -1, 1_000):
        with pytest.raises(InvalidRequest):
            async with engine.open(tmp_path / "herd", bookies=count):
                pass
    assert not (tmp_path / "herd").exists()


async def test_the_folder_of_a_bookie_server_is_not_opened_as_a_store(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "identity").write_bytes(b"HERDBKIE")
    before = everything(tmp_path)
    await assert_refused(tmp_path, FolderMismatch, "one bookie's folder")
    assert everything(tmp_path) == before

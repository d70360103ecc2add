"""Copies of a state that another process reads."""

import asyncio
from pathlib import Path

import pytest

from engine.errors import FolderError, FolderMismatch, StateFailed
from engine.log.position import Position
from engine.ports.system_workers import ThreadWorkers
from engine.state.rocks import RocksCopy, RocksStorage, open_rocks
from engine.state.storage import Mark
from engine.state.stored import StoredState


async def opened(path: Path) -> tuple[StoredState, ThreadWorkers]:
    workers = ThreadWorkers(asyncio.get_running_loop())
    return await open_rocks(path, workers), workers


async def test_a_copy_has_every_commit_so_far_and_nothing_later(tmp_path: Path) -> None:
    state, workers = await opened(tmp_path / "state")
    for number in range(500):
        state.put(b"row/%03d" % number, b"old")
        state.commit(Position(1, number))
    state.put(b"row/000", b"uncommitted")
    copied = await state.copy_to(tmp_path / "copy")
    assert copied == Position(1, 499)
    state.put(b"row/001", b"new")
    state.commit(Position(1, 500))
    await state.flush()
    copy = RocksCopy(tmp_path / "copy")
    try:
        assert copy.position == Position(1, 499)
        assert copy.get(b"row/000") == copy.get(b"row/001") == b"old"
        assert copy.get(b"absent") is None
        assert [key for key, _ in copy.scan(b"row/100", b"row/103")] == [
            b"row/100",
            b"row/101",
            b"row/102",
        ]
        assert len(list(copy.rows(b"", None))) == 500
    finally:
        copy.close()
    assert state.get(b"row/001") == b"new"
    await state.close()
    await workers.close()


async def test_a_copy_that_cannot_be_made_fails_alone(tmp_path: Path) -> None:
    state, workers = await opened(tmp_path / "state")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "already").touch()
    state.put(b"a", b"1")
    state.commit(Position(1, 0))
    with pytest.raises(StateFailed, match="could not be copied"):
        await state.copy_to(tmp_path / "there" / "already" / "below a file")
    state.put(b"b", b"2")
    state.commit(Position(1, 1))
    assert await state.flush() == Position(1, 1)
    await state.close()
    await workers.close()


def test_what_is_no_copy_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FolderError):
        RocksCopy(tmp_path / "nothing")
    storage = RocksStorage(tmp_path / "state")
    storage.write([(b"a", b"1")], Mark(Position(1, 1), False))
    storage.close()
    copy = RocksCopy(tmp_path / "state")
    assert copy.position == Position(1, 1)
    copy.close()
    from rocksdict import Options, Rdict

    Rdict(str(tmp_path / "other"), Options(raw_mode=True)).close()
    with pytest.raises(FolderMismatch):
        RocksCopy(tmp_path / "other")

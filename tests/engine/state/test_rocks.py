"""What only RocksDB can get wrong: folders, formats, damage, and processes that are killed."""

import asyncio
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from engine.errors import (
    FolderDamaged,
    FolderError,
    FolderLocked,
    FolderMismatch,
    FormatTooNew,
    StateFailed,
)
from engine.log.position import START, Position
from engine.ports.system_workers import ThreadWorkers
from engine.state.contract import Row
from engine.state.digest import digest
from engine.state.memory import MemoryState
from engine.state.rocks import RocksStorage, open_rocks
from engine.state.storage import Change, Mark
from engine.state.stored import StateSettings, StoredState
from tests.engine.state.state_contract import BIG, all_rows, at, fill, numbered, paged

ROWS = 50
KILLS = 6

OUT_OF_FILES = """
import os, resource, sys
from pathlib import Path
from engine.state.rocks import RocksStorage
import rocksdict

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for free in (0, 1, 2, 3, 4, 5, 6, 20):
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for file in taken[:free]:
            os.close(file)
    try:
        storage = RocksStorage(Path(sys.argv[1]))
        print(storage.get(b"000000"))
        storage.close()
    except Exception as error:
        print(type(error).__name__)
    for file in taken[free:]:
        os.close(file)
"""

WRITER = """
import asyncio, sys
from pathlib import Path
from engine.log.position import Position
from engine.ports.system_workers import ThreadWorkers
from engine.state.rocks import open_rocks
from engine.state.storage import Change, Mark
from engine.state.stored import StateSettings

async def main():
    workers = ThreadWorkers(asyncio.get_running_loop())
    state = await open_rocks(Path(sys.argv[1]), workers, StateSettings(20_000, 2))
    entry = state.position.entry
    while True:
        entry += 1
        # Every row of a commit says which one it is of; one comes and one goes with each.
        for key in range(%d):
            state.put(b"row/%%d" %% key, b"%%d" %% entry + b"." * 200)
        state.put(b"only/%%d" %% entry, b"")
        state.delete(b"only/%%d" %% (entry - 1))
        state.commit(Position(1, entry))
        if entry %% 100 == 0:
            await state.flush()
            print(entry, flush=True)
        await asyncio.sleep(0)

asyncio.run(main())
"""

RESTORER = """
import asyncio, sys
from pathlib import Path
from engine.ports.system_workers import ThreadWorkers
from engine.state.rocks import open_rocks

async def main():
    workers = ThreadWorkers(asyncio.get_running_loop())
    state = await open_rocks(Path(sys.argv[1]), workers)
    await state.clear()
    number = 0
    while True:
        await state.restore([(b"%09d" % key, b"." * 2_000) for key in range(number, number + 500)])
        number += 500
        print(number, flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def opened(path: Path, gather_bytes: int = 20_000) -> AsyncIterator[StoredState]:
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        state = await open_rocks(path, workers, StateSettings(gather_bytes=gather_bytes))
        yield state
        await state.close()
    finally:
        await workers.close()


def killed_after(program: str, path: Path, lines: int) -> int:
    """Run a program on a folder and kill it in mid-air; the number that it told last."""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(lines)][-1]
        process.send_signal(signal.SIGKILL)
    return told


async def test_a_killed_process_leaves_every_row_at_the_position_that_is_told(
    tmp_path: Path,
) -> None:
    before = -1
    for kill in range(KILLS):
        flushed = killed_after(WRITER % ROWS, tmp_path / "state", 1 + kill * 3)
        async with opened(tmp_path / "state") as state:
            entry = state.position.entry
            assert entry >= flushed > before
            expected = {b"row/%d" % key: b"%d" % entry + b"." * 200 for key in range(ROWS)}
            assert all_rows(state) == {**expected, b"only/%d" % entry: b""}
            before = entry


async def test_a_process_killed_while_it_restores_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with opened(path) as state:
        fill(state, numbered(0, 1_000), 1)
    # Enough for memtables to reach the disk by themselves.
    assert killed_after(RESTORER, path, 100) >= 50_000
    assert sum(file.stat().st_size for file in path.glob("*.sst")) > 0
    async with opened(path) as state:
        assert state.position == START and all_rows(state) == {}
        fill(state, {b"a": b"1"}, 1)
    async with opened(path) as state:
        assert all_rows(state) == {b"a": b"1"} and state.position == at(1)


def test_a_write_that_fails_changes_neither_rows_nor_position(tmp_path: Path) -> None:
    storage = RocksStorage(tmp_path / "state")
    storage.write([(b"a", b"1")], Mark(at(1), False))

    def changes() -> Iterator[Change]:
        yield b"a", b"2"
        yield b"b", b"2"
        raise MemoryError

    with pytest.raises(MemoryError):
        storage.write(changes(), Mark(at(2), False))
    assert storage.get(b"a") == b"1" and storage.get(b"b") is None
    storage.flush()
    storage.close()
    again = RocksStorage(tmp_path / "state")
    assert again.mark() == (at(1), False) and list(again.rows(b"", None)) == [(b"a", b"1")]
    again.close()


async def test_a_folder_is_opened_once_at_a_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "state"):
        with pytest.raises(FolderLocked):
            RocksStorage(tmp_path / "state")
    async with opened(tmp_path / "state") as state:
        assert state.position == START


async def test_a_forgotten_snapshot_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as state:
        fill(state, numbered(0, 10), 1)
        snapshot = state.snapshot()
        snapshot.page(None, 1)
    async with opened(tmp_path / "state") as state:
        assert state.position == at(1)
        with pytest.raises(StateFailed):
            snapshot.page(None, 1)


async def test_a_folder_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state"
    RocksStorage(path).close()
    for value, error in (
        (struct.pack(">HHQq", 2, 0, 7, 7) + b"more", FormatTooNew),
        (b"short", FolderMismatch),
    ):
        _set(path, b"", value)
        for _ in range(2):
            with pytest.raises(error):
                RocksStorage(path)
        assert _get(path, b"") == value
    # A newer minor version may have more to say.
    _set(path, b"", struct.pack(">HHQq", 1, 0, 7, 7) + b"more")
    storage = RocksStorage(path)
    assert storage.mark() == (Position(7, 7), False)
    storage.close()


async def test_another_database_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "state"
    RocksStorage(path).close()
    _set(path, b"@", b"a bookie's index")
    _delete(path, b"")
    with pytest.raises(FolderMismatch):
        RocksStorage(path)
    with pytest.raises(FolderError):
        (tmp_path / "file").write_text("")
        RocksStorage(tmp_path / "file" / "state")


async def test_damaged_bytes_are_an_error_and_never_missing_rows(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with opened(path) as state:
        fill(state, {key: random.Random(1).randbytes(500) for key in numbered(0, 2_000)}, 1)
    [file] = path.glob("*.sst")
    content = bytearray(file.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 300] = b"\0" * 300
    file.write_bytes(content)
    workers = ThreadWorkers(asyncio.get_running_loop())
    state = await open_rocks(path, workers)
    snapshot = state.snapshot()
    with pytest.raises(StateFailed):
        paged(snapshot)
    with pytest.raises(StateFailed):
        state.scan(b"", None, BIG)
    with pytest.raises(StateFailed):
        await state.close()
    (path / "CURRENT").write_text("nothing\n")
    with pytest.raises(FolderDamaged):
        await open_rocks(path, workers)
    await workers.close()


def test_a_process_out_of_files_calls_a_state_neither_damaged_nor_locked(tmp_path: Path) -> None:
    storage = RocksStorage(tmp_path / "state")
    storage.write([(b"000000", b"v0")], Mark(at(1), False))
    storage.flush()
    storage.close()
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_FILES, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["FolderError"] * 7 + ["b'v0'"], done.stdout + done.stderr


async def test_a_folder_may_be_named_by_a_text(tmp_path: Path) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    state = await open_rocks(str(tmp_path / "state"), workers)
    fill(state, {b"a": b"1"}, 1)
    await state.close()
    await workers.close()
    async with opened(tmp_path / "state") as again:
        assert again.get(b"a") == b"1"


async def test_a_state_in_rocksdb_is_that_in_memory(tmp_path: Path) -> None:
    rng = random.Random(5)
    memory = MemoryState()
    async with opened(tmp_path / "state") as state:
        for entry in range(300):
            for _ in range(rng.randrange(60)):
                key = b"%05d" % rng.randrange(3_000)
                if rng.random() < 0.3:
                    state.delete(key)
                    memory.delete(key)
                else:
                    value = rng.randbytes(rng.randrange(50))
                    state.put(key, value)
                    memory.put(key, value)
            state.commit(at(entry))
            memory.commit(at(entry))
            if entry % 20 == 0:
                assert digest(state) == digest(memory)
                first = b"%05d" % rng.randrange(3_000)
                assert state.scan(first, None, 50) == memory.scan(first, None, 50)
            if entry % 50 == 0:
                await state.flush()
        last = digest(memory)
    async with opened(tmp_path / "state") as state:
        assert digest(state) == last


async def test_pages_may_be_read_in_a_thread_while_commits_go_on(tmp_path: Path) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    async with opened(tmp_path / "state") as state:
        fill(state, numbered(0, 5_000), 1)
        await state.flush()
        fill(state, numbered(4_000, 6_000, b"w"), 2)
        before = sorted(all_rows(state).items())
        snapshot = state.snapshot()
        rows: list[Row] = []
        entry = 3
        while True:
            above = rows[-1][0] if rows else None
            reading = asyncio.ensure_future(workers.run(partial(snapshot.page, above, 3_000)))
            while not reading.done():
                fill(state, numbered(entry, entry + 300, b"later"), entry)
                state.scan(b"%06d" % entry, None, 10)
                entry += 1
                await asyncio.sleep(0)
            if not (page := await reading):
                break
            rows += page
        assert rows == before
        snapshot.close()
    await workers.close()


async def test_another_thread_gets_rows_while_commits_go_on(tmp_path: Path) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    async with opened(tmp_path / "state", gather_bytes=2_000) as state:
        keys = [b"%03d" % number for number in range(50)]
        fill(state, dict.fromkeys(keys, b"%08d" % 0), 0)

        def read() -> int:
            newest, looks = 0, 0
            while newest < 400:
                for key in keys:
                    value = state.get(key)
                    assert value is not None, key
                    # The rows of a commit change in the order of their keys.
                    assert int(value) >= newest - 1, (key, value, newest)
                    newest = max(newest, int(value))
                    looks += 1
            return looks

        reading = asyncio.ensure_future(workers.run(read))
        for entry in range(1, 401):
            fill(state, dict.fromkeys(keys, b"%08d" % entry), entry)
            await asyncio.sleep(0)
        assert await reading > 0
    await workers.close()


def _set(path: Path, key: bytes, value: bytes) -> None:
    from rocksdict import Options, Rdict

    database = Rdict(str(path), Options(raw_mode=True))
    database[key] = value
    database.close()


def _get(path: Path, key: bytes) -> bytes:
    from rocksdict import Options, Rdict

    database = Rdict(str(path), Options(raw_mode=True))
    value = database.get(key)
    assert isinstance(value, bytes)
    database.close()
    return value


def _delete(path: Path, key: bytes) -> None:
    from rocksdict import Options, Rdict

    database = Rdict(str(path), Options(raw_mode=True))
    del database[key]
    database.close()

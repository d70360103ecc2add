"""The two indexes pass one suite; what a crash loses is a suffix of batches."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.bookie.index import Changes, Index, Place, Position
from engine.bookie.index_memory import MemoryIndex
from engine.bookie.index_rocks import RocksIndex
from engine.errors import FolderMismatch, FormatTooNew
from tests.engine.bookie.index_contract import IndexContract, added, place

WRITER = """
import sys
from pathlib import Path
from engine.bookie.index import Changes, Place, Position
from engine.bookie.index_rocks import RocksIndex

index = RocksIndex(Path(sys.argv[1]))
number = 0
while True:
    facts = [(b"fact/%d" % number, b"x" * 2_000)]
    place = Place(number % 7, number, number, 1, number, 10, number)
    index.apply(Changes((), [place], facts, Position(1, number)))
    if number % 500 == 499:
        index.flush()
        print(number, flush=True)
    number += 1
"""


class TestMemoryIndex(IndexContract):
    @pytest.fixture
    def index(self) -> Index:
        return MemoryIndex()

    def reopened(self, index: Index) -> Index:
        index.close()
        return index


class TestRocksIndex(IndexContract):
    @pytest.fixture
    def index(self, tmp_path: Path) -> Index:
        self.path = tmp_path / "index"
        return RocksIndex(self.path)

    def reopened(self, index: Index) -> Index:
        index.close()
        return RocksIndex(self.path)


def test_a_crash_in_memory_keeps_what_was_flushed_and_nothing_else() -> None:
    index = MemoryIndex()
    index.apply(added(place(1, 0, 0), position=Position(1, 1)))
    index.flush()
    index.apply(added(place(1, 1, 1), position=Position(1, 2)))
    index.crash()
    assert index.find(1, 0, 9) == [place(1, 0, 0)]
    assert index.position() == (1, 1)


def test_a_killed_process_loses_a_suffix_of_batches_and_the_position_tells_which(
    tmp_path: Path,
) -> None:
    path = tmp_path / "index"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(8)][-1]
        process.send_signal(signal.SIGKILL)
    index = RocksIndex(path)
    covered = index.position().offset
    assert covered >= flushed
    for number in range(covered + 1):
        assert index.fact(b"fact/%d" % number) is not None
        assert index.find(number % 7, number, number)[0].first == number
    assert index.fact(b"fact/%d" % (covered + 1)) is None
    index.close()


def test_an_index_is_read_without_changing_it(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with pytest.raises(FolderMismatch):
        RocksIndex(path, read_only=True)
    assert not path.exists()
    index = RocksIndex(path)
    index.apply(added(place(1, 0, 9)))
    index.close()
    before = sorted((file.name, file.stat().st_mtime_ns) for file in path.glob("*.sst"))
    again = RocksIndex(path, read_only=True)
    assert again.find(1, 0, 9) == [place(1, 0, 9)] and again.facts(b"", b"", 9) == []
    again.close()
    assert sorted((file.name, file.stat().st_mtime_ns) for file in path.glob("*.sst")) == before


@pytest.mark.parametrize(("number", "error"), [(b"99", FormatTooNew), (b"1", FolderMismatch)])
def test_an_index_of_another_format_is_refused(
    tmp_path: Path, number: bytes, error: type[Exception]
) -> None:
    from rocksdict import Options, Rdict

    path = tmp_path / "index"
    RocksIndex(path).close()
    database = Rdict(str(path), Options(raw_mode=True))
    database[b"!"] = number
    database.close()
    with pytest.raises(error):
        RocksIndex(path)


def test_a_flush_takes_no_more_of_the_disk_than_was_said(tmp_path: Path) -> None:
    index = RocksIndex(tmp_path / "index")
    places = [Place(7, number, number, 1, number * 100, 100, number) for number in range(20_000)]
    index.apply(Changes((), places[::2], (), Position(1, 1)))
    said_bytes = index.unflushed_bytes()
    index.flush()
    taken_bytes = sum(file.stat().st_size for file in (tmp_path / "index").glob("*.sst"))
    assert 0 < taken_bytes <= said_bytes
    index.close()

"""Files of `blobit://`: read from anywhere, and there whole or not at all."""

import contextlib
import gc
import io
import os
import pickle
import random

import fsspec
import pytest

from blobit.errors import BlobsClosed
from herdbook.fs import BlobFileSystem


def body(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_a_file_is_read_from_anywhere(files: BlobFileSystem) -> None:
    data = body(3_000_000)
    files.pipe("cows/a", data)
    with files.open("cows/a") as file:
        assert file.size == len(data) and file.seekable() and file.readable()
        assert file.read(10) == data[:10]
        assert file.seek(-10, io.SEEK_END) == len(data) - 10
        assert file.read() == data[-10:] and file.read() == b""
        file.seek(2_000_000)
        assert file.read(1_000) == data[2_000_000:2_001_000]
        file.seek(-500, io.SEEK_CUR)
        assert file.read(1) == data[2_000_500:2_000_501]
        file.seek(len(data) + 5)
        assert file.read(1) == b""
        with pytest.raises((ValueError, OSError)):
            file.seek(-1)
        file.seek(0)
        assert file.read() == data
        into = bytearray(100)
        file.seek(7)
        assert file.readinto(into) == 100 and bytes(into) == data[7:107]
    with pytest.raises(ValueError, match="closed"):
        file.read()


@pytest.mark.parametrize("seed", range(4))
def test_a_file_reads_as_bytes_in_memory_do(files: BlobFileSystem, seed: int) -> None:
    draw = random.Random(seed)
    data = body(1_200_000 + seed)
    files.pipe("cows/a", data)
    other = io.BytesIO(data)
    with files.open("cows/a") as file:
        for _ in range(120):
            if draw.random() < 0.3:
                place = draw.randrange(len(data) + 10)
                assert file.seek(place) == other.seek(place)
            size = draw.choice((0, 1, 100, 70_000, 300_000))
            assert file.read(size) == other.read(size)
            assert file.tell() == other.tell()


def test_an_empty_file_has_nothing(files: BlobFileSystem) -> None:
    files.touch("cows/a")
    with files.open("cows/a") as file:
        assert file.read() == b"" and file.size == 0


def test_lines_and_text_are_read(files: BlobFileSystem) -> None:
    with files.open("cows/a", "w", encoding="utf-8", newline="\n") as file:
        assert file.write("élsa\nresi\n") == 10
    assert files.cat("cows/a") == "élsa\nresi\n".encode()
    with files.open("cows/a", "r", encoding="utf-8") as file:
        assert list(file) == ["élsa\n", "resi\n"]


def test_a_big_file_is_written_piece_by_piece(files: BlobFileSystem) -> None:
    data = body(5_500_000)
    with files.open("cows/a", "wb") as file:
        for start in range(0, len(data), 77_777):
            file.write(memoryview(data)[start : start + 77_777])
        assert file.tell() == len(data)
        assert not files.exists("cows/a")
    assert files.cat("cows/a") == data


def test_an_error_inside_the_block_leaves_nothing(files: BlobFileSystem) -> None:
    for mode, piece in (("wb", b"half"), ("w", "half"), ("ab", b"half")):
        with pytest.raises(KeyError), files.open("cows/a", mode) as file:
            file.write(piece)
            raise KeyError
    assert files.find("cows") == []


def test_a_forgotten_file_leaves_nothing(files: BlobFileSystem) -> None:
    for mode, piece in (("wb", b"half" * 500_000), ("w", "half")):
        file = files.open("cows/a", mode)
        file.write(piece)
        del file
        gc.collect()
    assert files.find("cows") == []


def test_an_overwritten_file_keeps_its_old_bytes_until_the_new_are_there(
    files: BlobFileSystem,
) -> None:
    files.pipe("cows/a", b"old")
    with files.open("cows/a", "wb") as file:
        file.write(b"new")
        assert files.cat("cows/a") == b"old"
    assert files.cat("cows/a") == b"new"


def test_bytes_are_appended_when_the_file_is_closed(files: BlobFileSystem) -> None:
    files.pipe("cows/a", b"one")
    with files.open("cows/a", "ab") as file:
        file.write(b" two")
        assert files.cat("cows/a") == b"one"
    with files.open("cows/b", "ab") as file:
        file.write(b"begun")
    assert files.cat("cows/a") == b"one two" and files.cat("cows/b") == b"begun"


def test_a_transaction_makes_all_files_or_none(files: BlobFileSystem) -> None:
    with files.transaction:
        for name in ("a", "b"):
            with files.open(f"cows/{name}", "wb") as file:
                file.write(name.encode())
        assert files.find("cows") == []
    assert files.find("cows") == ["cows/a", "cows/b"]
    with pytest.raises(KeyError), files.transaction:
        with files.open("cows/c", "wb") as file:
            file.write(b"c")
        raise KeyError
    assert files.find("cows") == ["cows/a", "cows/b"]


def test_many_big_files_may_be_open_at_once(files: BlobFileSystem) -> None:
    piece = body(5_000_000)
    opened = [files.open(f"cows/{number}", "wb") for number in range(12)]
    for file in opened:
        file.write(piece)
    for number, file in enumerate(opened):
        file.write(str(number).encode())
        file.close()
    with files.transaction:
        for number in range(12):
            with files.open(f"cows/later/{number}", "wb") as file:
                file.write(piece)
    assert len(files.find("cows")) == 24
    assert files.cat("cows/11") == piece + b"11"
    assert files.cat("cows/later/3") == piece


def test_a_reader_keeps_its_version_or_says_that_it_went(files: BlobFileSystem) -> None:
    data = body(3_000_000)
    files.pipe("cows/a", data)
    with files.open("cows/a") as file:
        assert file.read(10) == data[:10]
        files.pipe("cows/a", b"new")
        # Whose ledger still stands, its bytes do, too.
        assert file.read() == data[10:]


def test_a_file_can_be_pickled_where_it_stands(files: BlobFileSystem) -> None:
    files.pipe("cows/a", b"0123456789")
    with files.open("cows/a") as file:
        file.seek(4)
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.read() == b"456789"
        assert file.full_name == "blobit://cows/a" and file.details["size"] == 10


def test_compressed_and_cached_files_work(files: BlobFileSystem, folder: object) -> None:
    with files.open("cows/a.gz", "wt", compression="infer") as file:
        file.write("moo" * 1_000)
    assert files.size("cows/a.gz") < 1_000
    with files.open("cows/a.gz", "rt", compression="infer") as file:
        assert file.read() == "moo" * 1_000
    files.pipe("cows/b", b"moo")
    with fsspec.open("simplecache::blobit://cows/b", "rb", blobit={"store": str(folder)}) as file:
        assert file.read() == b"moo"


def test_a_mode_that_objects_do_not_have_is_refused(files: BlobFileSystem) -> None:
    files.pipe("cows/a", b"moo")
    with pytest.raises(ValueError, match="r\\+b"):
        files.open("cows/a", "r+b")
    for mode in ("rb", "wb"):
        with pytest.raises(IsADirectoryError):
            files.open("cows", mode)


def test_a_forked_child_opens_the_store_anew(files: BlobFileSystem) -> None:
    files.pipe("cows/a", body(2_000_000))
    file = files.open("cows/a")
    file.read(300_000)
    written = files.open("cows/b", "wb")
    written.write(b"half")
    child = os.fork()
    if not child:
        status = 1
        try:
            file.seek(1_900_000)
            try:
                file.read()
            except BlobsClosed:
                with contextlib.suppress(BlobsClosed):
                    written.close()
                status = 0 if files.cat_file("cows/a", 0, 4) == body(2_000_000)[:4] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read() == body(2_000_000)[300_000:]
    file.close()
    written.close()
    assert files.cat("cows/b") == b"half"

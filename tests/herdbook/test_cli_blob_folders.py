"""`herdbook blob put -r` and `get -r`: whole folders, more than once, and what is odd in them."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from typer.main import get_command

import herdbook
from blobit import BlobNotStored
from blobit.bucket import AsyncBucket
from blobit.sync_bucket import Bucket
from herdbook.cli import blob_folders, blob_getting, blob_putting
from herdbook.cli.blob import app

COMMAND: Any = get_command(app)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, herdbook.Book]]:
    path = tmp_path_factory.mktemp("store")
    with herdbook.open(path) as book:
        yield path, book


@pytest.fixture
def bucket(store: tuple[Path, herdbook.Book], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    path, book = store
    monkeypatch.setenv("HERDBOOK_URL", str(path))
    yield book.blobs.create_bucket("cows")
    book.blobs.delete_bucket("cows", force=True)


def call(*arguments: str) -> Result:
    answer = CliRunner().invoke(COMMAND, list(arguments))
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer


def said(*arguments: str) -> str:
    answer = call(*arguments)
    assert (answer.exit_code, answer.stderr) == (0, ""), answer.output
    return answer.stdout


def rows(answer: Result) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    return {row["name"] or row["path"]: row for row in found}


def body(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a little of everything."""
    root = tmp_path / "tree"
    for number in range(150):
        file = root / f"folder {number % 4}" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body(number * 50))
    (root / "big.bin").write_bytes(body(3_500_000))
    (root / "empty file").touch()
    (root / "empty folder" / "in it").mkdir(parents=True)
    (root / "élève.txt").write_text("é")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    os.utime(root / "run.sh", ns=(1_234_567_890_123_456_789,) * 2)
    (root / "link").symlink_to("big.bin")
    (root / "broken").symlink_to("/nowhere/at all")
    (root / "folder 0" / "up").symlink_to("..")
    return root


def content(root: Path) -> dict[str, Any]:
    """Everything below a folder that is to come back."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = "folder"
        else:
            status = path.stat()
            found[name] = (path.read_bytes(), status.st_mode, status.st_mtime_ns)
    return found


def test_a_folder_comes_back_as_it_was(bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    assert "158 put" in said("put", "-r", str(tree), "cows/all")
    assert "158 got" in said("get", "-r", "cows/all", str(tmp_path / "back"))
    assert content(tmp_path / "back") == content(tree)
    assert bucket.stat("all/link").metadata == {"file-link": "big.bin"}
    assert bucket.stat("all/empty folder/in it/").length == 0
    assert bucket.stat("all/run.sh").metadata == {
        "file-mode": "755",
        "file-mtime-ns": "1234567890123456789",
    }
    assert "158 got" in said("get", "-r", "cows", str(tmp_path / "whole"))
    assert content(tmp_path / "whole" / "all") == content(tree)


def test_a_second_run_passes_over_what_is_there(bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    back = str(tmp_path / "back")
    said("put", "-r", str(tree), "cows/all")
    said("get", "-r", "cows/all", back)
    etags = {info.name: info.etag for info in bucket.scan()}
    assert said("put", "-r", str(tree), "cows/all") == "in cows/all: 158 there already\n"
    assert said("get", "-r", "cows/all", back) == "of cows/all: 158 there already\n"
    # Only what differs moves: by content, by length, by being there at all.
    (tree / "folder 1" / "1.txt").write_bytes(b"x" * 50)
    (tree / "big.bin").write_bytes(body(3_500_001))
    (tree / "link").unlink()
    (tree / "link").symlink_to("run.sh")
    bucket.delete("all/folder 2/2.txt")
    (tree / "new").write_bytes(b"")
    put = rows(call("put", "-r", "--json", str(tree), "cows/all"))
    changed = {"all/folder 1/1.txt", "all/big.bin", "all/link", "all/folder 2/2.txt", "all/new"}
    assert {name for name, row in put.items() if row["done"] == "put"} == changed
    kept = [info for info in bucket.scan() if info.name not in changed]
    assert all(etags[info.name] == info.etag for info in kept)
    (tmp_path / "back" / "élève.txt").unlink()
    got = rows(call("get", "-r", "--json", "cows/all", back))
    assert {name for name, row in got.items() if row["done"] == "got"} == (
        changed | {"all/élève.txt"}
    ) - {"all/folder 2/2.txt"}
    assert content(tmp_path / "back") == content(tree)
    assert "159 put" in said("put", "-r", "--again", str(tree), "cows/all")
    assert "159 got" in said("get", "-r", "--again", "cows/all", back)


def test_many_files_are_compared_with_one_listing(
    bucket: Bucket, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said("put", "-r", str(tree), "cows/all")
    monkeypatch.setattr(blob_putting, "LOOKED_UP_MAX", 10)

    async def refused(*_: object) -> None:
        raise AssertionError("asked for one name")

    monkeypatch.setattr(AsyncBucket, "stat", refused)
    assert said("put", "-r", str(tree), "cows/all") == "in cows/all: 158 there already\n"


def test_several_folders_go_below_their_names(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    (tmp_path / "c").write_text("c")
    sources = [str(tmp_path / name) for name in "abc"]
    assert "3 put" in said("put", "-r", *sources, "cows/all", "-j", "1")
    assert [info.name for info in bucket.scan()] == ["all/a/x", "all/b/x", "all/c"]


def test_links_are_kept_followed_or_left_out(bucket: Bucket, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "below").mkdir(parents=True)
    (root / "below" / "file").write_text("x")
    (root / "link").symlink_to("below")
    (root / "below" / "round").symlink_to("..")
    assert (
        "1 put (1 B), 2 left out"
        in call("put", "-r", "--links", "skip", str(root), "cows/a").stdout
    )
    assert [info.name for info in bucket.scan("a/")] == ["a/below/file"]
    answer = call("put", "-r", "--links", "follow", str(root), "cows/b")
    assert answer.exit_code == 1 and "leads back" in answer.stderr
    assert [info.name for info in bucket.scan("b/")] == ["b/below/file", "b/link/file"]
    assert "keep, follow or skip" in call("put", "-r", "--links", "x", str(root), "cows").stderr


def test_what_is_no_file_is_left_out_and_told(bucket: Bucket, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    os.mkfifo(root / "pipe")
    (root / "file").write_text("x")
    answer = call("put", "-r", str(root), "cows")
    assert answer.exit_code == 0 and answer.stdout == "in cows: 1 put (1 B), 1 left out\n"
    assert answer.stderr == f"{root}/pipe: no regular file\n"


def test_what_cannot_be_stored_fails_and_the_others_go(bucket: Bucket, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("x")
    with open(os.fsencode(root) + b"/caf\xe9", "wb") as file:
        file.write(b"x")
    (root / "gone").symlink_to("nowhere")
    answer = call("put", "-r", "--links", "follow", str(root), "cows")
    assert answer.exit_code == 1 and answer.stdout == "in cows: 1 put (1 B), 2 failed\n"
    assert "no Unicode text" in answer.stderr and "gone: No such file" in answer.stderr
    assert [info.name for info in bucket.scan()] == ["file"]


def test_a_file_that_goes_meanwhile_fails_alone(
    bucket: Bucket, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = blob_folders.walk

    def then_gone(*arguments: Any) -> Any:
        yield from real(*arguments)
        (tree / "run.sh").unlink()
        (tree / "big.bin").unlink()

    monkeypatch.setattr("herdbook.cli.blob_transfer.walk", then_gone)
    answer = call("put", "-r", str(tree), "cows")
    assert answer.exit_code == 1 and "156 put" in answer.stdout and "2 failed" in answer.stdout
    assert answer.stderr.count("FileNotFoundError") == 2
    assert not bucket.exists("big.bin")


def test_a_store_that_takes_nothing_ends_the_run(
    bucket: Bucket, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise BlobNotStored("no bookie answers")

    monkeypatch.setattr(AsyncBucket, "put", refused)
    answer = call("put", "-r", str(tree), "cows")
    assert answer.exit_code == 1 and answer.stderr == "BlobNotStored: no bookie answers\n"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a//x", "./x", "a/./x", ".."])
def test_a_name_that_leads_out_of_the_folder_is_refused(
    bucket: Bucket, tmp_path: Path, name: str
) -> None:
    bucket.put(name, b"bad")
    bucket.put("good", b"good")
    answer = call("get", "-r", "cows", str(tmp_path / "back" / "here"))
    assert answer.exit_code == 1 and "UnsafeName" in answer.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["back", "here", "good"]


def test_nothing_is_written_through_a_link(bucket: Bucket, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    back = tmp_path / "back"
    bucket.put("way", b"", metadata={"file-link": str(outside)})
    bucket.put("way/file", b"bad")
    answer = call("get", "-r", "cows", str(back))
    # The folder was there first, so that the link has no place.
    assert answer.exit_code == 1 and list(outside.iterdir()) == []
    assert (back / "way" / "file").read_bytes() == b"bad"
    (back / "way" / "file").unlink()
    (back / "way").rmdir()
    (back / "way").symlink_to(outside)
    answer = call("get", "-r", "cows", str(back))
    assert answer.exit_code == 1 and "UnsafeName" in answer.stderr
    assert list(outside.iterdir()) == []
    # A link that stands where a file goes is replaced, not followed.
    (outside / "target").write_bytes(b"mine")
    (back / "plain").symlink_to(outside / "target")
    bucket.put("plain", b"new")
    call("get", "-r", "cows", str(back))
    assert (back / "plain").read_bytes() == b"new" and not (back / "plain").is_symlink()
    assert (outside / "target").read_bytes() == b"mine"


def test_a_mode_never_gives_more_than_a_users_rights(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a", b"x", metadata={"file-mode": "7755", "file-mtime-ns": "9" * 40})
    bucket.put("b", b"x", metadata={"file-mode": "nonsense", "file-mtime-ns": "x"})
    said("get", "-r", "cows", str(tmp_path / "back"))
    assert (tmp_path / "back" / "a").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "back" / "b").read_bytes() == b"x"


def test_a_file_stands_where_a_folder_is_wanted(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a", b"file")
    bucket.put("a/b", b"below")
    bucket.put("c", b"other")
    answer = call("get", "-r", "cows", str(tmp_path / "back"), "-j", "1")
    assert answer.exit_code == 1 and "1 failed" in answer.stdout and "2 got" in answer.stdout
    assert (tmp_path / "back" / "c").read_bytes() == b"other"
    assert list((tmp_path / "back").glob(".*")) == []


def test_a_big_object_goes_on_where_an_earlier_run_ended(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = body(3_500_000)
    info = bucket.put("big", data)
    file = tmp_path / "big"
    part = Path(blob_folders.Destination(str(tmp_path)).part_of(str(file), info.etag))
    part.write_bytes(data[:2_000_000])
    asked: list[int] = []
    real = AsyncBucket.stream

    def noted(self: AsyncBucket, name: str, offset: int = 0, length: int | None = None) -> Any:
        asked.append(offset)
        return real(self, name, offset, length)

    monkeypatch.setattr(AsyncBucket, "stream", noted)
    assert said("get", "cows/big", str(file)) == "of cows/big: 1 got (3.5 MB)\n"
    assert file.read_bytes() == data and asked == [2_000_000] and not part.exists()
    # What a crash left is not what was written: it is begun anew.
    file.unlink()
    part.write_bytes(bytes(3_000_000))
    assert "1 got" in said("get", "cows/big", str(file))
    assert file.read_bytes() == data and asked == [2_000_000, 3_000_000, 0]


def test_an_object_that_is_overwritten_while_it_is_got_comes_whole(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = body(3_000_000), body(2_500_000)
    bucket.put("big", old)
    real = AsyncBucket.stat
    looks = 0

    async def then_overwritten(self: AsyncBucket, name: str) -> Any:
        nonlocal looks
        info = await real(self, name)
        looks += 1
        if looks == 1:
            await self.put(name, new)
        return info

    monkeypatch.setattr(AsyncBucket, "stat", then_overwritten)
    said("get", "cows/big", str(tmp_path / "big"))
    assert (tmp_path / "big").read_bytes() == new
    assert [path.name for path in tmp_path.iterdir()] == ["big"]


def test_a_download_goes_on_though_a_shorter_object_is_there_now(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = body(3_000_000), body(1_500_000)
    etag = bucket.put("a/big", old).etag
    bucket.put("a/other", b"x")
    back = tmp_path / "back"
    back.mkdir()
    place = blob_folders.Destination(str(back))
    part = Path(place.part_of(str(back / "big"), etag))
    part.write_bytes(old[:2_500_000])
    real = blob_getting.Getting._get_big

    async def overwritten(self: Any, wanted: Any, destination: Any) -> None:
        await self._bucket.put("a/big", new)
        await real(self, wanted, destination)

    monkeypatch.setattr(blob_getting.Getting, "_get_big", overwritten)
    assert "2 got" in said("get", "-r", "cows/a", str(back))
    assert (back / "big").read_bytes() == new
    assert sorted(path.name for path in back.iterdir()) == ["big", "other"]


def test_two_files_never_become_one_object(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "docs").mkdir(parents=True)
        (tmp_path / name / "docs" / "x").write_text(name)
    files = [str(tmp_path / name / "docs" / "x") for name in "ab"]
    folders = [str(tmp_path / name / "docs") for name in "ab"]
    for sources in (files, ["-r", *folders]):
        answer = call("put", *sources, "cows/")
        assert answer.exit_code == 2 and "would both be" in answer.stderr
    assert list(bucket.scan()) == []


def test_small_objects_deleted_or_moved_while_they_are_got(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        bucket.put(name, name.encode())
    real = blob_getting.Getting._content
    looked: set[str] = set()

    async def stale(self: Any, wanted: Any) -> Any:
        info = wanted.info
        if info.name not in looked:
            looked.add(info.name)
            if info.name == "b":
                await self._bucket.delete("b")
            gone = replace(info.object_id, ledger_id=10**9)
            stale_info = replace(info, packed_id=gone.to_bytes())
            wanted = wanted._replace(info=stale_info)
        return await real(self, wanted)

    monkeypatch.setattr(blob_getting.Getting, "_content", stale)
    answer = call("get", "-r", "cows", str(tmp_path / "back"))
    assert answer.exit_code == 1 and "2 got" in answer.stdout and "NoSuchObject" in answer.stderr
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["a", "c"]


def test_a_bar_is_drawn_where_a_person_looks_and_nowhere_else(
    bucket: Bucket, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("put", "-r", str(tree), "cows/a").stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    answer = call("put", "-r", "--json", str(tree), "cows/b")
    assert "putting" in answer.stderr and "MB" in answer.stderr
    assert len(rows(answer)) == 158


def test_folders_and_standard_streams_do_not_mix(bucket: Bucket, tmp_path: Path) -> None:
    assert "one object's bytes" in call("get", "-r", "cows", "-").stderr
    assert "one source" in call("put", "-r", "-", "cows/a").stderr
    assert said("get", "-r", "cows", str(tmp_path / "empty")) == "of cows: nothing\n"
    assert (tmp_path / "empty").is_dir()
    bucket.put("ab", b"x")
    answer = call("get", "-r", "cows/a", str(tmp_path / "none"))
    assert answer.exit_code == 1 and "NoSuchObject: nothing lies below cows/a/" in answer.stderr
    assert not (tmp_path / "none").exists()

"""The file system `blobit://`: folders and files over names, as fsspec's users expect them."""

import pickle
import threading
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

from blobit import NoSuchObject
from herdbook import blob_store
from herdbook.blob_store import found_url
from herdbook.finding import StoreNotFound
from herdbook.fs import BlobFileSystem


def test_a_url_names_bucket_and_object_and_an_option_the_store(folder: Path) -> None:
    files, path = fsspec.core.url_to_fs("blobit://cows/2024/elsa.txt", store=str(folder))
    assert isinstance(files, BlobFileSystem) and path == "cows/2024/elsa.txt"
    assert files.unstrip_protocol(path) == "blobit://cows/2024/elsa.txt"


def test_the_one_rule_finds_the_store_where_no_option_names_it(
    folder: Path, files: BlobFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.pipe("cows/a", b"moo")
    monkeypatch.setenv("HERDBOOK_URL", str(folder))
    assert fsspec.filesystem("blobit").cat("cows/a") == b"moo"
    monkeypatch.setenv("HERDBOOK_URL", str(folder / "nowhere"))
    with pytest.raises(StoreNotFound, match="nowhere"):
        fsspec.filesystem("blobit").cat("cows/a")


def test_a_look_at_a_folder_without_a_store_makes_none(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        BlobFileSystem(store=str(tmp_path)).ls("cows")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_lists_what_lies_in_it_and_folders_once(files: BlobFileSystem) -> None:
    for name in ("a", "b/one", "b/two", "b/c/three", "d"):
        files.pipe(f"cows/{name}", name.encode())
    assert files.ls("cows", detail=False) == ["cows/a", "cows/b", "cows/d"]
    assert [entry["type"] for entry in files.ls("blobit://cows/")] == ["file", "directory", "file"]
    assert files.ls("cows/b", detail=False) == ["cows/b/c", "cows/b/one", "cows/b/two"]
    assert files.ls("cows/a", detail=False) == ["cows/a"]
    assert "cows" in files.ls("", detail=False)


def test_what_is_not_there_is_not_found(files: BlobFileSystem) -> None:
    for path in ("cows/x", "cows/x/y", "nobody", "nobody/x"):
        assert not files.exists(path)
        for call in (files.ls, files.info, files.cat_file, files.open, files.rm_file):
            with pytest.raises(FileNotFoundError):
                call(path)
    with pytest.raises(FileNotFoundError) as caught:
        files.cat_file("cows/x")
    assert isinstance(caught.value.__cause__, NoSuchObject)


def test_a_name_that_no_bucket_can_have_does_not_exist(files: BlobFileSystem) -> None:
    assert not files.exists("No Such Bucket/x")


def test_what_is_known_of_an_object_is_in_its_entry(files: BlobFileSystem) -> None:
    with files.open("cows/a", "wb", content_type="text/plain", metadata={"k": "v"}) as file:
        file.write(b"moo")
    entry = files.info("cows/a")
    assert (entry["name"], entry["size"], entry["type"]) == ("cows/a", 3, "file")
    assert entry["content_type"] == "text/plain" and entry["metadata"] == {"k": "v"}
    assert files.created("cows/a") == datetime.fromtimestamp(entry["mtime"], UTC)
    assert files.modified("cows/a") == entry["created"]
    assert entry == files.ls("cows")[0]


def test_the_key_of_an_object_changes_with_its_version(files: BlobFileSystem) -> None:
    files.pipe("cows/a", b"moo")
    key, checksum = files.ukey("cows/a"), files.checksum("cows/a")
    assert files.ukey("cows/a") == key
    files.pipe("cows/a", b"moo")
    assert files.ukey("cows/a") != key and files.checksum("cows/a") != checksum


def test_find_walk_glob_and_du_see_all_below_a_folder(files: BlobFileSystem) -> None:
    names = ["a.csv", "b/one.csv", "b/two.txt", "b/c/three.csv"]
    for name in names:
        files.pipe(f"cows/{name}", name.encode())
    assert files.find("cows") == sorted(f"cows/{name}" for name in names)
    assert files.find("cows/b", withdirs=True) == [
        "cows/b",
        "cows/b/c",
        "cows/b/c/three.csv",
        "cows/b/one.csv",
        "cows/b/two.txt",
    ]
    assert files.find("cows", maxdepth=1) == ["cows/a.csv"]
    assert files.find("cows/a.csv") == ["cows/a.csv"]
    assert files.find("cows/nothing") == []
    assert files.glob("cows/**/*.csv") == ["cows/a.csv", "cows/b/c/three.csv", "cows/b/one.csv"]
    assert files.glob("cows/b/*.txt") == ["cows/b/two.txt"]
    assert [(path, sorted(folders)) for path, folders, _ in files.walk("cows")] == [
        ("cows", ["b"]),
        ("cows/b", ["c"]),
        ("cows/b/c", []),
    ]
    assert files.du("cows") == sum(map(len, names))
    assert files.du("cows/b", total=False) == {
        f"cows/{name}": len(name) for name in names if name.startswith("b/")
    }


def test_an_object_and_a_folder_may_have_one_name(files: BlobFileSystem) -> None:
    files.pipe({"cows/a": b"file", "cows/a/b": b"below"})
    assert files.cat_file("cows/a") == b"file"
    assert files.ls("cows/a", detail=False) == ["cows/a/b"]
    assert files.find("cows") == ["cows/a", "cows/a/b"]
    files.rm("cows/a", recursive=True)
    assert files.find("cows") == []


def test_a_marked_folder_is_there_though_it_is_empty(files: BlobFileSystem) -> None:
    files.run(lambda blobs: _mark(blobs))
    assert files.isdir("cows/empty") and files.ls("cows/empty") == []
    assert files.ls("cows", detail=False) == ["cows/empty"]
    assert files.find("cows") == []
    files.rm("cows/empty", recursive=True)
    assert not files.exists("cows/empty")


async def _mark(blobs: object) -> None:
    bucket = await blobs.bucket("cows")  # type: ignore[attr-defined]
    await bucket.put("empty/", b"")


def test_buckets_are_made_and_removed_as_folders(files: BlobFileSystem) -> None:
    files.mkdir("calves")
    with pytest.raises(FileExistsError):
        files.mkdir("calves")
    files.makedirs("calves", exist_ok=True)
    files.makedirs("calves/2024")
    files.pipe("calves/a", b"x")
    with pytest.raises(OSError, match="calves"):
        files.rmdir("calves")
    files.rmdir("calves/2024")
    files.rm("calves/a")
    files.rmdir("calves")
    assert not files.exists("calves")
    files.mkdir("calves/2024/05")
    assert files.isdir("calves")
    with pytest.raises(IsADirectoryError):
        files.rm("calves")
    files.rm("calves", recursive=True)


def test_objects_are_copied_moved_and_deleted(files: BlobFileSystem) -> None:
    files.pipe({"cows/a": b"one", "cows/b/c": b"two", "cows/b/d": b"three"})
    files.copy("cows/a", "cows/e")
    etag = files.ukey("cows/a")
    files.mv("cows/a", "cows/f")
    assert files.ukey("cows/f") == etag and not files.exists("cows/a")
    files.mv("cows/f", "cows/b/")
    assert files.cat("cows/b/f") == b"one"
    files.copy("cows/b", "cows/g", recursive=True)
    assert files.find("cows/g") == ["cows/g/c", "cows/g/d", "cows/g/f"]
    files.mv("cows/g", "cows/h", recursive=True)
    assert files.find("cows/g") == [] and len(files.find("cows/h")) == 3
    files.rm(["cows/e", "cows/h/c"])
    files.rm("cows/h/*")
    assert files.find("cows") == ["cows/b/c", "cows/b/d", "cows/b/f"]


def test_moving_to_where_it_is_leaves_an_object_there(files: BlobFileSystem) -> None:
    files.pipe({"cows/a": b"one", "cows/b/c": b"two"})
    files.mv("blobit://cows/a", "cows/a")
    files.mv("cows/a", "blobit://cows/a", recursive=True)
    files.mv(["blobit://cows/a", "cows/b/c"], ["cows/a", "blobit://cows/b/c"])
    files.mv("blobit://cows/b/", "cows/b/", recursive=True)
    files.mv("cows/*", "cows/")
    assert files.find("cows") == ["cows/a", "cows/b/c"]
    assert files.cat("cows/a") == b"one"


@pytest.mark.parametrize("recursive", [False, True])
def test_a_name_that_looks_like_a_pattern_is_that_name_where_it_is_there(
    files: BlobFileSystem, recursive: bool
) -> None:
    names = ["cows/star*", "cows/starling", "cows/what?", "cows/x1.csv", "cows/x[1].csv"]
    files.pipe({name: name.encode() for name in names})
    files.rm("cows/x[1].csv", recursive=recursive)
    files.mv("cows/star*", "cows/new", recursive=recursive)
    files.rm_file("cows/what?")
    assert files.cat("cows/new") == b"cows/star*"
    assert files.find("cows") == ["cows/new", "cows/starling", "cows/x1.csv"]
    with pytest.raises(FileNotFoundError):
        files.rm_file("cows/x*")
    files.rm("cows/x[1].csv", recursive=recursive)
    assert files.find("cows") == ["cows/new", "cows/starling"]


def test_no_object_takes_the_place_of_one_that_is_carried_too(files: BlobFileSystem) -> None:
    files.pipe({"cows/a/x": b"one", "cows/a/a/x": b"two"})
    for call in (files.mv, files.copy):
        with pytest.raises(OSError, match="carried, too"):
            call("cows/a/", "cows/", recursive=True)
    with pytest.raises(OSError, match="one name"):
        files.mv(["cows/a/x", "cows/a/a/x"], ["cows/b", "cows/b"])
    assert files.cat("cows/a/x") == b"one" and files.cat("cows/a/a/x") == b"two"


def test_a_missing_one_of_several_is_told_when_the_others_are_gone(
    files: BlobFileSystem,
) -> None:
    files.pipe({"cows/a": b"one", "cows/b": b"two"})
    with pytest.raises(FileNotFoundError, match="cows/none"):
        files.rm(["cows/a", "cows/none", "cows/b"])
    assert files.find("cows") == []


def test_folders_are_carried_only_where_that_is_said(files: BlobFileSystem) -> None:
    files.pipe({f"cows/{name}": b"x" for name in ("a/x", "a/z", "a/b/y", "c")})
    files.copy("cows/a", "cows/d")
    assert not files.exists("cows/d")
    files.copy("cows/a/*", "cows/d/")
    assert files.find("cows/d") == ["cows/d/x", "cows/d/z"]
    files.mv("cows/a", "cows/e", recursive=True, maxdepth=1)
    assert files.find("cows/e") == ["cows/e/x", "cows/e/z"] and files.find("cows/a") == [
        "cows/a/b/y"
    ]
    with pytest.raises(FileNotFoundError):
        files.copy("cows/none", "cows/f")
    with pytest.raises(FileNotFoundError):
        files.mv(["cows/c", "cows/none"], "cows/f/")


def test_objects_go_from_bucket_to_bucket(files: BlobFileSystem) -> None:
    files.mkdir("calves")
    files.pipe("cows/a", b"one")
    files.mv("cows/a", "calves/a")
    assert files.cat("calves/a") == b"one" and not files.exists("cows/a")
    files.rm("calves", recursive=True)


def test_bytes_and_ranges_are_read_at_once(files: BlobFileSystem) -> None:
    data = bytes(range(256)) * 1_000
    files.pipe("cows/a", data)
    assert files.cat_file("cows/a", 10, 20) == data[10:20]
    assert files.cat_file("cows/a", -5) == data[-5:]
    assert files.cat_file("cows/a", 5, -5) == data[5:-5]
    assert files.cat_file("cows/a", len(data) + 1) == b""
    assert files.head("cows/a", 3) == data[:3] and files.tail("cows/a", 3) == data[-3:]
    got = files.cat_ranges(["cows/a", "cows/x", "cows/a"], [0, 0, 256], [2, 2, 259])
    assert (got[0], got[2]) == (data[:2], data[256:259])
    assert isinstance(got[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        files.cat_ranges(["cows/x"], 0, 1, on_error="raise")
    assert files.cat(["cows/a", "cows/a"]) == {"cows/a": data}


def test_creating_is_refused_where_something_is(files: BlobFileSystem) -> None:
    files.pipe("cows/a", b"one", mode="create")
    with pytest.raises(FileExistsError):
        files.pipe("cows/a", b"two", mode="create")
    with pytest.raises(FileExistsError):
        files.open("cows/a", "xb")
    with pytest.raises(FileExistsError), files.open("cows/b", "xb") as file:
        file.write(b"three")
        files.pipe("cows/b", b"meanwhile")
    assert (files.cat("cows/a"), files.cat("cows/b")) == (b"one", b"meanwhile")


def test_files_go_up_and_down(files: BlobFileSystem, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "one").write_bytes(b"1" * 3_000_000)
    (source / "below" / "two").write_bytes(b"2")
    files.put(f"{source}/", "cows/all/", recursive=True)
    assert files.find("cows") == ["cows/all/below/two", "cows/all/one"]
    files.get("cows/all/", f"{tmp_path}/back/", recursive=True)
    assert (tmp_path / "back" / "one").read_bytes() == b"1" * 3_000_000
    assert (tmp_path / "back" / "below" / "two").read_bytes() == b"2"


def test_a_pickled_file_system_names_its_store(
    folder: Path, files: BlobFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.pipe("cows/a", b"moo")
    monkeypatch.setenv("HERDBOOK_URL", str(folder))
    pickled = pickle.dumps(fsspec.filesystem("blobit"))
    monkeypatch.setenv("HERDBOOK_URL", "")
    again = pickle.loads(pickled)
    assert again.url == str(folder) and again.cat("cows/a") == b"moo"
    opened = fsspec.open("blobit://cows/a", "rb", store=str(folder))
    with pickle.loads(pickle.dumps(opened)) as file:
        assert file.read() == b"moo"


def test_a_relative_folder_is_meant_from_where_it_was_named(
    folder: Path, files: BlobFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.pipe("cows/a", b"moo")
    monkeypatch.chdir(folder.parent)
    relative = BlobFileSystem(store=folder.name)
    monkeypatch.chdir("/")
    assert relative.url == str(folder) == found_url(str(folder))
    assert relative.cat("cows/a") == b"moo"


def test_a_store_that_was_let_go_is_opened_again(folder: Path, files: BlobFileSystem) -> None:
    files.pipe("cows/a", b"moo")
    blob_store.let_go(str(folder))
    assert files.cat("cows/a") == b"moo"


def test_threads_share_one(files: BlobFileSystem) -> None:
    def put(number: int) -> None:
        for count in range(5):
            files.pipe(f"cows/{number}/{count}", str(number).encode() * 1_000)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files.find("cows")) == 20
    assert files.cat("cows/3/4") == b"3" * 1_000

"""`herdbook blob`: what people and scripts get, and how it ends."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from typer.main import get_command

import herdbook
from blobit import AsyncBucket, CommitOutcomeUnknown, MetadataUnavailable, ObjectInfo
from blobit.sync import Blobs
from herdbook.blob_store import remove_source
from herdbook.cli.blob import app

# Made once: it costs as much as most commands.
COMMAND: Any = get_command(app)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Blobs]]:
    path = tmp_path_factory.mktemp("store")
    with herdbook.open(path) as book:
        yield path, book.blobs


@pytest.fixture
def blobs(store: tuple[Path, Blobs], monkeypatch: pytest.MonkeyPatch) -> Iterator[Blobs]:
    """Each test has a bucket `cows` of its own, in the store that the environment names."""
    path, blobs = store
    monkeypatch.setenv("HERDBOOK_URL", str(path))
    blobs.create_bucket("cows")
    yield blobs
    for info in blobs.buckets():
        blobs.delete_bucket(info.name, force=True)


def call(*arguments: str, typed: bytes | None = None) -> Result:
    answer = CliRunner().invoke(COMMAND, list(arguments), input=typed)
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer


def said(*arguments: str, typed: bytes | None = None) -> str:
    """Standard output of a command that works and says nothing else."""
    answer = call(*arguments, typed=typed)
    assert (answer.exit_code, answer.stderr) == (0, ""), answer.output
    return answer.stdout


def rows(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(*arguments, "--json").splitlines()]


def failed(*arguments: str, status: int = 1, typed: bytes | None = None) -> str:
    answer = call(*arguments, typed=typed)
    assert answer.exit_code == status, answer.output
    return answer.stderr


def test_buckets_are_made_listed_shown_and_removed(blobs: Blobs) -> None:
    made = said("mb", "calves", "bulls", "--ttl-ms", "60000", "--compression", "zstd")
    assert made == "bucket calves is there\nbucket bulls is there\n"
    assert blobs.bucket("bulls").settings.ttl_ms == 60_000
    assert said("ls") == "bulls\ncalves\ncows\n"
    (facts,) = rows("stat", "calves")
    assert (facts["bucket"], facts["ttl_ms"], facts["compression"]) == ("calves", 60_000, "zstd")
    assert "BucketExists" in failed("mb", "calves")
    assert [each["bucket"] for each in rows("mb", "calves", "--exist-ok")] == ["calves"]
    blobs.bucket("calves").put("a", b"x")
    assert "BucketNotEmpty" in failed("rb", "calves")
    assert rows("rb", "calves", "--force") == [{"bucket": "calves", "deleted": True}]
    assert "NoSuchBucket" in failed("rb", "calves")
    assert said("ls") == "bulls\ncows\n"


def test_a_store_is_made_only_where_that_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert "StoreNotFound" in failed("mb", "cows", "--url", str(folder), status=2)
    assert not folder.exists()
    assert said("mb", "cows", "--url", str(folder), "--create") == "bucket cows is there\n"
    assert said("ls", "--url", str(folder)) == "cows\n"


def test_standard_input_becomes_an_object_and_comes_out_again(blobs: Blobs) -> None:
    data = bytes(range(256)) * 20_000
    assert said("put", "-", "cows/a", typed=data) == f"cows/a has {len(data):,} bytes\n"
    assert blobs.bucket("cows").get("a") == data
    for arguments in (("cat", "cows/a"), ("get", "cows/a", "-")):
        assert call(*arguments).stdout_bytes == data
    assert call("cat", "cows/a", "cows/a", "--offset", "10", "--length", "3").stdout_bytes == (
        b"\n\x0b\x0c" * 2
    )
    assert "RangeInvalid" in failed("cat", "cows/a", "--offset", "10", "--length", "9999999")
    for target in ("cows", "cows/", "cows/b/"):
        assert "no object's name" in failed("put", "-", target, status=2)


def test_an_empty_input_becomes_an_empty_object(blobs: Blobs) -> None:
    said("put", "-", "cows/a", typed=b"")
    assert blobs.bucket("cows").stat("a").length == 0
    assert call("cat", "cows/a").stdout_bytes == b""


def test_a_file_goes_under_the_name_or_below_it(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "elsa.txt"
    file.write_bytes(b"brown")
    other = tmp_path / "resi.json"
    other.write_bytes(b"{}")
    assert said("put", str(file), "cows/x") == "in cows/x: 1 put (5 B)\n"
    assert said("put", str(file), "blobit://cows") == "in cows: 1 put (5 B)\n"
    assert said("put", str(file), str(other), "cows/below/") == "in cows/below/: 2 put (7 B)\n"
    names = [info.name for info in blobs.bucket("cows").scan()]
    assert names == ["below/elsa.txt", "below/resi.json", "elsa.txt", "x"]
    assert blobs.bucket("cows").stat("below/resi.json").content_type == "application/json"
    assert "one name" in failed("put", str(file), str(other), "cows/x", status=2)


def test_an_object_goes_into_the_file_or_the_folder(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.bucket("cows").put("2024/elsa.txt", b"brown")
    monkeypatch.chdir(tmp_path)
    assert said("get", "cows/2024/elsa.txt") == "of cows/2024/elsa.txt: 1 got (5 B)\n"
    said("get", "cows/2024/elsa.txt", "other")
    said("get", "cows/2024/elsa.txt", "below/")
    for name in ("elsa.txt", "other", "below/elsa.txt"):
        assert (tmp_path / name).read_bytes() == b"brown"
    assert "NoSuchObject" in failed("get", "cows/resi")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["below", "elsa.txt", "other"]


def test_type_metadata_expiry_and_condition_are_kept(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "a.html"
    file.write_bytes(b"<p>")
    put = ("put", str(file), "cows/a", "--if-absent", "--ttl-ms", "3600000")
    said(*put, "--content-type", "x/y", "--metadata", "k=v=w", "--metadata", "e=")
    (facts,) = rows("stat", "cows/a")
    assert facts["content_type"] == "x/y" and facts["expires_ms"] > facts["created_ms"]
    assert {"k": "v=w", "e": ""}.items() <= facts["metadata"].items()
    assert facts["metadata"]["file-mode"] == f"{file.stat().st_mode & 0o777:o}"
    assert "ObjectExists" in failed(*put)
    assert "KEY=VALUE" in failed(*put, "--metadata", "novalue", status=2)
    said("put", str(file), "cows/b", "--no-attributes")
    assert blobs.bucket("cows").stat("b").metadata == {}


def test_bytes_are_appended(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "more"
    file.write_bytes(b"two")
    said("put", "-", "cows/a", typed=b"one ")
    assert said("put", "--append", str(file), "cows/a") == "cows/a has 7 bytes\n"
    said("put", "--append", "-", "cows/a", typed=b" three")
    assert blobs.bucket("cows").get("a") == b"one two three"
    assert "one source" in failed("put", "--append", str(file), str(file), "cows/a", status=2)
    for option in (["--if-absent"], ["--metadata", "k=v"], ["--content-type", "x/y"]):
        assert "keeps its" in failed("put", "--append", str(file), "cows/a", *option, status=2)


def test_names_are_listed_by_beginning_delimiter_and_page(blobs: Blobs) -> None:
    for name in ("a/1", "a/2", "b", "c:d", "é"):
        blobs.bucket("cows").put(name, b"x")
    assert said("ls", "cows") == "a/\nb\nc:d\né\n"
    assert said("ls", "-r", "cows") == "a/1\na/2\nb\nc:d\né\n"
    assert said("ls", "cows/a/") == "a/1\na/2\n"
    assert said("ls", "cows", "--delimiter", ":") == "a/1\na/2\nb\nc:\né\n"
    assert said("ls", "cows/nothing") == ""
    found = rows("ls", "cows", "--limit", "2")
    assert found[0] == {"bucket": "cows", "prefix": "a/"} and found[1]["name"] == "b"
    rest = rows("ls", "cows", "--token", found[2]["token"])
    assert [each["name"] for each in rest] == ["c:d", "é"]
    answer = call("ls", "cows", "--limit", "1")
    assert answer.stdout == "a/\n" and "--token" in answer.stderr
    assert "InvalidToken" in failed("ls", "cows", "--token", "nonsense")
    long = said("ls", "-l", "cows").splitlines()
    assert long[0].split() == ["-", "a/"] and long[1].split()[0] == "1"
    assert long[1].endswith("  b")


def test_a_name_never_steers_the_terminal(blobs: Blobs) -> None:
    blobs.bucket("cows").put("a\x1b[2J\n", b"x", metadata={"k": "\x1b[2J"})
    assert said("ls", "cows") == "a\\x1b[2J\\n\n"
    assert "\x1b" not in said("stat", "cows/a\x1b[2J\n")
    assert rows("ls", "cows")[0]["name"] == "a\x1b[2J\n"


def test_what_is_known_of_an_object_is_shown(blobs: Blobs) -> None:
    info = blobs.bucket("cows").put("a", b"moo", content_type="text/plain", metadata={"k": "v"})
    (facts,) = rows("stat", "cows/a", "--locations")
    assert facts["etag"] == info.etag and facts["id"] == str(info.object_id)
    assert [(each["offset"], each["length"]) for each in facts["locations"]] == [(0, 3)]
    shown = said("stat", "cows/a")
    assert info.etag in shown and "text/plain" in shown and "k=v" in shown
    assert "NoSuchObject" in failed("stat", "cows/b")
    assert "NoSuchBucket" in failed("stat", "nobody")


def test_objects_and_folders_are_deleted(blobs: Blobs) -> None:
    bucket = blobs.bucket("cows")
    for name in ("a", "a/1", "a/b/2", "ab", "c"):
        bucket.put(name, b"x")
    said("rm", "cows/c")
    answer = call("rm", "cows/c", "cows/ab")
    assert answer.exit_code == 1 and "cows/c does not exist" in answer.stderr
    bucket.put("folder/1", b"")
    assert "cows/folder is a folder: -r deletes all" in failed("rm", "cows/folder")
    said("rm", "cows/folder/1")
    assert said("rm", "-r", "cows/a") == "cows/a: 3 objects are deleted\n"
    bucket.put("x/y", b"")
    assert rows("rm", "-r", "cows") == [{"bucket": "cows", "name": "", "deleted": 1}]
    assert [info.name for info in bucket.scan()] == []
    assert "NoSuchObject" in failed("rm", "-r", "cows/a")
    assert "names a bucket" in failed("rm", "cows", status=2)


def test_objects_are_copied_and_moved(blobs: Blobs) -> None:
    bucket = blobs.bucket("cows")
    etag = bucket.put("a/1", b"one", metadata={"k": "v"}).etag
    bucket.put("a/b/2", b"two")
    said("cp", "cows/a/1", "cows/c")
    said("cp", "cows/a/1", "cows/below/")
    assert bucket.get("c") == bucket.get("below/1") == b"one"
    said("mv", "cows/a/1", "cows/a/3")
    assert bucket.stat("a/3").etag == etag and not bucket.exists("a/1")
    assert "ObjectExists" in failed("mv", "cows/c", "cows/a/3", "--if-absent")
    assert "ObjectExists" in failed("cp", "cows/c", "cows/a/3", "--if-absent")
    said("cp", "-r", "cows/a", "cows/d")
    said("mv", "-r", "cows/a", "cows/e")
    names = [info.name for info in bucket.scan()]
    assert names == ["below/1", "c", "d/3", "d/b/2", "e/3", "e/b/2"]
    assert "NoSuchObject" in failed("mv", "-r", "cows/a", "cows/f")
    assert "lies below" in failed("cp", "-r", "cows/e", "cows/e/f", status=2)
    assert "lies below" in failed("cp", "-r", "cows", "cows/e", status=2)


@pytest.mark.parametrize("command", ["cp", "mv"])
def test_no_object_takes_the_place_of_one_that_is_carried_too(blobs: Blobs, command: str) -> None:
    bucket = blobs.bucket("cows")
    for name in ("a/x", "a/a/x", "a/y", "b/x"):
        bucket.put(name, name.encode())
    names = {info.name: bucket.get(info.name) for info in bucket.scan()}
    assert "ConditionFailed: a/a/x would take the place of a/x" in failed(
        command, "-r", "cows/a", "cows"
    )
    assert {info.name: bucket.get(info.name) for info in bucket.scan()} == names
    said(command, "-r", "cows/b", "cows")
    assert bucket.get("x") == b"b/x"


def test_objects_go_into_another_bucket(blobs: Blobs) -> None:
    other = blobs.create_bucket("calves")
    bucket = blobs.bucket("cows")
    bucket.put("a/1", b"one", content_type="x/y", metadata={"k": "v"})
    bucket.put("a/2", b"two")
    (facts,) = rows("cp", "cows/a/1", "calves")
    assert (facts["from"], facts["bucket"], facts["name"]) == ("a/1", "calves", "1")
    assert other.stat("1").metadata == {"k": "v"} and other.stat("1").content_type == "x/y"
    said("mv", "-r", "cows/a", "calves/b")
    assert [info.name for info in other.scan()] == ["1", "b/1", "b/2"]
    assert list(bucket.scan()) == []
    assert "NoSuchBucket" in failed("cp", "calves/1", "nobody/x")


def test_objects_are_joined(blobs: Blobs) -> None:
    bucket = blobs.bucket("cows")
    for name in "abc":
        bucket.put(name, name.encode())
    assert said("concat", "cows/all", "cows/a", "cows/b", "--keep") == "cows/all has 2 bytes\n"
    assert rows("concat", "cows/all", "cows/all", "cows/c")[0]["bytes"] == 3
    assert bucket.get("all") == b"abc"
    assert [info.name for info in bucket.scan()] == ["a", "all", "b"]
    assert "cp brings them" in failed("concat", "cows/all", "calves/a", status=2)
    assert "NoSuchObject" in failed("concat", "cows/all", "cows/nothing")


def test_bytes_are_counted_and_collected(blobs: Blobs) -> None:
    bucket = blobs.bucket("cows")
    bucket.put("a/1", b"x" * 1_000)
    bucket.put("b", b"x" * 10)
    (whole,) = rows("du", "cows")
    assert (whole["place"], whole["objects"], whole["bytes"]) == ("cows", 2, 1_010)
    assert whole["ledgers"] >= 1 and whole["stored_bytes"] == 1_010
    assert rows("du", "cows/a/") == [{"place": "cows/a/", "objects": 1, "bytes": 1_000}]
    assert "1,010 bytes" in said("du") and "ledgers" in said("du")
    bucket.delete("a/1")
    (report,) = rows("gc", "cows", "--dry-run")
    assert report["dry_run"] and [each["bucket"] for each in report["buckets"]] == ["cows"]
    assert "What a round would do" in said("gc", "--dry-run")
    assert not rows("gc")[0]["dry_run"]
    assert "NoSuchBucket" in failed("gc", "nobody")
    assert "there is no pin reader" in failed("gc", "--unpin", "reader")
    assert "take one" in failed("gc", "--unpin", "reader", "--dry-run", status=2)


@pytest.mark.parametrize("place", ["", "/", "/name", "blobit://", "blobit:///x"])
def test_a_place_without_a_bucket_is_a_wrong_call(place: str) -> None:
    for command in (["cat"], ["get"], ["rm"], ["stat"], ["du"], ["cp", "cows/a"], ["put", "x"]):
        assert "names no bucket" in failed(*command, place, status=2)


def test_bad_names_and_missing_stores_are_told_apart(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "InvalidName" in failed("mb", "No")
    assert "InvalidName" in failed("put", "-", "cows/" + "x" * 2_000, typed=b"")
    assert "NoSuchBucket" in failed("ls", "nobody")
    assert "NoSuchBucket" in failed("put", "-", "nobody/x", typed=b"")
    assert "No such file" in failed("put", str(tmp_path / "nothing"), "cows/a")
    assert "say -r" in failed("put", str(tmp_path), "cows/a")
    monkeypatch.setenv("HERDBOOK_URL", str(tmp_path))
    for command in (["ls"], ["put", "-", "cows/a"], ["get", "cows/a"], ["gc"], ["du"]):
        assert "StoreNotFound" in failed(*command, status=2)
    assert list(tmp_path.iterdir()) == []


def test_what_a_bucket_may_hold_is_said_shown_and_kept_to(blobs: Blobs) -> None:
    said("put", "-", "cows/elsa", typed=b"x" * 600)
    assert rows("quota", "cows", "--bytes", "1kB", "--objects", "2") == [
        {"bucket": "cows", "objects": 1, "bytes": 600, "quota_objects": 2, "quota_bytes": 1000}
    ]
    assert "QuotaExceeded: " in failed("put", "-", "cows/alma", typed=b"x" * 401)
    said("quota", "cows", "--bytes", "0")
    said("put", "-", "cows/alma", typed=b"x" * 401)
    assert "QuotaExceeded: " in failed("put", "-", "cows/bella", typed=b"")
    assert rows("buckets") == [
        {"bucket": "cows", "objects": 2, "bytes": 1001, "quota_objects": 2, "quota_bytes": 0}
    ]
    assert "holds 2 objects, at most 2" in said("quota", "cows", "--recount")
    told = said("quota", "cows", "--bytes", "10KiB")
    assert "1,001 bytes in them, at most 10,240 bytes" in told
    assert "cows" in said("buckets")
    for wrong in ("ten", "-1", "1 GiBit", ""):
        failed("quota", "cows", f"--bytes={wrong}", status=2)


@pytest.mark.parametrize("there", [False, True, MetadataUnavailable("nobody leads")])
async def test_a_move_whose_deletion_has_an_unknown_outcome_succeeds_if_the_source_is_gone(
    there: bool | Exception,
) -> None:
    class Bucket:
        async def delete(self, name: str, *, if_match: str) -> bool:
            raise CommitOutcomeUnknown("the leader went away")

        async def exists(self, name: str) -> bool:
            if isinstance(there, Exception):
                raise there
            return there

    info = ObjectInfo("cow", 3, "etag", "", 0, None, b"")
    bucket = cast(AsyncBucket, Bucket())
    with pytest.raises(CommitOutcomeUnknown) if there else nullcontext() as caught:
        await remove_source(bucket, info)
    assert (caught is not None) is bool(there)

"""Shares of a bucket, read in place without Spark: together they are the bucket, each part once."""

import io
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import engine.place
import herd.place
import herdbook
from blobit import Bucket, InvalidName, MetadataUnavailable, NoSuchBucket, RangeInvalid
from blobit.snapshot import bucket_snapshot, lines, object_rows, planning, reading
from blobit.snapshot.bucket_snapshot import BucketSnapshot, take_snapshot
from blobit.snapshot.object_rows import json_batches, parquet_batches
from blobit.snapshot.planning import Share, plan
from blobit.snapshot.reading import ShareReader
from blobit.snapshot.wanted import Wanted, parse_wanted
from engine.application import Application
from engine.place import Place
from herd.errors import LeaderUnavailable, StorageFailed
from herdbook.book import Book

SHARE_BYTES = 100


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Book, Place]]:
    path = tmp_path_factory.mktemp("book")
    place = Place(url=str(path))
    with herdbook.open(path) as opened:
        yield opened, place
        herd.place.let_go(place)
        engine.place.let_go(place)


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test puts is divided among many."""
    monkeypatch.setattr(planning, "SHARE_BYTES", SHARE_BYTES)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    monkeypatch.setattr(reading, "ROW_BYTES", 50)
    monkeypatch.setattr(object_rows, "_WHOLE_BYTES_MAX", 50)


def planned(place: Place, **options: Any) -> tuple[Wanted, BucketSnapshot, list[Share]]:
    wanted = parse_wanted({name: str(value) for name, value in options.items()})
    snapshot = take_snapshot(place, Application(), wanted)
    return wanted, snapshot, plan(snapshot, wanted, snapshot.conditions)


def rows(place: Place, **options: Any) -> list[dict[str, Any]]:
    wanted, snapshot, shares = planned(place, **options)
    found: list[dict[str, Any]] = []
    for share in shares:
        with ShareReader(place, wanted, snapshot, snapshot.conditions) as reader:
            for batch in reader.batches(share):
                found += batch.to_pylist()
    return found


def filled(book: Book, name: str) -> tuple[Bucket, dict[str, bytes]]:
    bucket = book.blobs.create_bucket(name)
    sizes = [3, 250, 0, 40, 99, 100, 101, 1, 700, 5]
    wanted = {f"{number}": bytes([65 + number]) * size for number, size in enumerate(sizes)}
    bucket.put_many(wanted.items())
    return bucket, wanted


def test_shares_together_are_the_bucket(book: tuple[Book, Place]) -> None:
    bucket, wanted = filled(book[0], "whole")
    found = rows(book[1], bucket="whole")
    assert {row["name"]: row["content"] for row in found} == wanted and len(found) == len(wanted)
    assert {row["id"] for row in found} == {str(info.object_id) for info in bucket.scan()}
    _, _, shares = planned(book[1], bucket="whole", snapshot="newest")
    assert len(shares) > 4 and {share.parts for share in shares} == {1}


def test_ranges_of_all_shares_are_the_objects(book: tuple[Book, Place]) -> None:
    _, wanted = filled(book[0], "split")
    found = rows(book[1], bucket="split", mode="ranges", range_bytes=30)
    pieces: dict[str, bytes] = {}
    for row in sorted(found, key=lambda row: (row["name"], row["offset"])):
        assert row["offset"] == len(pieces.get(row["name"], b"")) and len(row["content"]) <= 30
        pieces[row["name"]] = pieces.get(row["name"], b"") + row["content"]
    assert pieces == wanted
    _, _, shares = planned(book[1], bucket="split", mode="ranges", snapshot="newest")
    assert max(share.parts for share in shares) == 7


def test_lines_and_json_of_a_split_object_come_once(book: tuple[Book, Place]) -> None:
    bucket = book[0].blobs.create_bucket("lines")
    data = "".join(f'{{"id": {number}, "name": "cow {number}"}}\n' for number in range(50))
    bucket.put("big", data.encode())
    bucket.put("small", b'{"id": 50}')
    found = rows(book[1], bucket="lines", mode="lines")
    assert sorted(row["line"] for row in found) == sorted([*data.splitlines(), '{"id": 50}'])
    for row in found:
        if row["name"] == "big":
            assert data[row["offset"] :].startswith(row["line"])
    schema = pa.schema([("name", pa.string()), ("id", pa.int64())])
    wanted, snapshot, shares = planned(book[1], bucket="lines", mode="json", snapshot="newest")
    assert max(share.parts for share in shares) > 5
    values: list[dict[str, Any]] = []
    for share in shares:
        with ShareReader(book[1], wanted, snapshot, snapshot.conditions) as reader:
            values += [one for b in json_batches(reader, share, schema) for one in b.to_pylist()]
    names = [f"cow {number}" for number in range(50)]
    assert sorted((one["id"], one["name"] or "") for one in values) == [
        *enumerate(names),
        (50, ""),
    ]


def test_row_groups_of_a_split_file_come_once(book: tuple[Book, Place]) -> None:
    bucket = book[0].blobs.create_bucket("groups")
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(100), "x": ["y"] * 100}), sink, row_group_size=7)
    bucket.put("table", sink.getvalue())
    schema = pa.schema([("id", pa.int32()), ("missing", pa.string())])
    wanted, snapshot, shares = planned(book[1], bucket="groups", mode="parquet")
    assert len(shares) > 5
    found: list[dict[str, Any]] = []
    for share in shares:
        with ShareReader(book[1], wanted, snapshot, snapshot.conditions) as reader:
            found += [one for b in parquet_batches(reader, share, schema) for one in b.to_pylist()]
    assert sorted(one["id"] for one in found) == list(range(100))
    assert {one["missing"] for one in found} == {None}


def test_an_object_without_bytes_is_no_rows_among_parquet_files(book: tuple[Book, Place]) -> None:
    bucket = book[0].blobs.create_bucket("written-by-spark")
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(3)}), sink)
    bucket.put_many([("_SUCCESS", b""), ("part", sink.getvalue())])
    wanted, snapshot, shares = planned(book[1], bucket="written-by-spark", mode="parquet")
    schema, found = pa.schema([("id", pa.int64())]), list[dict[str, Any]]()
    for share in shares:
        with ShareReader(book[1], wanted, snapshot, snapshot.conditions) as reader:
            found += [one for b in parquet_batches(reader, share, schema) for one in b.to_pylist()]
    assert [one["id"] for one in found] == [0, 1, 2]


def test_an_object_that_no_row_holds_is_an_error(
    book: tuple[Book, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(book[0], "huge")
    monkeypatch.setattr(reading, "CONTENT_BYTES_MAX", 600)
    with pytest.raises(RangeInvalid, match=r"object '8' has 700 bytes.*mode=ranges"):
        rows(book[1], bucket="huge")


def test_where_and_prefix_choose_objects(book: tuple[Book, Place]) -> None:
    filled(book[0], "chosen")
    found = rows(book[1], bucket="chosen", content="false", where="size > 50 AND name < '7'")
    assert sorted(row["name"] for row in found) == ["1", "4", "5", "6"]
    found = rows(book[1], bucket="chosen", content="false", prefix="7", snapshot="newest")
    assert [(row["name"], row["size"]) for row in found] == [("7", 1)]


def test_a_bucket_that_is_not_there_is_told(book: tuple[Book, Place]) -> None:
    book[0].blobs.create_bucket("told")
    with pytest.raises(NoSuchBucket, match=r"there is no bucket nobody; there are: .*told"):
        planned(book[1], bucket="nobody")
    with pytest.raises(InvalidName):
        planned(book[1], bucket="No Bucket")


def test_a_bucket_is_read_at_its_newest_checkpoint_while_nobody_leads(
    book: tuple[Book, Place],
) -> None:
    _, wanted = filled(book[0], "leaderless")
    assert len(rows(book[1], bucket="leaderless")) == len(wanted)
    book[0].blobs.create_bucket("made-since")
    gone = LeaderUnavailable("nobody leads")
    with patch("herd.store.AsyncHerd.make", side_effect=gone):
        with pytest.warns(UserWarning, match=r"bucket leaderless is .* s old: .*nobody leads"):
            found = rows(book[1], bucket="leaderless", snapshot="newest")
        assert {row["name"]: row["content"] for row in found} == wanted
        with pytest.raises(MetadataUnavailable, match="nobody leads"):
            rows(book[1], bucket="made-since", snapshot="newest")


def test_names_of_a_checkpoint_that_was_let_go_are_told_as_that(
    book: tuple[Book, Place],
) -> None:
    filled(book[0], "old")
    wanted, snapshot, shares = planned(book[1], bucket="old")
    client = engine.place.held_client(book[1])
    record = snapshot.names.record
    client.run(lambda: client.client.delete_ledger(record.locator.ledger_id))
    with pytest.raises(StorageFailed), ShareReader(book[1], wanted, snapshot) as reader:
        list(reader.batches(shares[0]))


def test_a_bucket_that_was_on_its_way_at_a_checkpoint_is_not_read_there(
    book: tuple[Book, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_snapshot, "_ATTEMPTS_MAX", 2)
    bucket, wanted = filled(book[0], "moving")
    with book[0].sql("blobs", autocommit=True) as names:
        key = bucket.bucket_id
        names.execute(f"INSERT INTO moving_buckets VALUES ({key}, 1, 0)")
        with pytest.raises(MetadataUnavailable, match="load again"):
            rows(book[1], bucket="moving")
        with pytest.raises(NoSuchBucket, match="was moved there later"):
            rows(book[1], bucket="moving", snapshot="newest")
        names.execute(f"UPDATE moving_buckets SET lives_here = 1 WHERE bucket_id = {key}")
        names.execute(f"INSERT INTO moves VALUES ({key}, 'moving', 'a', 'blobs', 3, 1, 1, 'a')")
        found = rows(book[1], bucket="moving")
        assert {row["name"]: row["content"] for row in found} == wanted
        # As at a checkpoint of before it began to come.
        names.execute(f"DELETE FROM moving_buckets WHERE bucket_id = {key}")
        with pytest.raises(MetadataUnavailable, match="load again"):
            rows(book[1], bucket="moving")

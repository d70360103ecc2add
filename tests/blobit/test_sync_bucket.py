"""Buckets without an event loop, in a real folder: the same calls, the same answers."""

import asyncio
import io
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

import herdbook
from blobit import (
    BlobError,
    Bucket,
    BucketExists,
    BucketSettings,
    ConditionFailed,
    NoSuchBucket,
    NoSuchObject,
    ObjectExists,
)
from blobit.sync_calls import Calls
from engine.ports.system_loop import background_loop

BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[herdbook.Book]:
    with herdbook.open(tmp_path_factory.mktemp("data")) as opened:
        yield opened


@pytest.fixture
def bucket(book: herdbook.Book, request: pytest.FixtureRequest) -> Bucket:
    number = len(book.blobs.buckets())
    return book.blobs.create_bucket(f"bucket-{number}")


def test_buckets_come_and_go(book: herdbook.Book) -> None:
    made = book.blobs.create_bucket("cows", BucketSettings(ttl_ms=10_000_000))
    assert (made.name, made.settings.ttl_ms) == ("cows", 10_000_000)
    assert book.blobs.bucket("cows").bucket_id == made.bucket_id
    with pytest.raises(BucketExists):
        book.blobs.create_bucket("cows")
    assert "cows" in [info.name for info in book.blobs.buckets()]
    book.blobs.delete_bucket("cows")
    with pytest.raises(NoSuchBucket):
        book.blobs.bucket("cows")
    with pytest.raises(NoSuchBucket):
        made.put("cow", b"")


def test_every_kind_of_source_is_put_and_comes_back(bucket: Bucket) -> None:
    chunks = [BODY[start : start + 999] for start in range(0, len(BODY), 999)]
    sources = (BODY, bytearray(BODY), memoryview(BODY), chunks, iter(chunks), io.BytesIO(BODY))
    for source in sources:
        info = bucket.put("cow", source, content_type="x/y", metadata={"a": "b"})
        assert (info.length, info.metadata) == (len(BODY), {"a": "b"})
        assert bucket.get("cow") == BODY
        assert b"".join(bucket.stream("cow", 7, 5_000)) == BODY[7:5_007]
        assert bucket.get_range("cow", 300, 9) == BODY[300:309]
    with pytest.raises(TypeError):
        bucket.put("cow", "text")  # type: ignore[arg-type]


def test_a_source_that_breaks_leaves_nothing(bucket: Bucket) -> None:
    def source() -> Iterator[bytes]:
        yield BODY
        raise OSError("cut short")

    with pytest.raises(OSError, match="cut short"):
        bucket.put("cow", source())
    assert not bucket.exists("cow")
    upload = bucket.upload("cow", content_type="x")
    upload.write(BODY)
    assert not bucket.exists("cow")
    assert upload.finish().content_type == "x"
    aborted = bucket.upload("calf")
    aborted.write(BODY)
    aborted.abort()
    assert [info.name for info in bucket.scan()] == ["cow"]


class Label(str):
    """A text of a type of its own, as those of NumPy and of templates are."""

    __slots__ = ()


def test_texts_of_types_of_their_own_are_names_as_any_other(bucket: Bucket) -> None:
    bucket.put(
        Label("a/cow"), b"moo", content_type=Label("text/x"), metadata={Label("k"): Label("v")}
    )
    bucket.rename(Label("a/cow"), Label("b/cow"))
    info = bucket.stat(Label("b/cow"))
    assert (info.name, info.content_type, info.metadata) == ("b/cow", "text/x", {"k": "v"})
    assert type(info.name) is str


def test_names_are_listed_renamed_copied_and_deleted(book: herdbook.Book, bucket: Bucket) -> None:
    bucket.put_many((f"a/{n:04}", b"%d" % n) for n in range(1_200))
    bucket.put("b", b"")
    page = bucket.list(delimiter="/", limit=1)
    assert (page.prefixes, page.objects) == (["a/"], [])
    assert [i.name for i in bucket.list(delimiter="/", token=page.token).objects] == ["b"]
    assert len(list(bucket.scan("a/"))) == 1_200
    assert bucket.rename("b", "c").name == "c"
    other = book.blobs.create_bucket("other")
    assert bucket.copy("a/0007", "seven", to=other).length == 1
    assert other.get("seven") == b"7"
    with pytest.raises(ObjectExists):
        bucket.copy("a/0007", "c", if_absent=True)
    assert bucket.usage().objects == 1_201
    assert bucket.delete_many(info.name for info in bucket.scan("a/")) == 1_200
    assert bucket.delete("c") and not bucket.delete("c")
    assert bucket.usage().objects == 0


def test_parts_are_put_together(bucket: Bucket) -> None:
    first = bucket.append("cow", b"1")
    bucket.append("cow", iter([b"2", b"3"]), if_match=first.etag)
    with pytest.raises(ConditionFailed):
        bucket.append("cow", b"4", if_match=first.etag)
    bucket.put("calf", b"<calf>")
    assert bucket.concat("both", ["cow", "calf"]).length == 9
    upload = bucket.create_upload("parts", metadata={"a": "b"})
    bucket.put_part(upload, 2, io.BytesIO(b"two"))
    bucket.put_part(upload, 1, b"one")
    assert [found.upload_id for found in bucket.uploads()] == [upload]
    assert bucket.complete_upload(upload).metadata == {"a": "b"}
    bucket.abort_upload(bucket.create_upload("never"))
    assert [(i.name, bucket.get(i.name)) for i in bucket.scan()] == [
        ("both", b"123<calf>"),
        ("parts", b"onetwo"),
    ]
    assert [where.length for where in bucket.locations("both")] == [9]


def test_objects_without_a_name_are_kept_by_their_bucket(
    book: herdbook.Book, bucket: Bucket
) -> None:
    object_id = bucket.put_unnamed([BODY, BODY])
    assert book.blobs.get(object_id) == BODY + BODY
    assert bucket.delete_unnamed(object_id) and not bucket.delete_unnamed(object_id)
    with pytest.raises(BlobError):
        bucket.delete_unnamed("no id")


def test_an_interrupt_while_a_piece_is_awaited_ends_the_stream_and_is_heard() -> None:
    main, heard, closed = threading.main_thread().ident, threading.Event(), threading.Event()
    assert main is not None

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            # A signal that comes just before its thread begins to wait does not wake it.
            while not heard.is_set():
                signal.pthread_kill(main, signal.SIGUSR1)
                await asyncio.to_thread(heard.wait, 0.02)
            await asyncio.Event().wait()
        finally:
            closed.set()

    def interrupt(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        stream = Calls(background_loop()).stream(pieces())
        assert next(stream) == b"first"
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert closed.is_set()


def test_a_folder_opened_again_has_everything(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        bucket = book.blobs.create_bucket("photos")
        info = bucket.put("cow", BODY, metadata={"a": "b"})
        bucket.append("log", b"1")
    with herdbook.open(tmp_path) as book:
        bucket = book.blobs.bucket("photos")
        assert bucket.stat("cow") == info
        assert bucket.get("cow") == BODY
        bucket.append("log", b"2")
        assert bucket.get("log") == b"12"
        with pytest.raises(NoSuchObject):
            bucket.get("calf")

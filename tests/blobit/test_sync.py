"""The blob store without an event loop: the same answers, and no way to hang."""

import io
import os
import threading
from collections.abc import Iterator

import pytest

from blobit import BlobCorrupt, Blobs, BlobsClosed, InvalidObjectId
from engine.errors import InvalidRequest
from engine.ports.system_loop import BackgroundLoop, background_loop
from tests.blobit.test_blobs import body, store


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    loop = background_loop()
    _, inner = loop.run(store)
    with Blobs(inner, loop) as opened:
        yield opened


@pytest.mark.parametrize("length", [0, 1, 50, 51, 190, 1000])
def test_every_kind_of_source_comes_back_whole(blobs: Blobs, length: int) -> None:
    data = body(length)
    chunks = [data[start : start + 7] for start in range(0, length, 7)]
    for source in (data, bytearray(data), memoryview(data), chunks, iter(chunks), io.BytesIO(data)):
        object_id = blobs.put(source)
        assert blobs.get(object_id) == data
        assert b"".join(blobs.stream(str(object_id))) == data
        assert (
            blobs.get_range(object_id, length // 2, length // 3)
            == (data[length // 2 : length // 2 + length // 3])
        )


def test_a_source_is_read_in_the_thread_of_its_caller(blobs: Blobs) -> None:
    threads: set[int] = set()

    def source() -> Iterator[bytes]:
        for _ in range(30):
            threads.add(threading.get_ident())
            yield bytes(10)

    assert blobs.put(source()).length == 300
    assert threads == {threading.get_ident()}


def test_errors_arrive_as_they_are(blobs: Blobs) -> None:
    with pytest.raises(InvalidObjectId):
        blobs.get("no id")
    with pytest.raises(InvalidObjectId):
        next(iter(blobs.stream("no id")))
    with pytest.raises(TypeError, match="no source of bytes"):
        blobs.put("text")  # type: ignore[arg-type]


def test_a_source_that_fails_leaves_a_store_that_works(blobs: Blobs) -> None:
    def source() -> Iterator[bytes]:
        yield body(150)
        raise OSError("the source broke")

    for _ in range(5):
        with pytest.raises(OSError, match="the source broke"):
            blobs.put(source())
    assert blobs.get(blobs.put(body(150))) == body(150)


def test_a_stream_left_early_can_be_read_again(blobs: Blobs) -> None:
    object_id = blobs.put(body(900))
    stream = blobs.stream(object_id)
    next(iter(stream))
    del stream
    assert b"".join(blobs.stream(object_id)) == body(900)


def test_many_threads_put_and_get_at_once(blobs: Blobs) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for length in range(number, 120, 13):
            if blobs.get(blobs.put(body(length))) != body(length):
                wrong.append(length)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_call_on_the_loops_own_thread_raises_instead_of_hanging(blobs: Blobs) -> None:
    async def on_the_loop() -> bytes:
        return blobs.get(object_id)

    object_id = blobs.put(b"moo")
    with pytest.raises(BlobsClosed, match="use the async one"):
        background_loop().run(on_the_loop)


def test_a_forked_child_is_told_to_open_again() -> None:
    loop = BackgroundLoop()
    loop._process = os.getpid() + 1  # as a child sees the loop of its parent
    with pytest.raises(InvalidRequest, match="open it again"):
        loop.run(store)


def test_a_real_forked_child_starts_a_loop_of_its_own() -> None:
    background_loop()
    child = os.fork()
    if not child:
        fresh = background_loop()
        os._exit(0 if fresh.usable and fresh.run(store) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_closed_store_refuses_every_call(blobs: Blobs) -> None:
    object_id = blobs.put(b"moo")
    blobs.close()
    blobs.close()
    for call in (lambda: blobs.put(b"x"), lambda: blobs.get(object_id)):
        with pytest.raises(BlobsClosed):
            call()
    with pytest.raises(BlobsClosed):
        next(iter(blobs.stream(object_id)))


def test_a_wrong_checksum_shows_before_the_last_piece(blobs: Blobs) -> None:
    object_id = blobs.put(body(900))
    fields = {name: getattr(object_id, name) for name in object_id.__struct_fields__}
    other = type(object_id)(**{**fields, "checksum": object_id.checksum ^ 1})
    got = b""
    with pytest.raises(BlobCorrupt):
        for piece in blobs.stream(other):
            got += piece
    assert len(got) < 900

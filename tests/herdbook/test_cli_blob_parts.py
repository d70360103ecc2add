"""`herdbook blob put` of a big file: in parts, gone on with by a later run, never mixed."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from blobit import AsyncBlobs, BlobNotStored
from blobit.bucket import AsyncBucket
from blobit.sync_bucket import Bucket
from engine.ports.system_workers import ThreadWorkers
from herdbook.blob_store import open_blobs
from herdbook.cli import blob_parts
from tests.herdbook.test_cli_blob_folders import body, bucket, call, said, store

__all__ = ["bucket", "store"]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_parts, "PARTED_BYTES_MIN", 2_000_000)
    monkeypatch.setattr(blob_parts, "PART_BYTES_MIN", 1_000_000)


def fail_after(monkeypatch: pytest.MonkeyPatch, parts: int) -> list[int]:
    """The store takes only so many parts more; what parts it was given."""
    real, given = AsyncBucket.put_part, list[int]()

    async def put(self: AsyncBucket, upload_id: str, number: int, source: Any) -> Any:
        given.append(number)
        if len(given) > parts:
            raise BlobNotStored("no bookie answers")
        return await real(self, upload_id, number, source)

    monkeypatch.setattr(AsyncBucket, "put_part", put)
    return given


def test_a_big_file_is_put_in_parts_and_a_later_run_goes_on(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    data = body(5_500_000)
    (tmp_path / "big.bin").write_bytes(data)
    put = ("put", str(tmp_path / "big.bin"), "cows/big", "--metadata", "k=v")
    with monkeypatch.context() as failing:
        fail_after(failing, 3)
        answer = call(*put)
    assert answer.exit_code == 1 and "BlobNotStored" in answer.stderr
    assert not bucket.exists("big")
    (upload,) = bucket.uploads()
    kept = {part.number for part in bucket.parts(upload.upload_id)}
    assert kept
    with monkeypatch.context() as watched:
        given = fail_after(watched, 10)
        assert said(*put) == "in cows/big: 1 put (5.5 MB)\n"
    assert sorted(given) == sorted(set(range(1, 7)) - kept)
    info = bucket.stat("big")
    assert bucket.get("big") == data and bucket.uploads() == []
    assert info.metadata["k"] == "v" and "file-mtime-ns" in info.metadata
    assert info.content_type == ""
    assert said(*put) == "in cows/big: 1 there already\n"


def test_a_file_that_was_changed_is_not_gone_on_with(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    file = tmp_path / "big"
    file.write_bytes(body(3_500_000))
    status = file.stat()
    with monkeypatch.context() as failing:
        fail_after(failing, 2)
        assert call("put", str(file), "cows").exit_code == 1
    file.write_bytes(body(3_500_001))
    said("put", str(file), "cows")
    assert bucket.get("big") == body(3_500_001)
    assert len(bucket.uploads()) == 1
    # The same time, other bytes: the checksums of the parts tell.
    file.write_bytes(bytes(3_500_000))
    os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns))
    said("put", str(file), "cows")
    assert bucket.get("big") == bytes(3_500_000) and bucket.uploads() == []
    assert "ObjectExists" in call("put", "--if-absent", str(file), "cows").stderr


def test_a_big_file_that_becomes_shorter_fails_and_the_others_go(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "big").write_bytes(body(3_500_000))
    (root / "small").write_bytes(b"x")
    real = blob_parts.PartedPut.put

    async def cut(self: Any, path: str, *arguments: Any) -> Any:
        os.truncate(path, 2_500_000)
        return await real(self, path, *arguments)

    monkeypatch.setattr(blob_parts.PartedPut, "put", cut)
    answer = call("put", "-r", str(root), "cows")
    assert answer.exit_code == 1 and "became shorter" in answer.stderr
    assert [info.name for info in bucket.scan()] == ["small"]


FILM_BYTES = 4_000_000


class Untold:
    """Nobody hears of it."""

    def moved(self, size_bytes: int) -> None:
        """Nothing."""


async def two_at_once(blobs: AsyncBlobs, files: list[Path], pause: int) -> list[Any]:
    """Two runs put their files under one name, the second some turns of the loop later."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    asked: dict[str, Any] = {"content_type": "", "metadata": {}, "expires_ms": None}

    async def run(file: Path, turns: int) -> Any:
        cows = await blobs.bucket("cows")
        for _ in range(turns):
            await asyncio.sleep(0)
        put = blob_parts.PartedPut(cows, workers, Untold())
        return await put.put(str(file), FILM_BYTES, "film", dict(asked))

    try:
        runs = [run(files[0], 0), run(files[1], pause)]
        return await asyncio.gather(*runs, return_exceptions=True)
    finally:
        await workers.close()


def test_two_runs_that_put_two_files_under_one_name_never_mix_them(
    tmp_path: Path, small_parts: None
) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(file.name.encode() * FILM_BYTES)

    async def tries() -> None:
        async with open_blobs(str(tmp_path / "store"), create=True) as blobs:
            cows = await blobs.create_bucket("cows")
            for pause in range(0, 80, 16):
                answers = await two_at_once(blobs, files, pause)
                assert [answer for answer in answers if isinstance(answer, BaseException)] == []
                assert len(set(await cows.get("film"))) == 1

    asyncio.run(tries())


def test_a_run_whose_upload_others_took_puts_the_file_in_one_of_its_own(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    (tmp_path / "big").write_bytes(body(3_500_000))
    put = ("put", "--no-attributes", str(tmp_path / "big"), "cows")
    with monkeypatch.context() as failing:
        fail_after(failing, 2)
        assert call(*put).exit_code == 1
    real = AsyncBucket.complete_upload
    completed = []

    async def overtaken(self: AsyncBucket, upload_id: str, *some: Any, **more: Any) -> Any:
        completed.append(upload_id)
        if len(completed) == 1:
            await self.put_part(upload_id, 2, b"of somebody else")
        return await real(self, upload_id, *some, **more)

    monkeypatch.setattr(AsyncBucket, "complete_upload", overtaken)
    said(*put)
    assert bucket.get("big") == body(3_500_000) and len(set(completed)) == 2


def test_an_object_that_expires_goes_in_one_piece(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    (tmp_path / "big").write_bytes(body(3_500_000))
    given = fail_after(monkeypatch, 0)
    said("put", "--ttl-ms", "3600000", str(tmp_path / "big"), "cows")
    assert given == [] and bucket.stat("big").expires_ms is not None

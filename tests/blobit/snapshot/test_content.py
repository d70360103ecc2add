"""The bytes of many objects: each is read, checked, and named when it cannot be."""

from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from blobit import AsyncBlobs, BlobCorrupt, BlobError, ObjectId
from blobit.snapshot.content import Wanted, read_bodies, rows_of
from tests.blobit.contract.stores import embedded


class ToldOf(BlobError):
    """What the reader is told, with the number of the object."""


def told(number: int, error: BlobError) -> Exception:
    return ToldOf(f"{number}: {type(error).__name__}")


async def read(blobs: AsyncBlobs, ids: list[ObjectId]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    wanted = [Wanted(number, one) for number, one in enumerate(ids)]
    async with aclosing(read_bodies(blobs._readers, wanted, told)) as rows:
        async for row in rows:
            for one, pieces in zip(row.wanted, row.pieces, strict=True):
                assert one.number not in found
                found[one.number] = b"".join(pieces)
    return found


async def test_small_big_empty_and_listed_objects_come_whole_whatever_their_order(
    tmp_path: Path,
) -> None:
    async with embedded(tmp_path) as store:
        sizes = [3, 0, 25, 10, 600, 11, 40, 1, 0, 2_000]
        data = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
        ids = [await store.blobs.put(one) for one in data]
        assert len({one.kind for one in ids}) == 2, "some are lists of parts"
        assert await read(store.blobs, ids) == dict(enumerate(data))
        assert await read(store.blobs, ids[::-1]) == dict(enumerate(data[::-1]))


async def test_neighbours_are_read_as_one_row(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        ids = [await store.blobs.put(b"%03d" % number) for number in range(9)]
        wanted = [Wanted(number, one) for number, one in enumerate(ids)]
        assert [len(row) for row in rows_of(wanted)] == [9]
        assert [len(row) for row in rows_of(wanted, 6)] == [2, 2, 2, 2, 1]
        apart = [wanted[0], wanted[2]]
        assert [len(row) for row in rows_of(apart)] == [2], "little is read in vain"
        assert await read(store.blobs, [ids[0], ids[2]]) == {0: b"000", 1: b"002"}


async def test_of_a_row_the_object_that_is_wrong_is_told(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        ids = [await store.blobs.put(b"%03d" % number) for number in range(9)]
        ids[5] = msgspec.structs.replace(ids[5], checksum=ids[5].checksum ^ 1)
        with pytest.raises(ToldOf, match=f"^5: {BlobCorrupt.__name__}$"):
            await read(store.blobs, ids)


async def test_of_a_ledger_that_is_gone_the_object_is_told(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        ids = [await store.blobs.put(b"%03d" % number * 20) for number in range(9)]
        await store.blobs.client.delete_ledger(ids[-1].ledger_id)
        first = min(n for n, one in enumerate(ids) if one.ledger_id == ids[-1].ledger_id)
        with pytest.raises(ToldOf, match=f"^{first}: BlobNotFound$"):
            await read(store.blobs, ids)

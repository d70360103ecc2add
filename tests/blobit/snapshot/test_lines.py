"""Lines of objects: each comes once, in whichever share it begins."""

import random
from contextlib import aclosing
from pathlib import Path

import pytest

from blobit import AsyncBlobs, BlobUnreadable, ObjectId
from blobit.snapshot import lines
from blobit.snapshot.lines import Block, blocks_of, offsets_of, split_lines
from blobit.snapshot.planning import Share
from tests.blobit.contract.stores import embedded

BLOCK = 16


async def blocks(blobs: AsyncBlobs, object_id: ObjectId, share: Share) -> list[Block]:
    found = blocks_of(blobs._readers, object_id, 7, share)
    async with aclosing(found) as coming:
        return [block async for block in coming]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", BLOCK)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ending", [b"", b"\n"])
@pytest.mark.parametrize("longest", [3, 12, 90])
async def test_all_shares_of_an_object_have_every_line_once(
    tmp_path: Path, ending: bytes, longest: int
) -> None:
    rng = random.Random(longest)
    wanted = [b"x" * rng.randrange(1, longest) + b"%d" % number for number in range(60)]
    data = b"\n".join(wanted) + ending
    starts = offsets_of(data, len(wanted))
    async with embedded(tmp_path) as store:
        object_id = await store.blobs.put(data)
        for parts in (1, 2, 5, 40):
            found: list[tuple[int, bytes]] = []
            for part in range(parts):
                for block in await blocks(store.blobs, object_id, Share(part=part, parts=parts)):
                    assert block.number == 7
                    some = split_lines(block.data)
                    places = offsets_of(block.data, len(some))
                    found += [
                        (block.offset + place, line)
                        for place, line in zip(places, some, strict=True)
                    ]
            assert found == list(zip(starts, wanted, strict=True)), parts


@pytest.mark.usefixtures("small_blocks")
async def test_empty_lines_are_lines(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        object_id = await store.blobs.put(b"\n" * 50 + b"end")
        found = [
            line
            for part in range(4)
            for block in await blocks(store.blobs, object_id, Share(part=part, parts=4))
            for line in split_lines(block.data)
        ]
        assert found == [b""] * 50 + [b"end"]


@pytest.mark.usefixtures("small_blocks")
async def test_a_line_that_never_ends_is_an_error_and_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 100)
    async with embedded(tmp_path) as store:
        object_id = await store.blobs.put(b"a\n" + b"x" * 500)
        with pytest.raises(BlobUnreadable, match="the line at byte 2 is longer than 100"):
            await blocks(store.blobs, object_id, Share())

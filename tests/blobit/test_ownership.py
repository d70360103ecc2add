"""A bucket reads only its own ledgers, whatever its rows name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blobit import AsyncBlobs, BlobUnreadable, ObjectId
from blobit.tables import object_row
from tests.blobit.garbage.grounds import Ground, grounds


@asynccontextmanager
async def forged(path: Path, secret: bytes) -> AsyncIterator[tuple[Ground, ObjectId]]:
    """A bucket whose object "mine" names what is in the bucket "other"."""
    async with grounds(path) as ground:
        other = await ground.blobs.create_bucket("other")
        theirs = await other.put("secret", secret)
        await ground.bucket.put("mine", secret[::-1])
        await name_as(ground, theirs.object_id)
        yield ground, theirs.object_id


async def name_as(ground: Ground, object_id: ObjectId, name: str = "mine") -> None:
    """Let the row of an object name this one, as somebody may who writes rows."""
    info = await ground.bucket.stat("mine")
    row = object_row(ground.bucket.bucket_id, info) | {
        "name": name,
        "object_id": object_id.to_bytes(),
        "length": object_id.length,
    }
    rows = await ground.blobs.rows("blobs")
    async with rows.transaction() as transaction:
        await transaction.write({ground.bucket.core.object_key(name): row})
        await transaction.commit()


async def is_refused(ground: Ground, blobs: AsyncBlobs, length: int) -> None:
    """Neither the bytes nor where they are come out, in any way."""
    bucket = await blobs.bucket("cows")
    with pytest.raises(BlobUnreadable, match="none of the bucket"):
        await bucket.get("mine")
    with pytest.raises(BlobUnreadable, match="none of the bucket"):
        await bucket.get_range("mine", 0, 3)
    with pytest.raises(BlobUnreadable, match="none of the bucket"):
        [piece async for piece in bucket.stream("mine", 0, length)]
    with pytest.raises(BlobUnreadable, match="none of the bucket"):
        await bucket.locations("mine")
    with pytest.raises(BlobUnreadable, match="none of the bucket"):
        await bucket.copy("mine", "copied", to=await blobs.bucket("other"))


@pytest.mark.parametrize("secret", [b"moo", bytes(range(250)) * 2], ids=["small", "of-parts"])
async def test_a_row_that_names_an_object_of_another_bucket_hands_out_nothing(
    tmp_path: Path, secret: bytes
) -> None:
    async with forged(tmp_path, secret) as (ground, theirs):
        async with ground.store.another(ground.settings) as fresh:
            await is_refused(ground, fresh, len(secret))
        other = await ground.blobs.bucket("other")
        for _ in range(2):
            # Its ledgers are open by now, and read ahead.
            assert await other.get("secret") == secret
            await is_refused(ground, ground.blobs, len(secret))
        assert await ground.blobs.get(theirs) == secret
        assert await ground.blobs.get_range(theirs, 0, 3) == secret[:3]


async def test_what_was_read_ahead_for_a_bucket_is_handed_out_to_no_other(tmp_path: Path) -> None:
    async with grounds(tmp_path) as ground:
        other = await ground.blobs.create_bucket("other")
        await ground.sealed({f"{number}": b"%03d" % number for number in range(9)}, "other")
        await ground.bucket.put("mine", b"own")
        theirs = (await other.stat("5")).object_id
        assert theirs.entry_count == 1
        await name_as(ground, theirs)
        for number in range(4):
            assert await other.get(f"{number}") == b"%03d" % number
        with pytest.raises(BlobUnreadable, match="none of the bucket"):
            await ground.bucket.get("mine")
        assert await other.get("5") == b"005"


@pytest.mark.parametrize("custom", [{"owner": b"log:herd/system"}, {"owner": b"blobit"}, {}])
async def test_a_row_that_names_a_ledger_of_no_bucket_hands_out_nothing(
    tmp_path: Path, custom: dict[str, bytes]
) -> None:
    async with forged(tmp_path, b"moo") as (ground, theirs):
        writer = await ground.blobs.client.create_ledger(metadata=custom)
        await writer.append(b"moo")
        await writer.close()
        fields = {name: getattr(theirs, name) for name in theirs.__struct_fields__}
        await name_as(ground, ObjectId(**fields | {"ledger_id": writer.ledger_id}))
        await is_refused(ground, ground.blobs, 3)
        named = (await ground.bucket.stat("mine")).object_id
        assert named.ledger_id == writer.ledger_id and await ground.blobs.get(named) == b"moo"


async def test_a_list_of_the_bucket_that_names_parts_elsewhere_hands_out_nothing(
    tmp_path: Path,
) -> None:
    async with forged(tmp_path, bytes(range(250))) as (ground, theirs):
        parts = await ground.blobs.parts_of(theirs)
        core = ground.bucket.core
        whole = await ground.blobs.put_list(core.pool_for(None), parts)
        assert len(parts) > 1 and await ground.blobs.get(whole) == bytes(range(250))
        await name_as(ground, whole)
        await is_refused(ground, ground.blobs, 250)


async def test_an_append_to_what_a_row_names_elsewhere_copies_nothing_of_it(
    tmp_path: Path,
) -> None:
    secret = bytes(range(250))
    async with forged(tmp_path, secret) as (ground, _):
        await ground.bucket.append("mine", b"more")
        # By the rows that hold what the object was before.
        assert await ground.bucket.get("mine") == secret[::-1] + b"more"

"""Parts of an object that is still on its way, held so that nobody takes them for garbage.

A stream may take hours. Each part of it that is full is named, at once, by an upload that the
stream has for itself; when the object has its name, or will never get one, that upload goes.

Invariants:
- From the moment in which a part has ended until its object has a name there is a row that holds
  it; how long the stream takes does not matter.
- What a process held that is gone is let go when the upload has expired.
- An object of one part, as most are, costs nothing here.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from blobit.committing import Change, Effect, Found, LedgerGone
from blobit.errors import AccessDenied, BlobNotStored, MetadataUnavailable, NoSuchBucket
from blobit.naming import new_etag
from blobit.object_id import ObjectId
from blobit.tables import PART_ROOM, Row, RowKey, upload_owner, upload_row

if TYPE_CHECKING:
    from blobit.bucket_core import BucketCore


class Holding:
    """Holds the parts of one put, or whatever else is to stay under an upload's id."""

    def __init__(
        self, core: "BucketCore", upload_id: str = "", given_up: RowKey | None = None
    ) -> None:
        """`given_up`: a row that says, once it is there, that nobody waits for the parts."""
        self._core = core
        self._upload_id = upload_id
        self._given_up = given_up
        self._parts: list[ObjectId] = []

    async def part_ended(self, part: ObjectId) -> None:
        """Hold a part. Raises `BlobNotStored`, `MetadataUnavailable`, `NoSuchBucket`."""
        core = self._core
        if not self._upload_id:
            self._upload_id = new_etag(core.blobs.client.rng)
        number = len(self._parts) + 1
        key, part_key = self._key, self._part_key(number)
        now_ms = core.now_ms
        upload = upload_row(
            core.bucket_id, self._upload_id, "", now_ms, now_ms + core.blobs.settings.upload_ttl_ms
        )
        writes: dict[RowKey, Row | None] = {
            # Another one with each part: whoever aborts the upload meanwhile looks again.
            key: {**upload, "revision": -number},
            part_key: {
                "upload_id": self._upload_id,
                "number": number,
                "object_id": part.to_bytes(),
                "length": part.length,
                "etag": self._upload_id,
            },
            **core.refs(upload_owner(self._upload_id), [(number * PART_ROOM, part)]),
        }

        def confirm(found: Found) -> bool | None:
            return True if found[part_key] is not None else None

        def decide(found: Found) -> Effect[bool]:
            if self._given_up is not None and found[self._given_up] is not None:
                raise BlobNotStored("nobody waits for this part any more: its job was given up")
            return Effect(writes, True)

        # Also where nobody knows whether it is held: what is let go once too often does no harm.
        self._parts.append(part)
        mark = () if self._given_up is None else (self._given_up,)
        change = Change((key, part_key, *mark), decide, confirm)
        try:
            await core.change(change)
        except LedgerGone as error:
            raise BlobNotStored("a part was collected before it was held: put it again") from error

    async def drop(self) -> None:
        """Let go of all parts: others hold them now, or nobody needs them."""
        if not self._parts:
            return
        key, owner = self._key, upload_owner(self._upload_id)
        writes: dict[RowKey, Row | None] = {key: None}
        for number, part in enumerate(self._parts, 1):
            writes[self._part_key(number)] = None
            writes[self._core.ref_key(owner, number * PART_ROOM, part)] = None
        self._parts, self._upload_id = [], ""

        def confirm(found: Found) -> bool | None:
            return True if found[key] is None else None

        # What stays now goes when the upload has expired.
        with suppress(AccessDenied, MetadataUnavailable, NoSuchBucket):
            await self._core.change(Change((key,), lambda _: Effect(writes, True), confirm))

    @property
    def _key(self) -> RowKey:
        return "uploads", (self._core.bucket_id, self._upload_id)

    def _part_key(self, number: int) -> RowKey:
        return "upload_parts", (self._upload_id, number)

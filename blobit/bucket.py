"""A bucket: objects by name.

    bucket = await blobs.create_bucket("photos")
    info = await bucket.put("2024/elsa.jpg", data, content_type="image/jpeg")
    await bucket.get("2024/elsa.jpg")
    page = await bucket.list("2024/", limit=100)

Invariants:
- A put is visible when it has been answered, whole or not at all, to every reader in the cluster.
- Who reads by name and meets bytes that were moved away reads on where they are now.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from msgspec import structs

from blobit.bucket_core import Asked, BucketCore, Known, Store
from blobit.committing import Change, Effect, Found
from blobit.errors import BlobNotFound, NoSuchObject, ObjectChanged
from blobit.holding import Holding
from blobit.listing import Listing, count_usage, list_objects, scan_objects
from blobit.locations import Location
from blobit.multipart import Multipart
from blobit.naming import (
    check_content_type,
    check_expiry,
    check_object_name,
    packed_metadata,
)
from blobit.object_id import ObjectId
from blobit.parts import Parts
from blobit.putting import put_small
from blobit.quotas import check_more, check_put, known_length
from blobit.renaming import copy, rename
from blobit.settings import BucketSettings
from blobit.slow import note_get
from blobit.sources import Source
from blobit.streaming import check_range
from blobit.tables import ObjectInfo, PartInfo, UploadInfo, Usage
from blobit.unnamed import delete_unnamed, put_unnamed
from blobit.upload import Upload

# In the class below `list` is a call of its own.
Objects = list[ObjectInfo]
Locations = list[Location]
Uploads = list[UploadInfo]

_AT_ONCE: Final = 256


class AsyncBucket:
    """A bucket, on one event loop. Made by `AsyncBlobs.bucket` and `create_bucket`.

    Every call raises `NoSuchBucket` when the bucket was deleted, `MetadataUnavailable` while names
    cannot be looked up, `BlobsClosed`, and `InvalidName` for a name that no object can have.
    """

    def __init__(self, core: BucketCore) -> None:
        self.core = core
        self._parts = Parts(core)
        self._multipart = Multipart(core)

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self.core.info.name

    @property
    def bucket_id(self) -> int:
        """What tells it from another bucket that had its name before."""
        return self.core.bucket_id

    @property
    def settings(self) -> BucketSettings:
        """What it was created with."""
        return self.core.info.settings

    # Putting

    async def put(
        self,
        name: str,
        source: Source,
        *,
        content_type: str = "",
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_match: str | None = None,
        expires_ms: int | None = None,
    ) -> ObjectInfo:
        """Store an object under a name, in place of the one that has it.

        `if_absent` refuses to replace any, `if_match` any but the version of this etag.
        `expires_ms` is a moment of the wall clock. Raises `ObjectExists`, `ConditionFailed`,
        `QuotaExceeded`, `BlobNotStored`, `CommitOutcomeUnknown`, `TypeError` for what is no source
        of bytes.
        """
        asked = self._asked(name, content_type, metadata, if_absent, if_match, expires_ms)
        core = self.core
        await check_put(core, asked.name, known_length(source))
        pool = core.pool_for(asked.expires_ms)
        if type(source) is bytes and len(source) <= pool.settings.shared_object_bytes_max:
            return await put_small(core, asked, source, pool)
        return await core.put(asked, core.storing(pool, source))

    async def put_many(self, objects: Iterable[tuple[str, bytes]]) -> Objects:
        """Store many small objects, which share ledgers and commits; each is put on its own.

        Raises the first error that there was, when all others have ended.
        """
        answers: list[Any] = []
        given = list(objects)
        for start in range(0, len(given), _AT_ONCE):
            some = given[start : start + _AT_ONCE]
            puts = [self.put(name, data) for name, data in some]
            answers += await asyncio.gather(*puts, return_exceptions=True)
        return _all_well(answers)

    def upload(
        self,
        name: str,
        *,
        content_type: str = "",
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_match: str | None = None,
        expires_ms: int | None = None,
    ) -> "NamedUpload":
        """Store an object piece by piece: `write` each, then `finish`, or `abort`.

        Nothing is visible before `finish` has returned. Takes what `put` takes.
        """
        asked = self._asked(name, content_type, metadata, if_absent, if_match, expires_ms)
        return NamedUpload(self.core, asked)

    async def check_room(self, name: str, size_bytes: int) -> None:
        """Raise `QuotaExceeded` if the bucket has no room for such an object now.

        For who knows a length before the bytes have come; a put is refused anyway.
        """
        await check_put(self.core, check_object_name(name), size_bytes)

    async def put_unnamed(self, source: Source) -> ObjectId:
        """Store an object without a name; its id stays as it is until `delete_unnamed`."""
        return await put_unnamed(self.core, source)

    async def delete_unnamed(self, object_id: ObjectId | str) -> bool:
        """Let go of an object without a name; False if this bucket does not keep it."""
        return await delete_unnamed(self.core, object_id)

    async def append(self, name: str, source: Source, *, if_match: str | None = None) -> ObjectInfo:
        """Add bytes to the end of an object; one that is not there begins with them.

        Raises `ConditionFailed`, `BlobNotStored`, `CommitOutcomeUnknown`.
        """
        name = check_object_name(name)
        await check_more(self.core, source)
        return await self._parts.append(name, source, if_match)

    async def concat(
        self, target: str, sources: Sequence[str], *, keep: bool = False
    ) -> ObjectInfo:
        """Make `target` of the bytes of other objects, one behind the other; no byte is copied.

        What was there before is replaced, unless it is one of the sources itself. The sources are
        removed, unless `keep`. It expires when the last of its sources does.

        Raises `NoSuchObject`, `BlobNotStored`, `CommitOutcomeUnknown`.
        """
        target = check_object_name(target)
        names = [check_object_name(name) for name in sources]
        return await self._parts.concat(target, names, keep=keep)

    async def rename(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """Give an object another name, at once; it keeps its etag.

        Raises `NoSuchObject`, `ObjectExists`, `CommitOutcomeUnknown`.
        """
        source = check_object_name(source)
        target = check_object_name(target)
        return await rename(self.core, source, target, if_absent=if_absent)

    async def copy(
        self,
        source: str,
        target: str,
        *,
        to: "AsyncBucket | None" = None,
        if_absent: bool = False,
    ) -> ObjectInfo:
        """Make another object of the same bytes, type, metadata and end, here or elsewhere.

        In one bucket no byte is copied. In another one it ends as that bucket's objects do, if the
        source's end is that of its bucket's time to live. Raises `NoSuchObject`, `ObjectExists`,
        `BlobNotStored`.
        """
        source = check_object_name(source)
        target = check_object_name(target)
        if to is not None and to.bucket_id != self.bucket_id:
            return await self._copy_to(to, source, target, if_absent=if_absent)
        return await copy(self.core, source, target, if_absent=if_absent)

    # Getting

    async def get(self, name: str) -> bytes:
        """The whole object. Raises `NoSuchObject`, `BlobUnreadable`, `BlobCorrupt`."""
        name = check_object_name(name)
        clock = self.core.blobs.client.clock
        began_s = clock.monotonic()
        info = await self.core.stat(name)
        found_s = clock.monotonic()
        while True:
            try:
                body = await self.core.blobs.get(info.object_id, bucket_id=self.bucket_id)
                note_get(self.core, info.object_id, began_s, found_s)
                return body
            except BlobNotFound as error:
                info = await self._moved(info, error, same=False)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on. Raises `RangeInvalid`, and what `get` raises."""
        name = check_object_name(name)
        info = await self.core.stat(name)
        while True:
            try:
                return await self.core.blobs.get_range(
                    info.object_id, offset, length, bucket_id=self.bucket_id
                )
            except BlobNotFound as error:
                info = await self._moved(info, error, same=False)

    async def stream(
        self, name: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The object in pieces, or a range of it, with some read ahead of the caller.

        All pieces are of one version. Raises `RangeInvalid`, what `get` raises, and
        `ObjectChanged` if the version went while it was read.
        """
        name = check_object_name(name)
        info = await self.core.stat(name)
        async with aclosing(self.stream_version(info, offset, length)) as pieces:
            async for piece in pieces:
                yield piece

    async def stream_version(
        self, info: ObjectInfo, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of the version that `stat` told, or a range, wherever they are moved meanwhile.

        Raises as `stream`.
        """
        if length is None:
            length = max(0, info.length - offset)
        check_range(info.object_id, offset, length)
        while True:
            rest = self.core.blobs.stream(info.object_id, offset, length, bucket_id=self.bucket_id)
            try:
                async with aclosing(rest) as pieces:
                    async for piece in pieces:
                        offset += len(piece)
                        length -= len(piece)
                        yield piece
                return
            except BlobNotFound as error:
                info = await self._moved(info, error, same=True)

    async def stat(self, name: str) -> ObjectInfo:
        """What is known of an object. Raises `NoSuchObject`."""
        name = check_object_name(name)
        return await self.core.stat(name)

    async def exists(self, name: str) -> bool:
        """Whether there is an object of that name."""
        name = check_object_name(name)
        return await self.core.find(name) is not None

    async def list(
        self, prefix: str = "", *, delimiter: str = "", token: str = "", limit: int = 1_000
    ) -> Listing:
        """At most `limit` objects whose names begin with `prefix`, in order of UTF-8 bytes.

        Names that have the delimiter behind the prefix are folded into their beginnings up to it.
        Raises `InvalidToken`, `RangeInvalid` for a limit below 1.
        """
        return await list_objects(self.core, prefix, delimiter, token, limit)

    def scan(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """All objects whose names begin so, in order."""
        return scan_objects(self.core, prefix)

    async def locations(self, name: str) -> Locations:
        """Where the bytes lie, for work that wants to be near them. Raises `NoSuchObject`."""
        name = check_object_name(name)
        info = await self.core.stat(name)
        while True:
            try:
                own = self.bucket_id
                return await self.core.blobs.locations(info.object_id, bucket_id=own)
            except BlobNotFound as error:
                info = await self._moved(info, error, same=False)

    async def usage(self) -> Usage:
        """What the bucket holds, counted row by row."""
        return await count_usage(self.core)

    # Deleting

    async def delete(self, name: str, *, if_match: str | None = None) -> bool:
        """Remove an object; False if there is none of that name.

        Raises `ConditionFailed`, `CommitOutcomeUnknown`. If the leader is lost during the
        call, True can also mean that somebody else removed the object.
        """
        name = check_object_name(name)
        core, known = self.core, Known()
        core.check()
        key = core.object_key(name)

        def decide(found: Found) -> Effect[bool]:
            present = core.alive(found[key])
            if if_match is not None:
                core.check_match(name, present, if_match)
            return Effect(core.freed(found[key], known), present is not None)

        def confirm(found: Found) -> bool | None:
            # Somebody else may have removed the object that met the condition.
            return True if if_match is None and found[key] is None else None

        return await core.commit(Change((key,), decide, confirm, 2 * len(name)), known)

    async def delete_many(self, names: Iterable[str]) -> int:
        """Remove objects; returns how many there were. Raises the first error at the end."""
        given, answers = list(names), list[Any]()
        for start in range(0, len(given), _AT_ONCE):
            some = given[start : start + _AT_ONCE]
            deletes = [self.delete(name) for name in some]
            answers += await asyncio.gather(*deletes, return_exceptions=True)
        return sum(_all_well(answers))

    # Uploads in parts

    async def create_upload(
        self,
        name: str,
        *,
        content_type: str = "",
        metadata: Mapping[str, str] | None = None,
        expires_ms: int | None = None,
    ) -> str:
        """Begin an upload whose parts may come in any order, from anywhere; returns its id."""
        asked = self._asked(name, content_type, metadata, False, None, expires_ms)
        # What a bucket's time to live says counts from the moment in which the object is made.
        return await self._multipart.create(structs.replace(asked, expires_ms=expires_ms))

    async def put_part(self, upload_id: str, number: int, source: Source) -> PartInfo:
        """Store a part, in place of the one of its number, 1 to 10,000.

        Raises `NoSuchUpload`, `RangeInvalid`, `BlobNotStored`.
        """
        await check_more(self.core, source)
        return await self._multipart.put_part(upload_id, number, source)

    async def complete_upload(
        self,
        upload_id: str,
        numbers: Sequence[int] | None = None,
        *,
        parts: Sequence[PartInfo] | None = None,
    ) -> ObjectInfo:
        """Make the object of its parts, in the order of their numbers, or of those given.

        With `parts` it is made of exactly these, as their puts or `parts` have told them: one that
        somebody put again raises `ConditionFailed`. Parts that are not named are let go. Raises
        `NoSuchUpload`, `PartMissing`.
        """
        return await self._multipart.complete(upload_id, numbers, parts)

    async def abort_upload(self, upload_id: str) -> None:
        """Forget an upload and its parts. Raises `NoSuchUpload`, `CommitOutcomeUnknown`."""
        await self._multipart.abort(upload_id)

    async def uploads(self) -> Uploads:
        """The uploads in parts that are not completed."""
        return await self._multipart.uploads()

    async def parts(self, upload_id: str) -> "Sequence[PartInfo]":
        """The parts that an upload has, by number: who goes on with one puts only the others.

        Raises `NoSuchUpload`.
        """
        return await self._multipart.parts(upload_id)

    # Inside

    def _asked(
        self,
        name: str,
        content_type: str,
        metadata: Mapping[str, str] | None,
        if_absent: bool,
        if_match: str | None,
        expires_ms: int | None,
    ) -> Asked:
        name = check_object_name(name)
        if content_type != "":
            content_type = check_content_type(content_type)
        packed = packed_metadata(metadata) if metadata else b""
        if expires_ms is not None:
            check_expiry(expires_ms)
        elif self.core.info.settings.ttl_ms is not None:
            expires_ms = self.core.expiry(self.core.now_ms, None)
        return Asked(name, content_type, packed, expires_ms, if_absent, if_match)

    async def _copy_to(
        self, to: "AsyncBucket", source: str, target: str, *, if_absent: bool
    ) -> ObjectInfo:
        info = await self.core.stat(source)
        await to.check_room(target, info.length)
        # Whoever copies from a bucket whose objects expire may well do so to keep them.
        given = self.core.info.settings.ttl_ms is None
        async with aclosing(self.stream_version(info)) as pieces:
            return await to.put(
                target,
                pieces,
                content_type=info.content_type,
                metadata=info.metadata,
                expires_ms=info.expires_ms if given else None,
                if_absent=if_absent,
            )

    async def _moved(self, info: ObjectInfo, error: BlobNotFound, *, same: bool) -> ObjectInfo:
        """Where an object is whose bytes are not where they were. Raises `ObjectChanged`."""
        try:
            now = await self.core.stat(info.name)
        except NoSuchObject as gone:
            raise (ObjectChanged(f"object {info.name!r} was deleted") if same else gone) from error
        if same and now.etag != info.etag:
            raise ObjectChanged(f"object {info.name!r} was replaced while it was read") from error
        if now.packed_id == info.packed_id:
            raise error
        return now


class NamedUpload:
    """Takes an object piece by piece. Made by `AsyncBucket.upload`."""

    def __init__(self, core: BucketCore, asked: Asked) -> None:
        core.check()
        self._core = core
        self._asked = asked
        self._holding = Holding(core)
        pool = core.pool_for(asked.expires_ms)
        self._upload: Upload = core.blobs.upload_to(pool, self._holding.part_ended)

    async def write(self, data: bytes) -> None:
        """Take the next bytes; waits while too much is under way. Raises `BlobNotStored`."""
        await self._upload.write(data)

    async def finish(self) -> ObjectInfo:
        """Wait until all of it is durable, and give it its name. Raises as `AsyncBucket.put`."""
        try:
            store = Store(lambda _: self._upload.finish())
            return await self._core.put(self._asked, store, holding=self._holding)
        finally:
            # Where it was refused before its end, its ledger goes to another one.
            await self.abort()

    async def abort(self) -> None:
        """Forget the object."""
        await self._upload.abort()
        await self._holding.drop()


def _all_well(answers: Iterable[Any]) -> list[Any]:
    given = list(answers)
    for answer in given:
        if isinstance(answer, BaseException):
            raise answer
    return given

"""Uploads in parts: begun, filled in any order from anywhere, then completed or aborted.

Invariants:
- What a part keeps is held from the moment in which its put is answered, until the upload ends.
- An upload ends once: completed, aborted or expired, and no part comes in after that.
- Completing changes rows only; the object is made of the parts as they are at that moment.
"""

from collections.abc import Sequence
from typing import Final

from blobit.bucket_core import Asked, BucketCore, Held, Known, data_parts
from blobit.committing import Change, Effect, Found, LedgerGone
from blobit.errors import (
    BlobError,
    ConditionFailed,
    NoSuchUpload,
    PartMissing,
    RangeInvalid,
)
from blobit.naming import new_etag
from blobit.object_id import ObjectId
from blobit.rows import Rows
from blobit.sources import Source
from blobit.tables import (
    PART_ROOM,
    ObjectInfo,
    PartInfo,
    Row,
    RowKey,
    UploadInfo,
    holds_a_stream,
    upload_owner,
    upload_row,
)
from engine.expiry import is_over

PART_NUMBER_MAX: Final = 10_000
_ATTEMPTS_MAX: Final = 100


class _Overtaken(BlobError):
    """A part has come in between: the list is made again."""


class Multipart:
    """The uploads of one bucket."""

    def __init__(self, core: BucketCore) -> None:
        self._core = core

    async def create(self, asked: Asked) -> str:
        """Begin an upload; returns its id."""
        core = self._core
        core.check()
        upload_id = new_etag(core.blobs.client.rng)
        key, now_ms = self._key(upload_id), core.now_ms
        expires_ms = now_ms + core.blobs.settings.upload_ttl_ms
        row: Row = upload_row(core.bucket_id, upload_id, asked.name, now_ms, expires_ms) | {
            "content_type": asked.content_type,
            "metadata": asked.packed_metadata,
            "object_expires_ms": asked.expires_ms,
        }

        def decide(_: Found) -> Effect[str]:
            return Effect({key: row}, upload_id)

        def confirm(found: Found) -> str | None:
            return upload_id if found[key] is not None else None

        return await core.commit(Change((key,), decide, confirm), Known())

    async def put_part(self, upload_id: str, number: int, source: Source) -> PartInfo:
        """Store a part. Raises `NoSuchUpload`, `RangeInvalid`, `BlobNotStored`."""
        core, known = self._core, Known()
        if not 1 <= number <= PART_NUMBER_MAX:
            raise RangeInvalid(f"a part has a number from 1 to {PART_NUMBER_MAX}, not {number}")
        row = await self._find(upload_id)
        pool = core.pool_for(core.expiry(core.now_ms, row["object_expires_ms"]))

        async def commit(object_id: ObjectId) -> PartInfo:
            change = self._part_change(upload_id, number, object_id, known)
            return await core.commit(change, known)

        store = core.storing(pool, source)
        return await core.stored(store, pool, known, commit)

    def _part_change(
        self, upload_id: str, number: int, object_id: ObjectId, known: Known
    ) -> Change[PartInfo]:
        core = self._core
        key, part_key = self._key(upload_id), _part_key(upload_id, number)
        etag = new_etag(core.blobs.client.rng)
        info = PartInfo(number, object_id.length, etag, object_id.checksum)

        def decide(found: Found) -> Effect[PartInfo]:
            upload = self._alive(upload_id, found[key])
            writes = self._freed(upload_id, found[part_key], known)
            held = known.of(upload_owner(upload_id), object_id.to_bytes())
            writes.update(core.refs(upload_owner(upload_id), _numbered(number, held)))
            writes[key] = {**upload, "revision": upload["revision"] + 1}
            writes[part_key] = {
                "upload_id": upload_id,
                "number": number,
                "object_id": object_id.to_bytes(),
                "length": object_id.length,
                "etag": info.etag,
            }
            return Effect(writes, info)

        def confirm(found: Found) -> PartInfo | None:
            part = found[part_key]
            return info if part is not None and part["etag"] == info.etag else None

        return Change((key, part_key), decide, confirm)

    async def complete(
        self,
        upload_id: str,
        numbers: Sequence[int] | None,
        versions: Sequence[PartInfo] | None = None,
    ) -> ObjectInfo:
        """Make the object of its parts. Raises `NoSuchUpload`, `PartMissing`, `ConditionFailed`."""
        core, known = self._core, Known()
        if versions is not None:
            numbers = [part.number for part in versions]
        for _ in range(_ATTEMPTS_MAX):
            upload = await self._find(upload_id)
            rows = await self._parts(upload_id)
            chosen = _chosen(rows, numbers)
            _check_versions(rows, versions or ())
            parts: list[ObjectId] = []
            for row in rows.values():
                held = await core.held(upload_owner(upload_id), row["object_id"])
                known.held[row["object_id"]] = held
            for number in chosen:
                packed_id = rows[number]["object_id"]
                parts += data_parts(known.held[packed_id], ObjectId.from_bytes(packed_id))
            expires_ms = core.expiry(core.now_ms, upload["object_expires_ms"])
            whole = await core.list_of(parts, core.pool_for(expires_ms), known)
            name, kind, metadata = upload["name"], upload["content_type"], upload["metadata"]
            info = core.version(Asked(name, kind, metadata, expires_ms), whole, core.now_ms)
            try:
                return await core.commit(self._completion(upload, rows, info, known), known)
            except _Overtaken:
                continue
            except LedgerGone:
                core.pool_for(expires_ms).forget(whole.ledger_id)
        raise PartMissing(f"parts of upload {upload_id} come in all the time: complete it then")

    def _completion(
        self, upload: Row, rows: dict[int, Row], info: ObjectInfo, known: Known
    ) -> Change[ObjectInfo]:
        core, upload_id = self._core, upload["upload_id"]
        key, object_key = self._key(upload_id), core.object_key(info.name)

        def decide(found: Found) -> Effect[ObjectInfo]:
            if self._alive(upload_id, found[key])["revision"] != upload["revision"]:
                raise _Overtaken("a part has come in")
            writes = core.freed(found[object_key], known)
            for row in rows.values():
                writes.update(self._freed(upload_id, row, known))
            writes[key] = None
            return Effect(writes | core.placed(info, known), info)

        return Change((key, object_key), decide, core.confirming(info))

    async def abort(self, upload_id: str) -> None:
        """Forget an upload. Raises `NoSuchUpload`."""
        core, known = self._core, Known()
        for _ in range(_ATTEMPTS_MAX):
            upload = await self._find(upload_id)
            rows = await self._parts(upload_id)
            try:
                await core.commit(self._abortion(upload, rows, known), known)
                return
            except _Overtaken:
                continue
        raise PartMissing(f"parts of upload {upload_id} come in all the time: abort it then")

    def _abortion(self, upload: Row, rows: dict[int, Row], known: Known) -> Change[bool]:
        upload_id, key = upload["upload_id"], self._key(upload["upload_id"])

        def decide(found: Found) -> Effect[bool]:
            if self._alive(upload_id, found[key])["revision"] != upload["revision"]:
                raise _Overtaken("a part has come in")
            writes: dict[RowKey, Row | None] = {key: None}
            for row in rows.values():
                writes.update(self._freed(upload_id, row, known))
            return Effect(writes, True)

        # If the upload is gone, somebody else may have completed it.
        return Change((key,), decide, lambda found: None)

    async def uploads(self) -> list[UploadInfo]:
        """Those that are neither completed nor over."""
        core = self._core
        core.check()
        prefix = (core.bucket_id,)

        async def look(rows: Rows) -> list[Row]:
            return [row async for row in rows.scan("uploads", first=prefix, last=prefix)]

        return [
            UploadInfo(
                row["upload_id"],
                row["name"],
                row["created_ms"],
                row["expires_ms"],
                row["content_type"],
                row["metadata"],
            )
            for row in await core.read(look)
            if not (is_over(row["expires_ms"], core.now_ms) or holds_a_stream(row))
        ]

    async def parts(self, upload_id: str) -> list[PartInfo]:
        """The parts that an upload has, by number. Raises `NoSuchUpload`."""
        await self._find(upload_id)
        rows = await self._parts(upload_id)
        return [
            PartInfo(
                number,
                row["length"],
                row["etag"],
                ObjectId.from_bytes(row["object_id"]).checksum,
            )
            for number, row in sorted(rows.items())
        ]

    def _key(self, upload_id: str) -> RowKey:
        return "uploads", (self._core.bucket_id, upload_id)

    async def _find(self, upload_id: str) -> Row:
        self._core.check()
        key = self._key(upload_id)
        return self._alive(upload_id, await self._core.read(lambda rows: rows.get(*key)))

    def _alive(self, upload_id: str, row: Row | None) -> Row:
        now_ms = self._core.now_ms
        if row is None or is_over(row["expires_ms"], now_ms) or holds_a_stream(row):
            raise NoSuchUpload(f"bucket {self._core.info.name} has no upload {upload_id:.80}")
        return row

    async def _parts(self, upload_id: str) -> dict[int, Row]:
        own = (upload_id,)

        async def look(rows: Rows) -> dict[int, Row]:
            parts = rows.scan("upload_parts", first=own, last=own)
            return {row["number"]: row async for row in parts}

        return await self._core.read(look)

    def _freed(self, upload_id: str, row: Row | None, known: Known) -> dict[RowKey, Row | None]:
        """Without the rows of a part. Raises `PartsWanted`."""
        if row is None:
            return {}
        owner = upload_owner(upload_id)
        held = _numbered(row["number"], known.of(owner, row["object_id"]))
        writes: dict[RowKey, Row | None] = {
            self._core.ref_key(owner, number, part): None for number, part in held
        }
        writes[_part_key(upload_id, row["number"])] = None
        return writes


def _chosen(rows: dict[int, Row], numbers: Sequence[int] | None) -> list[int]:
    """The numbers of the parts of which the object is made. Raises `PartMissing`."""
    if numbers is None:
        return sorted(rows)
    missing = [number for number in numbers if number not in rows]
    if missing or len(set(numbers)) != len(numbers):
        raise PartMissing(f"parts {missing[:10] or 'named twice'}: put them, and name each once")
    return list(numbers)


def _check_versions(rows: dict[int, Row], versions: Sequence[PartInfo]) -> None:
    """Raise `ConditionFailed` where somebody else has put another part meanwhile."""
    changed = [part.number for part in versions if rows[part.number]["etag"] != part.etag]
    if changed:
        raise ConditionFailed(
            f"parts {changed[:10]} were put again by somebody else: put them again, in an upload "
            "of your own"
        )


def _part_key(upload_id: str, number: int) -> RowKey:
    return "upload_parts", (upload_id, number)


def _numbered(number: int, held: Held) -> Held:
    """What a part of an upload keeps, numbered so that no two parts meet."""
    return [(number * PART_ROOM + index, part) for index, part in held]

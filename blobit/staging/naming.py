"""The end of a job: what its tasks have stored gets names, or goes.

Invariants:
- Names come in the order of the lists, `NAMES_AT_ONCE` of them in one transaction: a job of no more
  is visible as a whole, or not at all.
- A version has an etag made of job and name. So naming again what a job has named changes nothing,
  and of rows with one name the first that is named stays.
- A job with a key is remembered as long as an upload may take: whoever does it again changes
  nothing.
- When a job has ended, nothing of it is held but by names. A task of a run that was given up that
  still goes on finds that out before it holds anything.
"""

import base64
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from blobit.bucket_core import Asked, BucketCore, Known
from blobit.committing import Change, Effect, Found, LedgerGone
from blobit.errors import BlobNotStored
from blobit.expiry import abort_upload
from blobit.object_id import ObjectId
from blobit.rows import told
from blobit.staging.storing import Staged, Stored
from blobit.tables import ObjectInfo, Row, RowKey, upload_row
from engine.limits import MIB
from herd.errors import Error
from herd.staging.layout import Job

NAMES_AT_ONCE: Final = 10_000
_BYTES_AT_ONCE: Final = 4 * MIB
_ROW_BYTES: Final = 512
_ETAG_BYTES: Final = 16
_MARK_REVISION: Final = -1
_decode: Final = msgspec.msgpack.Decoder(list[Stored]).decode


async def is_done(core: BucketCore, job: Job) -> bool:
    """Whether a job with a key has ended well. Raises `MetadataUnavailable`."""
    try:
        return await core.rows.get(*_done_key(core, job)) is not None
    except Error as error:
        raise told(error) from error


async def name_all(core: BucketCore, job: Job, staged: Sequence[Staged], *, keyed: bool) -> None:
    """Give names to what the tasks of a job have stored, unless a job of its key has done so.

    Raises `BlobNotStored`, `NoSuchBucket`, `MetadataUnavailable`, `CommitOutcomeUnknown`: what was
    named stays, and the job may be done again.
    """
    if not (keyed and await is_done(core, job)):
        created_ms = core.now_ms
        async for some in _batches(core, staged):
            await _name(core, job, some, created_ms)
        if keyed:
            await _mark(core, _done_key(core, job), created_ms)
    await drop(core, job)


async def drop(core: BucketCore, job: Job) -> None:
    """Let go of all that tasks of a job have stored, but for what has names."""
    first = (core.bucket_id, f"{job.name}.")
    try:
        rows = core.rows.scan("uploads", prefix=first)
        uploads = [row["upload_id"] async for row in rows]
        for upload_id in uploads:
            await abort_upload(core, upload_id)
    except Error as error:
        raise told(error) from error


async def give_up(core: BucketCore, job: Job, run: str) -> None:
    """End one run of a job, with all its tasks: also those that nobody could stop yet.

    Another run of the same job may follow. Raises as `name_all`.
    """
    await _mark(core, given_up(core, job, run), core.now_ms)
    await drop(core, job)


def given_up(core: BucketCore, job: Job, run: str) -> RowKey:
    """The row that is there once a run has been given up, for as long as an upload may take."""
    return "uploads", (core.bucket_id, f"{job.name}!{run}")


def upload_id_of(job: Job, run: str, task: int) -> str:
    """What holds the ledgers of one attempt at a task, by the number that no other of a run has.

    Numbers begin again with each driver, and a job of a key, or of a stream's batch, may have many.
    """
    return f"{job.name}.{run}.{task}"


async def _batches(core: BucketCore, staged: Sequence[Staged]) -> AsyncIterator[list[Stored]]:
    batch: list[Stored] = []
    size_bytes = 0
    for name in [name for one in staged for name in one.lists]:
        for row in _decode(await core.blobs.get(name)):
            batch.append(row)
            size_bytes += _ROW_BYTES + 3 * len(row.name) + len(row.packed_metadata)
            if len(batch) >= NAMES_AT_ONCE or size_bytes >= _BYTES_AT_ONCE:
                yield batch
                batch, size_bytes = [], 0
    if batch:
        yield batch


async def _name(core: BucketCore, job: Job, rows: Sequence[Stored], created_ms: int) -> None:
    known = Known()
    infos: dict[RowKey, ObjectInfo] = {}
    for row in rows:
        object_id = ObjectId.from_bytes(row.packed_id)
        known.held[known.pack(object_id)] = await core.listed(object_id)
        expires_ms = core.expiry(created_ms, None)
        asked = Asked(row.name, row.content_type, row.packed_metadata, expires_ms)
        info = core.version(asked, object_id, created_ms, known)
        etag = _etag(job, row.name)
        infos.setdefault(core.object_key(row.name), msgspec.structs.replace(info, etag=etag))

    def decide(found: Found) -> Effect[bool]:
        writes: dict[RowKey, Row | None] = {}
        for key, info in infos.items():
            before = found[key]
            if before is None or before["etag"] != info.etag:
                writes.update(core.replaced(before, info, known))
        return Effect(writes, True)

    def confirm(found: Found) -> bool | None:
        rows = [(found[key], info) for key, info in infos.items()]
        named = all(row is not None and row["etag"] == info.etag for row, info in rows)
        return True if named else None

    size_bytes = sum(len(row.name) + len(row.packed_metadata) for row in rows)
    try:
        await core.commit(Change(tuple(infos), decide, confirm, size_bytes), known)
    except LedgerGone as error:
        raise BlobNotStored(
            "ledgers of the job were collected before it ended: write it again"
        ) from error


async def _mark(core: BucketCore, key: RowKey, now_ms: int) -> None:
    """Remember what became of a job, by an upload of no parts that nobody sees."""
    expires_ms = now_ms + core.blobs.settings.upload_ttl_ms
    _, (bucket_id, upload_id) = key
    row = upload_row(bucket_id, upload_id, "", now_ms, expires_ms)
    row["revision"] = _MARK_REVISION

    def confirm(found: Found) -> bool | None:
        return True if found[key] is not None else None

    await core.committer.change(Change((key,), lambda _: Effect({key: row}, True), confirm))


def _done_key(core: BucketCore, job: Job) -> RowKey:
    return "uploads", (core.bucket_id, job.name)


def _etag(job: Job, name: str) -> str:
    found = hashlib.blake2b(f"{job.name} {name}".encode(), digest_size=_ETAG_BYTES).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode("ascii")

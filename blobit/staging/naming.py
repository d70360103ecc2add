"""The end of a job: what its tasks have stored gets names, or goes.

Invariants:
- Names come in the order of the lists, `NAMES_AT_ONCE` of them in one transaction, fewer only where
  one transaction does not hold them: a job of no more is visible as a whole, or not at all.
- A job without a key that cannot be named to its end takes its names back. One that has a key keeps
  them: whoever does it again goes on there, and another run of it may have counted on them. A name
  that was taken before is kept, too: what it named has gone.
- A version has an etag made of job and name. So naming again what a job has named changes nothing,
  and of rows with one name the first that is named stays.
- A job with a key is remembered as long as an upload may take: whoever does it again changes
  nothing.
- When a job has ended, nothing of it is held but by names. A task of a run that was given up that
  still goes on finds that out before it holds anything.
"""

import base64
import hashlib
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import msgspec

from blobit.bucket_core import Asked, BucketCore, Known, owner_of
from blobit.committing import Change, Effect, Found, LedgerGone
from blobit.errors import BlobError, BlobNotStored
from blobit.expiry import abort_upload
from blobit.object_id import ObjectId
from blobit.rows import Rows, told
from blobit.staging.storing import Staged, Stored
from blobit.tables import ObjectInfo, Row, RowKey, upload_row
from engine.limits import MIB
from herd.errors import Error, TooLarge
from herd.staging.layout import Job

NAMES_AT_ONCE: Final = 10_000
_BYTES_AT_ONCE: Final = 40 * MIB
"""About so much of rows; a transaction of `herd` has at most 48 MiB."""
_ROW_BYTES: Final = 512
_NAMES_A_ROW: Final = 4
"""An object and what holds it have the name in their keys and in their rows."""
_ETAG_BYTES: Final = 16
_MARK_REVISION: Final = -1
_decode: Final = msgspec.msgpack.Decoder(list[Stored]).decode


def keyed_job(bucket: str, key: str) -> Job:
    """What is written into a bucket under a key, whoever writes it."""
    return Job(f"key {key} {bucket}")


async def is_done(core: BucketCore, job: Job) -> bool:
    """Whether a job with a key has ended well. Raises `MetadataUnavailable`."""
    key = _done_key(core, job)
    return await core.read(lambda rows: rows.get(*key)) is not None


async def name_all(core: BucketCore, job: Job, staged: Sequence[Staged], *, keyed: bool) -> None:
    """Give names to what the tasks of a job have stored, unless a job of its key has done so.

    Raises `BlobNotStored`, `NoSuchBucket`, `MetadataUnavailable`, `CommitOutcomeUnknown`: the job
    may be done again. Once all is named nothing is raised any more: what could not be let go goes
    when its uploads expire.
    """
    if not (keyed and await is_done(core, job)):
        naming = _Naming(core, job, staged)
        try:
            await naming.name()
        except BlobError:
            if not keyed:
                await naming.take_back()
            raise
        if keyed:
            await _mark(core, _done_key(core, job), core.now_ms)
    try:
        await drop(core, job)
    except BlobError as error:
        warnings.warn(f"the job is done, and its ledgers are held on: {error}", stacklevel=2)


async def drop(core: BucketCore, job: Job) -> None:
    """Let go of all that tasks of a job have stored, but for what has names."""
    first = (core.bucket_id, f"{job.name}.")

    async def look(rows: Rows) -> list[str]:
        return [row["upload_id"] async for row in rows.scan("uploads", prefix=first)]

    try:
        for upload_id in await core.read(look):
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


class _Naming:
    """Gives the names of one job, and takes back those that nobody had before."""

    def __init__(self, core: BucketCore, job: Job, staged: Sequence[Staged]) -> None:
        self._core = core
        self._job = job
        self._staged = staged
        self._created_ms = core.now_ms
        self._free = bytearray()
        """Of each row, in order, whether its name was free. Names themselves may be too many."""

    async def name(self) -> None:
        """Name all. Raises as `name_all`."""
        async for first, rows in _batches(self._core, self._staged):
            await _divided(first, rows, self._name)

    async def take_back(self) -> None:
        """Undo `name`, as far as that is possible now."""
        try:
            async for first, rows in _batches(self._core, self._staged):
                if first >= len(self._free):
                    break
                await _divided(first, rows, self._take_back)
        except BlobError as error:
            warnings.warn(f"some names of a job that failed stay: {error}", stacklevel=2)

    async def _name(self, first: int, rows: Sequence[Stored]) -> None:
        core, known = self._core, Known()
        for row in rows:
            known.held[row.packed_id] = await core.listed(ObjectId.from_bytes(row.packed_id))
        keys = [core.object_key(row.name) for row in rows]
        infos: dict[RowKey, ObjectInfo] = {}
        for key, row in zip(keys, rows, strict=True):
            infos.setdefault(key, self._version(row, known))

        def decide(found: Found) -> Effect[bool]:
            self._free[first : first + len(keys)] = bytes(
                [core.alive(found[key]) is None for key in keys]
            )
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

    async def _take_back(self, first: int, rows: Sequence[Stored]) -> None:
        core, free = self._core, self._free[first : first + len(rows)]
        own = [row for row, was_free in zip(rows, free, strict=False) if was_free]
        etags = {core.object_key(row.name): _etag(self._job, row.name) for row in own}
        known = Known()
        for row in own:
            known.held[row.packed_id] = await core.held(owner_of(row.name), row.packed_id)

        def mine(found: Found) -> list[Row]:
            named = [(found[key], etag) for key, etag in etags.items()]
            return [row for row, etag in named if row is not None and row["etag"] == etag]

        def decide(found: Found) -> Effect[bool]:
            writes: dict[RowKey, Row | None] = {}
            for row in mine(found):
                writes.update(core.freed(row, known))
            return Effect(writes, True)

        def confirm(found: Found) -> bool | None:
            return None if mine(found) else True

        if etags:
            await core.commit(Change(tuple(etags), decide, confirm), known)

    def _version(self, row: Stored, known: Known) -> ObjectInfo:
        core, created_ms = self._core, self._created_ms
        asked = Asked(
            row.name, row.content_type, row.packed_metadata, core.expiry(created_ms, None)
        )
        info = core.version(asked, ObjectId.from_bytes(row.packed_id), created_ms, known)
        return msgspec.structs.replace(info, etag=_etag(self._job, row.name))


async def _batches(
    core: BucketCore, staged: Sequence[Staged]
) -> AsyncIterator[tuple[int, list[Stored]]]:
    """All rows in order, so many at once as one transaction takes, and the number of the first."""
    batch: list[Stored] = []
    first = size_bytes = 0
    for name in [name for one in staged for name in one.lists]:
        for row in _decode(await core.blobs.get(name, bucket_id=core.bucket_id)):
            batch.append(row)
            size_bytes += _ROW_BYTES + len(row.packed_metadata)
            size_bytes += _NAMES_A_ROW * len(row.name.encode())
            if len(batch) >= NAMES_AT_ONCE or size_bytes >= _BYTES_AT_ONCE:
                yield first, batch
                first, batch, size_bytes = first + len(batch), [], 0
    if batch:
        yield first, batch


async def _divided(
    first: int,
    rows: Sequence[Stored],
    change: Callable[[int, Sequence[Stored]], Awaitable[None]],
) -> None:
    """Change all of some rows in one transaction or, where that is too much, in halves."""
    try:
        await change(first, rows)
    except BlobNotStored as error:
        if len(rows) == 1 or not isinstance(error.__cause__, TooLarge):
            raise
        middle = len(rows) // 2
        await _divided(first, rows[:middle], change)
        await _divided(first + middle, rows[middle:], change)


async def _mark(core: BucketCore, key: RowKey, now_ms: int) -> None:
    """Remember what became of a job, by an upload of no parts that nobody sees."""
    expires_ms = now_ms + core.blobs.settings.upload_ttl_ms
    _, (bucket_id, upload_id) = key
    row = upload_row(bucket_id, upload_id, "", now_ms, expires_ms)
    row["revision"] = _MARK_REVISION

    def confirm(found: Found) -> bool | None:
        return True if found[key] is not None else None

    await core.change(Change((key,), lambda _: Effect({key: row}, True), confirm))


def _done_key(core: BucketCore, job: Job) -> RowKey:
    return "uploads", (core.bucket_id, job.name)


def _etag(job: Job, name: str) -> str:
    found = hashlib.blake2b(f"{job.name} {name}".encode(), digest_size=_ETAG_BYTES).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode("ascii")

"""Getting objects into files: many at once, only what is not there already, going on in big ones.

Invariants:
- A file appears under its name when all its bytes are there and have the object's checksum.
- What a run that was cut short has got of a big object is kept beside the file's place, under a
  name that no other version has; the next run goes on behind it.
- Links are made when all files are there, so that nothing is ever written through one.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import google_crc32c

from blobit.errors import BlobCorrupt, BlobNotFound, NoSuchObject, ObjectChanged, RangeInvalid
from engine.ports.workers import Workers
from herdbook.cli.blob_folders import LINK, Destination, UnsafeName, checksum_of, length_of
from herdbook.cli.blob_moving import (
    BIG_BYTES,
    Batches,
    Done,
    Outcome,
    Telling,
    each_of,
    in_parallel,
    is_of_one,
    told,
)

if TYPE_CHECKING:
    from blobit import AsyncBlobs, AsyncBucket, ObjectInfo

_ATTEMPTS_MAX: Final = 3
"""How often an object that is overwritten meanwhile is begun again."""
_extend = google_crc32c.extend


class Wanted(NamedTuple):
    """An object and the path of its file."""

    info: "ObjectInfo"
    path: str


class _Read(NamedTuple):
    """An object's bytes, of the version that is named with them."""

    wanted: Wanted
    data: bytes


class Getting:
    """Gets objects of one bucket into one folder."""

    def __init__(
        self,
        blobs: "AsyncBlobs",
        bucket: "AsyncBucket",
        workers: Workers,
        telling: Telling,
        jobs: int,
        *,
        again: bool = False,
    ) -> None:
        """`again`: also what is there and equal."""
        self._blobs = blobs
        self._bucket = bucket
        self._workers = workers
        self._telling = telling
        self._jobs = jobs
        self._again = again

    async def get_all(self, prefix: str, root: str) -> None:
        """Get all objects below a prefix, "" or one that ends with a slash, into a folder.

        Raises `NoSuchObject` if there are none below a prefix, and what would fail for all of them.
        """
        if prefix and not (await self._bucket.list(prefix, limit=1)).objects:
            raise NoSuchObject(f"nothing lies below {self._bucket.name}/{prefix}")
        destination = Destination(root)
        links: list[Wanted] = []
        wanted = self._wanted(prefix, destination, links)
        await self._workers.run(lambda: os.makedirs(root, exist_ok=True))

        async def get(batch: list[Wanted]) -> None:
            await self._get_batch(batch, destination)

        await in_parallel(Batches(wanted, lambda each: each.info.length), get, self._jobs)
        later = Batches(each_of(links), lambda each: each.info.length)
        await in_parallel(later, get, 1)

    async def get_one(self, info: "ObjectInfo", path: str) -> None:
        """Get one object into a file. Raises what would fail for others, too."""
        self._telling.expect(info.length)
        folder, name = os.path.split(path)
        destination = Destination(folder or os.curdir)
        wanted = Wanted(info, os.path.join(destination.root, name))
        await self._get_batch([wanted], destination)

    async def _wanted(
        self, prefix: str, destination: Destination, links: list[Wanted]
    ) -> AsyncIterator[Wanted]:
        async for info in self._bucket.scan(prefix):
            if info.name == prefix:
                continue
            try:
                wanted = Wanted(info, destination.path_of(info.name[len(prefix) :]))
            except UnsafeName as error:
                self._telling.tell(Outcome("failed", info.name, "", 0, error=told(error)))
                continue
            self._telling.expect(info.length)
            if LINK in info.metadata:
                links.append(wanted)
            else:
                yield wanted

    async def _get_batch(self, batch: list[Wanted], destination: Destination) -> None:
        again = self._again
        same = await self._workers.run(lambda: [not again and _is_there(each) for each in batch])
        missing = []
        for wanted, is_there in zip(batch, same, strict=True):
            if is_there:
                self._telling.moved(wanted.info.length)
                self._tell("same", wanted)
            else:
                missing.append(wanted)
        if len(missing) == 1 and missing[0].info.length > BIG_BYTES:
            await self._get_big(missing[0], destination)
        elif missing:
            await self._get_small(missing, destination)

    async def _get_small(self, batch: list[Wanted], destination: Destination) -> None:
        got = await asyncio.gather(*[self._content(each) for each in batch])
        read = [each for each in got if isinstance(each, _Read)]
        written = await self._workers.run(lambda: [_write(destination, each) for each in read])
        failed: dict[str, BaseException] = {
            each.wanted.path: error
            for each, error in zip(read, written, strict=True)
            if error is not None
        }
        for wanted, each in zip(batch, got, strict=True):
            self._telling.moved(wanted.info.length)
            if isinstance(each, _Read):
                self._tell("got", each.wanted, failed.get(wanted.path))
            else:
                self._tell("failed", wanted, each)

    async def _content(self, wanted: Wanted) -> "_Read | Exception":
        """An object's bytes, or what kept it alone from being read."""
        info = wanted.info
        if LINK in info.metadata or not info.length:
            return _Read(wanted, b"")
        own = self._bucket.bucket_id
        try:
            try:
                return _Read(wanted, await self._blobs.get(info.object_id, bucket_id=own))
            except BlobNotFound:
                # It moved or was overwritten since it was listed.
                wanted = wanted._replace(info=await self._bucket.stat(info.name))
                return _Read(wanted, await self._blobs.get(wanted.info.object_id, bucket_id=own))
        except Exception as error:
            if not is_of_one(error):
                raise
            return error

    async def _get_big(self, wanted: Wanted, destination: Destination) -> None:
        try:
            for _ in range(_ATTEMPTS_MAX):
                if await self._stream(wanted, destination):
                    self._tell("got", wanted)
                    return
                wanted = wanted._replace(info=await self._bucket.stat(wanted.info.name))
            raise ObjectChanged(f"{wanted.info.name} changes quicker than it is read")
        except Exception as error:
            if not is_of_one(error):
                raise
            self._tell("failed", wanted, error)

    async def _stream(self, wanted: Wanted, destination: Destination) -> bool:
        """Get a big object; False: it was overwritten meanwhile."""
        info, path = wanted

        def begin() -> tuple[BinaryIO, str, int, int]:
            destination.prepare(path)
            part = destination.part_of(path, info.etag)
            had = min(length_of(part) or 0, info.length)
            file = open(part, "r+b" if had else "wb")  # noqa: SIM115
            file.truncate(had)
            file.seek(had)
            return file, part, had, checksum_of(part, had)

        file, part, had, checksum = await self._workers.run(begin)
        changed = False
        try:
            self._telling.moved(had)
            try:
                async with aclosing(self._bucket.stream(info.name, had)) as pieces:
                    async for piece in pieces:
                        checksum = _extend(checksum, piece)
                        await self._workers.run(partial(file.write, piece))
                        self._telling.moved(len(piece))
            except (RangeInvalid, ObjectChanged):
                # What is there now ends before, or the version that was read has gone.
                changed = True
            length = await self._workers.run(file.tell)
        finally:
            await self._workers.run(file.close)
        if changed or (length, checksum) != (info.length, info.object_id.checksum):
            await self._workers.run(lambda: os.unlink(part))
            self._telling.moved(-length)
            now = await self._bucket.stat(info.name)
            if now.etag == info.etag and not had and not changed:
                raise BlobCorrupt(f"{info.name}: its bytes do not have its checksum")
            return False
        await self._workers.run(lambda: destination.complete(path, part, info.metadata))
        return True

    def _tell(self, done: Done, wanted: Wanted, error: BaseException | None = None) -> None:
        info, path = wanted
        if error is not None:
            self._telling.tell(Outcome("failed", info.name, path, 0, error=told(error)))
        else:
            self._telling.tell(Outcome(done, info.name, path, info.length, info))


def _is_there(wanted: Wanted) -> bool:
    """Whether a file has the object's bytes already; in a thread of its own."""
    info, path = wanted
    target = info.metadata.get(LINK)
    try:
        if target is not None:
            return os.path.islink(path) and os.readlink(path) == target
        if info.name.endswith("/"):
            return os.path.isdir(path) and not os.path.islink(path)
        same = length_of(path) == info.length
        return same and checksum_of(path) == info.object_id.checksum
    except OSError:
        return False


def _write(destination: Destination, read: _Read) -> OSError | UnsafeName | None:
    (info, path), data = read
    metadata = info.metadata
    try:
        if LINK in metadata:
            destination.link(path, info.etag, metadata[LINK])
        elif info.name.endswith("/"):
            destination.folder(path, metadata)
        else:
            destination.write(path, info.etag, data, metadata)
    except (OSError, UnsafeName) as error:
        return error
    return None

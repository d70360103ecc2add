"""Putting files into a bucket: many at once, and only what is not there already.

Invariants:
- A file is not put again if its object has the same length and checksum, which are those of the
  bytes: what a first run has put, a second one passes over.
- A small file is read once; of a big one at most a few pieces are in memory.
"""

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import google_crc32c

from blobit.errors import BlobNotFound
from engine.ports.clock import Clock
from engine.ports.workers import Workers
from herdbook.cli import blob_parts
from herdbook.cli.blob_folders import LINK, LocalItem, checksum_of, read_file
from herdbook.cli.blob_moving import (
    BIG_BYTES,
    Batches,
    Moving,
    Outcome,
    Telling,
    each_of,
    in_parallel,
    is_of_one,
    told,
)

if TYPE_CHECKING:
    from blobit import AsyncBucket, ObjectInfo

LOOKED_UP_MAX: Final = 1_000
"""For more files than this the bucket is listed once instead of asked for each name."""


class PutOptions(NamedTuple):
    """How objects are put."""

    content_type: str | None = None
    """None: what the name's ending says."""
    metadata: Mapping[str, str] = {}
    if_absent: bool = False
    ttl_ms: int | None = None
    attributes: bool = True
    again: bool = False
    """Also what is there and equal."""
    expires_ms: int | None = None

    def begun(self, clock: Clock) -> "PutOptions":
        """The same, counted from now on."""
        ttl_ms = self.ttl_ms
        return self._replace(expires_ms=None if ttl_ms is None else clock.wall_ms() + ttl_ms)

    def of(self, name: str, own: Mapping[str, str]) -> dict[str, Any]:
        """What a put of an object takes that has metadata of its own."""
        own = own if self.attributes or LINK in own else {}
        return {
            "content_type": type_of(name) if self.content_type is None else self.content_type,
            "metadata": {**own, **self.metadata},
            "if_absent": self.if_absent,
            "expires_ms": self.expires_ms,
        }


class Planned(NamedTuple):
    """A file and the name of its object."""

    item: LocalItem
    name: str


class _Known(NamedTuple):
    """What is there under a name."""

    length: int
    checksum: int
    link: str | None


_TYPES: Final = mimetypes.MimeTypes()


def type_of(name: str) -> str:
    """The content type that a name's ending stands for, "" if nobody knows.

    >>> type_of("a/b.html")
    'text/html'
    """
    content_type, encoding = _TYPES.guess_type(PurePosixPath(name).name)
    return (content_type or "") if encoding is None else f"application/{encoding}"


class Putting:
    """Puts files into one bucket."""

    def __init__(
        self,
        bucket: "AsyncBucket",
        workers: Workers,
        telling: Telling,
        options: PutOptions,
        jobs: int,
    ) -> None:
        self._bucket = bucket
        self._workers = workers
        self._telling = telling
        self._options = options
        self._jobs = jobs
        self._known: dict[str, _Known] | None = None

    async def put_all(self, planned: list[Planned]) -> None:
        """Put all of it. Raises what would fail for all of them."""
        options = self._options
        self._telling.expect(sum(each.item.size_bytes for each in planned))
        if not options.again and not options.if_absent and len(planned) > LOOKED_UP_MAX:
            prefix = _common([each.name for each in planned])
            self._known = {info.name: _known(info) async for info in self._bucket.scan(prefix)}
        batches: AsyncIterator[list[Planned]] = Batches(
            each_of(planned), lambda each: each.item.size_bytes
        )
        await in_parallel(batches, self._put_batch, self._jobs)

    async def _put_batch(self, batch: list[Planned]) -> None:
        there = await asyncio.gather(*[self._look_up(each.name) for each in batch])
        looked = list(zip(batch, there, strict=True))
        read = await self._workers.run(lambda: [_read(each, known) for each, known in looked])
        puts = [self._put_one(each, data) for each, data in zip(batch, read, strict=True)]
        await asyncio.gather(*puts)

    async def _look_up(self, name: str) -> _Known | None:
        if self._options.again or self._options.if_absent:
            return None
        if self._known is not None:
            return self._known.get(name)
        try:
            return _known(await self._bucket.stat(name))
        except BlobNotFound as error:
            if not is_of_one(error):
                raise
            return None

    async def _put_one(self, planned: Planned, data: "bytes | _Same | _Big | OSError") -> None:
        item, name = planned
        if isinstance(data, OSError):
            self._telling.tell(Outcome("failed", name, item.path, 0, error=told(data)))
            return
        if isinstance(data, _Same):
            self._telling.moved(item.size_bytes)
            self._telling.tell(Outcome("same", name, item.path, item.size_bytes))
            return
        try:
            if isinstance(data, _Big):
                info = await self._put_big(item, name)
            else:
                info = await self._bucket.put(name, data, **self._options.of(name, item.metadata))
                self._telling.moved(item.size_bytes)
        except Exception as error:
            if not is_of_one(error):
                raise
            self._telling.tell(Outcome("failed", name, item.path, 0, error=told(error)))
            return
        self._telling.tell(Outcome("put", name, item.path, info.length, info))

    async def _put_big(self, item: LocalItem, name: str) -> "ObjectInfo":
        asked = self._options.of(name, item.metadata)
        await self._bucket.check_room(name, item.size_bytes)
        # An upload in parts has no condition, and its object expires counted from its beginning.
        expires = asked["expires_ms"] is not None or self._bucket.settings.ttl_ms is not None
        plain = asked.pop("if_absent") or expires
        if item.size_bytes >= blob_parts.PARTED_BYTES_MIN and not plain:
            parted = blob_parts.PartedPut(self._bucket, self._workers, self._telling)
            return await parted.put(item.path, item.size_bytes, name, asked)
        with closing(blob_parts.Slice(item.path, self._telling)) as file:
            return await self._bucket.put(name, file, **self._options.of(name, item.metadata))


class ClosingFile(Protocol):
    """What is read and closed."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Counted:
    """A file whose reading is told."""

    def __init__(self, file: ClosingFile, telling: Moving) -> None:
        self._file = file
        self._telling = telling

    def read(self, size: int, /) -> bytes:
        """The next bytes."""
        data = self._file.read(size)
        self._telling.moved(len(data))
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Same:
    """The object is there."""


class _Big:
    """The file is put piece by piece."""


def _read(planned: Planned, known: _Known | None) -> bytes | _Same | _Big | OSError:
    """What is to be put of an item; in a thread of its own."""
    item = planned.item
    if item.kind != "file":
        same = known is not None and not known.length and known.link == item.metadata.get(LINK)
        return _Same() if same else b""
    try:
        if item.size_bytes > BIG_BYTES:
            if known is not None and known.length == item.size_bytes and known.link is None:
                if checksum_of(item.path) == known.checksum:
                    return _Same()
            return _Big()
        data = read_file(item.path)
    except OSError as error:
        return error
    if known is not None and known.length == len(data) and known.link is None:
        if google_crc32c.value(data) == known.checksum:
            return _Same()
    return data


def _common(names: list[str]) -> str:
    """What all names begin with: what the least and the greatest have in common."""
    low, high = min(names), max(names)
    count = next(
        (at for at, pair in enumerate(zip(low, high, strict=False)) if len(set(pair)) > 1), len(low)
    )
    return low[: min(count, len(high))]


def _known(info: "ObjectInfo") -> _Known:
    return _Known(info.length, info.object_id.checksum, info.metadata.get(LINK))

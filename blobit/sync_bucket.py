"""A bucket for code without an event loop: a thin face over `AsyncBucket`.

Invariants:
- Each call means what the call of its name means there; see `AsyncBucket` for what it raises.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from blobit.blobs import AsyncBlobs
from blobit.bucket import AsyncBucket, NamedUpload
from blobit.file import open_object
from blobit.listing import Listing
from blobit.locations import Location
from blobit.object_id import ObjectId
from blobit.settings import BucketSettings
from blobit.sync_calls import Calls, SyncSource, pieces_of
from blobit.tables import ObjectInfo, PartInfo, UploadInfo, Usage
from engine.ports.system_loop import BackgroundLoop

# In the class below `list` is a call of its own.
Objects = list[ObjectInfo]
Locations = list[Location]
Uploads = list[UploadInfo]


class Bucket:
    """A bucket. Made by `Blobs.bucket`; any number of threads may use one at the same time."""

    def __init__(self, blobs: AsyncBlobs, bucket: AsyncBucket, loop: BackgroundLoop) -> None:
        self._blobs = blobs
        self._bucket = bucket
        self._loop = loop
        self._calls = Calls(loop)
        self._run = self._calls.run

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self._bucket.name

    @property
    def bucket_id(self) -> int:
        """What tells it from another bucket that had its name before."""
        return self._bucket.bucket_id

    @property
    def settings(self) -> BucketSettings:
        """What it was created with."""
        return self._bucket.settings

    def put(
        self,
        name: str,
        source: SyncSource,
        *,
        content_type: str = "",
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_match: str | None = None,
        expires_ms: int | None = None,
    ) -> ObjectInfo:
        """Store an object under a name, in place of the one that has it."""
        asked: dict[str, Any] = {
            "content_type": content_type,
            "metadata": metadata,
            "if_absent": if_absent,
            "if_match": if_match,
            "expires_ms": expires_ms,
        }
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            return self._run(lambda: self._bucket.put(name, data, **asked))
        pieces = pieces_of(source)
        return self._calls.upload(lambda: self._bucket.upload(name, **asked), pieces)

    def put_many(self, objects: Iterable[tuple[str, bytes]]) -> Objects:
        """Store many small objects, which share ledgers and commits."""
        given = list(objects)
        return self._run(lambda: self._bucket.put_many(given))

    def upload(self, name: str, **asked: Any) -> "SyncUpload":
        """Store an object piece by piece; takes what `put` takes."""

        async def begin() -> NamedUpload:
            return self._bucket.upload(name, **asked)

        return SyncUpload(self._run(begin), self._calls)

    def put_unnamed(self, source: SyncSource) -> ObjectId:
        """Store an object without a name; its id stays as it is until `delete_unnamed`."""
        return self._run(lambda: self._bucket.put_unnamed(_whole(source)))

    def delete_unnamed(self, object_id: ObjectId | str) -> bool:
        """Let go of an object without a name; False if this bucket does not keep it."""
        return self._run(lambda: self._bucket.delete_unnamed(object_id))

    def append(self, name: str, source: SyncSource, *, if_match: str | None = None) -> ObjectInfo:
        """Add bytes to the end of an object; one that is not there begins with them."""
        return self._run(lambda: self._bucket.append(name, _whole(source), if_match=if_match))

    def concat(self, target: str, sources: Sequence[str], *, keep: bool = False) -> ObjectInfo:
        """Make `target` of the bytes of other objects, which are removed unless `keep`."""
        return self._run(lambda: self._bucket.concat(target, sources, keep=keep))

    def rename(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """Give an object another name, at once; it keeps its etag."""
        return self._run(lambda: self._bucket.rename(source, target, if_absent=if_absent))

    def copy(
        self, source: str, target: str, *, to: "Bucket | None" = None, if_absent: bool = False
    ) -> ObjectInfo:
        """Make another object of the same bytes, type and metadata, here or in another bucket."""
        other = None if to is None else to._bucket
        return self._run(lambda: self._bucket.copy(source, target, to=other, if_absent=if_absent))

    def get(self, name: str) -> bytes:
        """The whole object."""
        return self._run(lambda: self._bucket.get(name))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on."""
        return self._run(lambda: self._bucket.get_range(name, offset, length))

    def stream(self, name: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The object in pieces, or a range of it, with some read ahead of the caller."""
        return self._calls.stream(self._bucket.stream(name, offset, length))

    def open(self, name: str) -> io.BufferedReader:
        """The object as a file: seekable, buffered, read ahead of, of one version. Close it.

        Reading raises `ObjectChanged` when that version has gone.
        """
        info = self.stat(name)
        return open_object(self._loop, self._blobs, self._bucket, info)

    def stat(self, name: str) -> ObjectInfo:
        """What is known of an object."""
        return self._run(lambda: self._bucket.stat(name))

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name."""
        return self._run(lambda: self._bucket.exists(name))

    def list(
        self, prefix: str = "", *, delimiter: str = "", token: str = "", limit: int = 1_000
    ) -> Listing:
        """At most `limit` objects whose names begin with `prefix`, in order of UTF-8 bytes."""
        asked: dict[str, Any] = {"delimiter": delimiter, "token": token, "limit": limit}
        return self._run(lambda: self._bucket.list(prefix, **asked))

    def scan(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose names begin so, in order; one hop a page."""
        token = ""
        while True:
            page = self.list(prefix, token=token)
            yield from page.objects
            token = page.token
            if not token:
                return

    def locations(self, name: str) -> Locations:
        """Where the bytes lie, for work that wants to be near them."""
        return self._run(lambda: self._bucket.locations(name))

    def usage(self) -> Usage:
        """What the bucket holds, counted row by row."""
        return self._run(self._bucket.usage)

    def delete(self, name: str, *, if_match: str | None = None) -> bool:
        """Remove an object; False if there is none of that name."""
        return self._run(lambda: self._bucket.delete(name, if_match=if_match))

    def delete_many(self, names: Iterable[str]) -> int:
        """Remove objects; returns how many there were."""
        given = [*names]
        return self._run(lambda: self._bucket.delete_many(given))

    def create_upload(
        self,
        name: str,
        *,
        content_type: str = "",
        metadata: Mapping[str, str] | None = None,
        expires_ms: int | None = None,
    ) -> str:
        """Begin an upload whose parts may come in any order, from anywhere; returns its id."""
        return self._run(
            lambda: self._bucket.create_upload(
                name, content_type=content_type, metadata=metadata, expires_ms=expires_ms
            )
        )

    def put_part(self, upload_id: str, number: int, source: SyncSource) -> PartInfo:
        """Store a part, in place of the one of its number, 1 to 10,000."""
        return self._run(lambda: self._bucket.put_part(upload_id, number, _whole(source)))

    def complete_upload(
        self,
        upload_id: str,
        numbers: Sequence[int] | None = None,
        *,
        parts: Sequence[PartInfo] | None = None,
    ) -> ObjectInfo:
        """Make the object of its parts, in the order of their numbers, or of those given."""
        return self._run(lambda: self._bucket.complete_upload(upload_id, numbers, parts=parts))

    def abort_upload(self, upload_id: str) -> None:
        """Forget an upload and its parts."""
        self._run(lambda: self._bucket.abort_upload(upload_id))

    def uploads(self) -> Uploads:
        """The uploads in parts that are not completed."""
        return self._run(self._bucket.uploads)

    def parts(self, upload_id: str) -> Sequence[PartInfo]:
        """The parts that an upload has, by number."""
        return self._run(lambda: self._bucket.parts(upload_id))


class SyncUpload:
    """Takes an object piece by piece. Made by `Bucket.upload`."""

    def __init__(self, upload: NamedUpload, calls: Calls) -> None:
        self._upload = upload
        self._calls = calls

    def write(self, data: bytes) -> None:
        """Take the next bytes; waits while too much is under way."""
        self._calls.run(lambda: self._upload.write(data))

    def finish(self) -> ObjectInfo:
        """Wait until all of it is durable, and give it its name."""
        return self._calls.run(self._upload.finish)

    def abort(self) -> None:
        """Forget the object."""
        self._calls.run(self._upload.abort)


def _whole(source: SyncSource) -> "bytes | Iterator[bytes]":
    """A source as the loop takes it: its pieces are made in a worker's thread."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    return pieces_of(source)

"""The blob store for code without an event loop: a thin face over `AsyncBlobs`.

Invariants:
- A call makes one hop to the process's background loop; a source that is no bytes is read in the
  caller's own thread, one hop a piece.
- A call on the loop's own thread, or in a forked child, raises `BlobsClosed`; it never hangs.
- An interrupted wait abandons the wait.
"""

from collections.abc import Iterator

from blobit.blobs import AsyncBlobs
from blobit.counting import BucketUse
from blobit.garbage_report import GarbageReport
from blobit.locations import Location
from blobit.object_id import ObjectId
from blobit.settings import BucketSettings
from blobit.sync_bucket import Bucket
from blobit.sync_calls import Calls, SyncSource, pieces_of
from blobit.tables import BucketInfo
from blobit.tablespace_pool import PoolLimits, PoolTablespace
from engine.ports.system_loop import BackgroundLoop


class Blobs:
    """Buckets, and objects by id. Any number of threads may use one at the same time."""

    def __init__(self, blobs: AsyncBlobs, loop: BackgroundLoop) -> None:
        """`blobs` was made on `loop`, and only this object closes it."""
        self._blobs = blobs
        self._loop = loop
        self._calls = Calls(loop)
        self._run = self._calls.run

    def create_bucket(
        self,
        name: str,
        settings: BucketSettings | None = None,
        *,
        exist_ok: bool = False,
        tablespace: str | None = None,
        own_tablespace: bool = False,
    ) -> Bucket:
        """Make a bucket; see `AsyncBlobs.create_bucket`."""
        made = self._run(
            lambda: self._blobs.create_bucket(
                name,
                settings,
                exist_ok=exist_ok,
                tablespace=tablespace,
                own_tablespace=own_tablespace,
            )
        )
        return Bucket(self._blobs, made, self._loop)

    def bucket(self, name: str) -> Bucket:
        """A bucket by name. Raises `InvalidName`, `NoSuchBucket`, `MetadataUnavailable`."""
        return Bucket(self._blobs, self._run(lambda: self._blobs.bucket(name)), self._loop)

    def buckets(self) -> list[BucketInfo]:
        """All buckets, by name. Raises `MetadataUnavailable`."""
        return self._run(self._blobs.buckets)

    def use(self, bucket: str) -> BucketUse:
        """What a bucket holds and what it may hold; see `AsyncBlobs.use`."""
        return self._run(lambda: self._blobs.use(bucket))

    def set_quota(
        self,
        bucket: str,
        *,
        quota_bytes: int | None = None,
        quota_objects: int | None = None,
        recount: bool = False,
    ) -> BucketUse:
        """Say what the objects of a bucket may be; see `AsyncBlobs.set_quota`."""
        return self._run(
            lambda: self._blobs.set_quota(
                bucket, quota_bytes=quota_bytes, quota_objects=quota_objects, recount=recount
            )
        )

    def delete_bucket(self, name: str, *, force: bool = False) -> None:
        """Delete a bucket; see `AsyncBlobs.delete_bucket`."""
        self._run(lambda: self._blobs.delete_bucket(name, force=force))

    def pool_limits(self) -> PoolLimits:
        """Up to where tablespaces of the pool take new buckets. Raises `MetadataUnavailable`."""
        return self._run(self._blobs.pool_limits)

    def set_pool_limits(
        self,
        *,
        buckets: int | None = None,
        objects: int | None = None,
        size_bytes: int | None = None,
    ) -> PoolLimits:
        """Say up to where they do; see `AsyncBlobs.set_pool_limits`."""
        return self._run(
            lambda: self._blobs.set_pool_limits(
                buckets=buckets, objects=objects, size_bytes=size_bytes
            )
        )

    def move_bucket(self, name: str, tablespace: str | None = None) -> BucketInfo:
        """Move a bucket to a tablespace of the pool; see `AsyncBlobs.move_bucket`."""
        return self._run(lambda: self._blobs.move_bucket(name, tablespace))

    def pool_tablespaces(self) -> list[PoolTablespace]:
        """The tablespaces that buckets of a cluster share. Raises `MetadataUnavailable`."""
        return self._run(self._blobs.pool_tablespaces)

    def collect(self, bucket: str | None = None, *, dry_run: bool = False) -> GarbageReport:
        """Give back what nobody needs any more; see `AsyncBlobs.collect`."""
        return self._run(lambda: self._blobs.collect(bucket, dry_run=dry_run))

    def unpin(self, name: str) -> int:
        """Remove the pins of a name, which a report shows; see `AsyncBlobs.unpin`."""
        return self._run(lambda: self._blobs.unpin(name))

    def locations(self, object_id: ObjectId | str) -> list[Location]:
        """Which bookies hold which bytes of an object. Raises `BlobNotFound`, `BlobUnreadable`."""
        return self._run(lambda: self._blobs.locations(object_id))

    def put(self, source: SyncSource) -> ObjectId:
        """Store an object and return its id, once it is durable.

        Raises `BlobNotStored`, `BlobsClosed`, and `TypeError` for what is no source of bytes.
        """
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            return self._run(lambda: self._blobs.put(data))
        return self._calls.upload(self._blobs.upload, pieces_of(source))

    def get(self, object_id: ObjectId | str) -> bytes:
        """The whole object.

        Raises `InvalidObjectId`, `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
        """
        return self._run(lambda: self._blobs.get(object_id))

    def get_range(self, object_id: ObjectId | str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on. Raises `RangeInvalid`, and what `get` raises."""
        return self._run(lambda: self._blobs.get_range(object_id, offset, length))

    def stream(
        self, object_id: ObjectId | str, offset: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        """The object, or a range of it, in pieces of about a mebibyte, read ahead of the caller.

        Raises as `get` does, while iterating; a wrong checksum shows before the last piece comes.
        """
        return self._calls.stream(self._blobs.stream(object_id, offset, length))

    def close(self) -> None:
        """End pending puts and close the open ledgers. May be called twice."""
        self._run(self._blobs.close)

    def __enter__(self) -> "Blobs":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""A bucket at one position: the rows of its names in a pinned checkpoint.

Invariants:
- Everything that a process needs to read is in the snapshot; it travels to others as it is.
- The checkpoint is pinned, so names and bytes stay for whoever reads it.
- What had expired when the checkpoint was taken is not there, in all reads alike.
- A bucket that was on its way when the checkpoint was taken is not read there: some of its rows may
  have been missing.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from blobit.errors import BlobNotFound, BlobUnreadable, MetadataUnavailable, NoSuchBucket
from blobit.snapshot.filters import where_conditions
from blobit.snapshot.finding import find_bucket, lived_there
from blobit.snapshot.wanted import Wanted
from blobit.tables import BucketInfo
from engine.application import Application
from engine.place import Place
from herd.schema import Column, Table
from herd.snapshot.conditions import Condition, Operator, condition_on
from herd.snapshot.opening import open_snapshot
from herd.snapshot.snapshot import Snapshot
from herd.snapshot.wanted import Wanted as WantedTable

_OBJECTS: Final = "objects"
_ATTEMPTS_MAX: Final = 20
COLUMNS: Final = (
    *("bucket_id", "name", "object_id", "length", "etag", "metadata"),
    *("created_ms", "expires_ms"),
)
"""Of `objects`, what readers see or need."""


class BucketSnapshot(msgspec.Struct, frozen=True):
    """A bucket, and the table that has its names at a checkpoint."""

    bucket: str
    bucket_id: int
    names: Snapshot
    conditions: tuple[Condition, ...]
    """What a row meets that is one of the bucket and wanted."""

    @property
    def place(self) -> Place:
        """Where names and bytes are."""
        return self.names.place

    def at(self, place: Place) -> "BucketSnapshot":
        """The same, reached by another place of the store."""
        return msgspec.structs.replace(self, names=self.names.at(place))

    def column(self, name: str) -> Column:
        """A column of the names."""
        return self.names.table.column(name)

    def told(self, name: str, error: Exception) -> Exception:
        """What a reader hears of an object that cannot be read."""
        what = f"object {name} of bucket {self.bucket}: {error}"
        if isinstance(error, BlobNotFound):
            number = self.names.record.number
            return BlobNotFound(
                f"{what}: its bytes were collected, so checkpoint {number} is pinned no more, or "
                "was too old when it was: load again"
            )
        return type(error)(what) if isinstance(error, BlobUnreadable) else error


def take_snapshot(place: Place, application: Application, wanted: Wanted) -> BucketSnapshot:
    """Pin names and bytes of a bucket as they are now, or were at a checkpoint. Blocks.

    Raises `NoSuchBucket`, `MetadataUnavailable`, and what `open_snapshot` raises.
    """
    for _ in range(_ATTEMPTS_MAX):
        info, was_moved = find_bucket(place, wanted.bucket)
        table = WantedTable(
            _OBJECTS, info.tablespace, fresh=wanted.fresh, number=wanted.number, columns=COLUMNS
        )
        names = open_snapshot(place, application, table)
        if lived_there(names, info.bucket_id, was_moved=was_moved):
            conditions = tuple(_conditions(info, names.table, wanted))
            return BucketSnapshot(info.name, info.bucket_id, names, conditions)
        if not wanted.fresh:
            raise NoSuchBucket(
                f"bucket {info.name} did not live in tablespace {info.tablespace} at checkpoint "
                f"{names.record.number}: it was moved there later; load a newer one"
            )
    raise MetadataUnavailable(f"bucket {wanted.bucket} is moved all the time: load again")


def _conditions(info: BucketInfo, names: Table, wanted: Wanted) -> Iterator[Condition]:
    own = condition_on(names.column("bucket_id"), Operator.EQUAL, (info.bucket_id,))
    assert own is not None, "a bucket's id is a number"
    yield own
    if wanted.prefix:
        named = condition_on(names.column("name"), Operator.STARTS, (wanted.prefix,))
        assert named is not None, "a name is a text"
        yield named
    yield from where_conditions(wanted.where, names)

"""What a bucket holds, counted in the transactions that change it, and what it may hold.

A bucket's objects and bytes stand in several rows of `counts`, and are what these add up to. A
transaction adds what it changes to one of them, so that two need not wait for each other. The row
`BASE` has what was there before anybody counted, and the bucket's quota. With a quota each of the
other rows has a share: `objects_max` and `bytes_max` say up to where it may count.

Invariants:
- A transaction that changes rows of `objects` changes the counts by the same.
- With a quota the shares add up to it, less what `BASE` has. No change takes a row above its share:
  who needs more takes all rows of the bucket and divides what is left anew. So a bucket never
  holds more than its quota, but for what it held when the quota was set.
- What gives back is never refused.
- The counts of a deleted bucket are shut. Every change of a bucket's objects or uploads locks one
  of its counts, so once all are shut the bucket cannot change, even through open handles.
- Those that a transaction adds to are frozen where a bucket is about to leave, or has not yet come.
  Then its ledgers and its unnamed objects do not change either.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from blobit.errors import NoSuchBucket, QuotaExceeded
from blobit.tables import Row, RowKey

BASE: Final = 0
SHARES: Final = 16
"""Rows 1 to 16 count. Another number in another program would divide a quota otherwise."""
Room = tuple[float, float]
"""So many more objects and bytes."""
NO_ROOM: Final[Room] = (0, 0)
_DIMENSIONS: Final = (("objects", "objects_max"), ("size_bytes", "bytes_max"))
_SHUT: Final = -(1 << 62)
"""Stored in place of shares when the bucket was deleted. A share is negative where a bucket holds
more than its quota, but never by so much: a bucket holds fewer objects and bytes."""
_SHUT_FROM: Final = _SHUT // (2 * SHARES)
"""This value or a lower one shows that a bucket was deleted. A program that does not know shut
counts reads `_SHUT` as a quota, and may divide it among all shares."""
_FROZEN: Final = -(1 << 62) - (1 << 61)
"""Stored in place of shares while the bucket does not take changes in this tablespace, for it is on
its way to another one, or from there. To a program that knows of no moves it is deleted here."""
_FROZEN_FROM: Final = _SHUT - (1 << 60)
_OF_BUCKETS: Final = frozenset({"objects", "open_buckets", "uploads"})
"""Tables whose rows begin with a bucket's id, and that change only while the bucket exists."""


class BucketUse(msgspec.Struct, frozen=True):
    """The named objects of a bucket and their bytes, and what these may be at most; 0: no limit."""

    objects: int
    bytes: int
    quota_objects: int
    quota_bytes: int


class BucketShut(NoSuchBucket):
    """The change concerns a bucket that was deleted, and that nobody can open again."""


class BucketMoved(NoSuchBucket):
    """The bucket takes no changes in this tablespace now: look up where it lives."""


class Crowded(Exception):
    """A change needs more than the share of one row: it is decided again over all of them."""

    def __init__(self, bucket_id: int) -> None:
        super().__init__(f"bucket {bucket_id} is near its quota")
        self.bucket_id = bucket_id


def count_key(bucket_id: int, number: int) -> RowKey:
    """The key of one of a bucket's counts."""
    return "counts", (bucket_id, number)


def all_keys(bucket_id: int) -> list[RowKey]:
    """The keys of all counts of a bucket."""
    return [count_key(bucket_id, number) for number in range(SHARES + 1)]


def count_row(bucket_id: int, number: int, objects: int = 0, size_bytes: int = 0) -> Row:
    """One of a bucket's counts, without a share or a quota."""
    return {
        "bucket_id": bucket_id,
        "number": number,
        "objects": objects,
        "size_bytes": size_bytes,
        "objects_max": None,
        "bytes_max": None,
    }


def shut(bucket_id: int, number: int, row: Row | None) -> Row:
    """One of a bucket's counts after the bucket was deleted."""
    before = row if row is not None else count_row(bucket_id, number)
    return {**before, "objects_max": _SHUT, "bytes_max": _SHUT}


def is_shut(row: Mapping[str, Any] | None) -> bool:
    """Whether a count shows that its bucket was deleted."""
    return row is not None and all(
        row[most] is not None and _FROZEN_FROM < row[most] <= _SHUT_FROM for _, most in _DIMENSIONS
    )


def frozen(bucket_id: int, number: int, row: Row | None) -> Row:
    """One of a bucket's counts while it takes no changes; what it counts stays."""
    before = row if row is not None else count_row(bucket_id, number)
    return {**before, "objects_max": _FROZEN, "bytes_max": _FROZEN}


def is_frozen(row: Mapping[str, Any] | None) -> bool:
    """Whether a count takes no changes, for its bucket is on its way."""
    return row is not None and all(
        row[most] is not None and row[most] <= _FROZEN_FROM for _, most in _DIMENSIONS
    )


def thawed(row: Row) -> Row:
    """The same without that; its share is to be divided anew."""
    return {**row, "objects_max": None, "bytes_max": None} if is_frozen(row) else row


def use_of(rows: Iterable[Row]) -> BucketUse:
    """What the counts of one bucket say together."""
    objects = size_bytes = quota_objects = quota_bytes = 0
    for row in rows:
        objects, size_bytes = objects + row["objects"], size_bytes + row["size_bytes"]
        if row["number"] == BASE:
            quota_objects, quota_bytes = row["objects_max"] or 0, row["bytes_max"] or 0
    return BucketUse(objects, size_bytes, quota_objects, quota_bytes)


def room_of(use: BucketUse) -> Room:
    """What a bucket may hold beside what it holds."""
    objects = use.quota_objects - use.objects if use.quota_objects else math.inf
    return objects, use.quota_bytes - use.bytes if use.quota_bytes else math.inf


def divided(rows: Iterable[Row]) -> list[Row]:
    """All counts of a bucket with shares that add up to the quota that `BASE` has, made anew."""
    given = {row["number"]: dict(row) for row in rows}
    bucket_id = given[BASE]["bucket_id"]
    made = [given.get(number) or count_row(bucket_id, number) for number in range(SHARES + 1)]
    for count, most in _DIMENSIONS:
        quota = made[BASE][most]
        left = None if quota is None else quota - sum(row[count] for row in made)
        for row in made[1:]:
            # The first ones get what does not divide; what is over is missing in all alike.
            extra = 0 if left is None else left // SHARES + (row["number"] <= left % SHARES)
            row[most] = None if left is None else row[count] + extra
    return made


def check_room(bucket: str, use: BucketUse, objects: int, size_bytes: int) -> None:
    """Raise `QuotaExceeded` if a bucket may not hold so much more."""
    if size_bytes > 0 and use.quota_bytes and use.bytes + size_bytes > use.quota_bytes:
        raise QuotaExceeded(
            f"{bucket} holds {use.bytes:,} of {use.quota_bytes:,} bytes: {size_bytes:,} more "
            "do not fit; delete objects, or raise its quota"
        )
    if objects > 0 and use.quota_objects and use.objects + objects > use.quota_objects:
        raise QuotaExceeded(
            f"{bucket} holds {use.objects:,} of {use.quota_objects:,} objects: {objects:,} more "
            "do not fit; delete objects, or raise its quota"
        )


class Counting:
    """What a batch of changes adds to the counts of the buckets whose objects it changes."""

    def __init__(
        self,
        keys: Iterable[RowKey],
        number: int,
        whole: Iterable[int],
        buckets: Iterable[int] = (),
    ) -> None:
        """For objects of `keys`, with row `number` of each bucket, all rows of those in `whole`.

        Of `buckets` other rows change, which are not counted.
        """
        self._number = number
        self._whole = frozenset(whole)
        self._buckets = dict.fromkeys(key[0] for table, key in keys if table in _OF_BUCKETS)
        self._buckets.update(dict.fromkeys(buckets))
        self._shut: frozenset[int] = frozenset()
        self._frozen: frozenset[int] = frozenset()
        self._found: Mapping[RowKey, Row | None] = {}
        self._added: dict[int, tuple[int, int]] = {}

    @property
    def buckets(self) -> list[int]:
        """Whose rows change."""
        return list(self._buckets)

    @property
    def keys(self) -> list[RowKey]:
        """The counts that have to be locked."""
        keys = list[RowKey]()
        for bucket_id in self._buckets:
            if bucket_id in self._whole:
                keys += all_keys(bucket_id)
            else:
                keys.append(count_key(bucket_id, self._number))
        return keys

    def begin(self, found: Mapping[RowKey, Row | None]) -> None:
        """The rows that were locked; nothing is added yet."""
        self._found = found
        self._added = {}
        self.look()

    def look(self) -> None:
        """See which buckets take no changes, again after a change of the counts themselves."""
        self._shut = frozenset(each for each in self._buckets if is_shut(self._own(each)))
        self._frozen = frozenset(each for each in self._buckets if is_frozen(self._own(each)))

    def check(self, keys: Iterable[RowKey], buckets: Iterable[int] = ()) -> None:
        """Raise `BucketShut` if a change of rows with these keys concerns a deleted bucket.

        Raise `BucketMoved` if it, or one of other rows of `buckets`, concerns one on its way.
        """
        if not (self._shut or self._frozen):
            return
        for table, key in keys:
            if table in _OF_BUCKETS and key[0] in self._shut:
                raise BucketShut("the bucket has been deleted")
            if table in _OF_BUCKETS and key[0] in self._frozen:
                raise BucketMoved("the bucket is on its way to another tablespace")
        if any(bucket_id in self._frozen for bucket_id in buckets):
            raise BucketMoved("the bucket is on its way to another tablespace")

    def room(self) -> dict[int, Room]:
        """What the buckets may hold beside this batch, at least."""
        room = dict[int, Room]()
        for bucket_id in self._buckets:
            (objects, size_bytes), added = _left(self._own(bucket_id)), self._added.get(bucket_id)
            if added is not None:
                objects, size_bytes = objects - added[0], size_bytes - added[1]
            room[bucket_id] = objects, size_bytes
        return room

    def add(self, writes: Mapping[RowKey, Row | None]) -> None:
        """Count what a change is about to write. Raises `QuotaExceeded`, and `Crowded`."""
        objects, size_bytes, bucket_id = 0, 0, None
        for key, row in writes.items():
            # What nobody has looked at belongs to a bucket that was deleted, whose counts go, too.
            if key[0] != "objects" or key not in self._found:
                continue
            bucket_id, before = key[1][0], self._found[key]
            if before is not None:
                objects, size_bytes = objects - 1, size_bytes - before["length"]
            if row is not None:
                objects, size_bytes = objects + 1, size_bytes + row["length"]
        if bucket_id is None or not (objects or size_bytes):
            return
        added = self._added.get(bucket_id, (0, 0))
        self._check(bucket_id, added, objects, size_bytes)
        self._added[bucket_id] = added[0] + objects, added[1] + size_bytes

    def writes(self) -> dict[RowKey, Row | None]:
        """The counts that change."""
        writes = dict[RowKey, Row | None]()
        for bucket_id, (objects, size_bytes) in self._added.items():
            if not (objects or size_bytes):
                continue
            row = dict(self._own(bucket_id))
            row["objects"] += objects
            row["size_bytes"] += size_bytes
            rows = [row]
            closed = is_shut(row) or is_frozen(row)
            if bucket_id in self._whole and _has_share(row) and not closed:
                others = self._rows(bucket_id)
                rows = divided([*(each for each in others if each["number"] != self._number), row])
            writes.update({count_key(bucket_id, each["number"]): each for each in rows})
        return writes

    def _check(self, bucket_id: int, added: tuple[int, int], objects: int, size_bytes: int) -> None:
        own = self._own(bucket_id)
        if not _has_share(own):
            return
        if bucket_id in self._whole:
            use = use_of([*self._rows(bucket_id), count_row(bucket_id, -1, *added)])
            check_room("the bucket", use, objects, size_bytes)
            return
        over_objects = objects > 0 and _over(own, "objects", "objects_max", added[0] + objects)
        over_bytes = size_bytes > 0 and _over(own, "size_bytes", "bytes_max", added[1] + size_bytes)
        if over_objects or over_bytes:
            raise Crowded(bucket_id)

    def _own(self, bucket_id: int) -> Row:
        found = self._found.get(count_key(bucket_id, self._number))
        return found if found is not None else count_row(bucket_id, self._number)

    def _rows(self, bucket_id: int) -> list[Row]:
        rows = [self._found.get(key) for key in all_keys(bucket_id)]
        return [row for row in rows if row is not None]


def _has_share(row: Mapping[str, Any]) -> bool:
    return row["objects_max"] is not None or row["bytes_max"] is not None


def _left(row: Mapping[str, Any]) -> Room:
    objects, size_bytes = (
        math.inf if row[most] is None else row[most] - row[count] for count, most in _DIMENSIONS
    )
    return objects, size_bytes


def _over(row: Row, count: str, share: str, more: int) -> bool:
    most: int | None = row[share]
    return most is not None and bool(row[count] + more > most)

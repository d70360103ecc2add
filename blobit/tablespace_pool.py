"""The pool of tablespaces that a cluster's buckets share, and which of them a new bucket goes to.

A new bucket goes to the first tablespace that has room. If none has, another one is created.

Invariants:
- A bucket is counted from the transaction that registers its name to the one that removes it from
  the registry, when none of its rows is left. So no bucket is added to a tablespace that already
  has as many buckets as the limit in force.
- Objects and bytes are measured from time to time. They only decide where the next bucket goes:
  existing buckets may keep growing.
- Numbers are not reused, and a tablespace of the pool is never dropped: when buckets have left it,
  it takes new ones.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from blobit.committing import Change, Effect, Found
from blobit.errors import BlobError, SettingsInvalid
from blobit.naming import pool_tablespace_name
from blobit.rows import told
from blobit.tables import Row, RowKey
from herd.errors import Error

if TYPE_CHECKING:
    from blobit.blobs import AsyncBlobs
    from blobit.committing import Committer

MEASURED_AGAIN_MS: Final = 60_000
_MOST: Final = 2**62


class PoolLimits(msgspec.Struct, frozen=True):
    """A tablespace of the pool takes no new buckets when it has `buckets` of them, or when they
    together hold `objects` or `bytes`. 0 for `objects` or `bytes` means no limit.
    """

    buckets: int = 1_000
    objects: int = 10_000_000
    bytes: int = 0


class PoolTablespace(msgspec.Struct, frozen=True):
    """A tablespace that buckets share. `buckets` includes deleted ones until all of their rows are
    gone. `objects` and `bytes` were measured at `measured_ms` of the wall clock; if that is 0,
    they were never measured.
    """

    tablespace: str
    buckets: int
    objects: int
    bytes: int
    measured_ms: int


class PoolFull(BlobError):
    """Others have filled the tablespace meanwhile: choose again."""


class TablespacePool:
    """The pool of one store. On one event loop."""

    def __init__(self, blobs: "AsyncBlobs", registry: "Committer") -> None:
        """`registry` changes the rows that describe the pool."""
        self._blobs = blobs
        self._registry = registry

    async def limits(self) -> PoolLimits:
        """Those that are in force. Raises `MetadataUnavailable`."""
        try:
            rows = self._registry.rows.scan("pool_limits")
            given = {row["name"]: row["most"] async for row in rows}
        except Error as error:
            raise told(error) from error
        known = {name: given[name] for name in PoolLimits.__struct_fields__ if name in given}
        return PoolLimits(**known)

    async def set_limits(self, given: Mapping[str, int]) -> PoolLimits:
        """Change some. Raises `SettingsInvalid`, `MetadataUnavailable`."""
        if any(not 0 <= most <= _MOST for most in given.values()) or given.get("buckets") == 0:
            raise SettingsInvalid(
                "a limit of the pool is between 0 and 2**62, that of buckets at least 1"
            )
        rows: dict[RowKey, Row | None] = {
            ("pool_limits", (name,)): {"name": name, "most": most} for name, most in given.items()
        }

        def confirm(found: Found) -> bool | None:
            return True if all(found[key] == row for key, row in rows.items()) else None

        await self._registry.change(Change(tuple(rows), lambda _: Effect(rows, True), confirm))
        return await self.limits()

    async def tablespaces(self) -> list[PoolTablespace]:
        """Those that there are, the oldest first. Raises `MetadataUnavailable`."""
        return [
            PoolTablespace(
                row["tablespace"],
                row["buckets"],
                row["objects"],
                row["size_bytes"],
                row["measured_ms"],
            )
            for row in await self._rows()
        ]

    async def named(self, tablespace: str) -> Row:
        """The row of a tablespace of the pool. Raises `SettingsInvalid`, `MetadataUnavailable`."""
        for row in await self._rows():
            if row["tablespace"] == tablespace:
                return row
        raise SettingsInvalid(f"{tablespace:.80} is not a tablespace of the pool")

    async def choose(self, limits: PoolLimits, *, but: str = "") -> Row:
        """The row of the tablespace, other than `but`, that a bucket goes to. It may not exist yet.

        Raises `MetadataUnavailable`.
        """
        rows = await self._rows()
        for row in rows:
            if row["buckets"] >= limits.buckets or row["tablespace"] == but:
                continue
            if _has_room(await self._measured(row, limits), limits):
                return row
        number = 1 + max((row["number"] for row in rows), default=0)
        return {
            "tablespace": pool_tablespace_name(number),
            "number": number,
            "buckets": 0,
            "objects": 0,
            "size_bytes": 0,
            "measured_ms": 0,
        }

    async def _rows(self) -> list[Row]:
        try:
            rows = [row async for row in self._registry.rows.scan("pool_tablespaces")]
        except Error as error:
            raise told(error) from error
        return sorted(rows, key=lambda row: row["number"])

    async def _measured(self, row: Row, limits: PoolLimits) -> Row:
        """The row, measured again if the last measurement is old and the result matters."""
        now_ms = self._blobs.client.clock.wall_ms()
        fresh = abs(now_ms - row["measured_ms"]) < MEASURED_AGAIN_MS
        if fresh or not (limits.objects or limits.bytes) or not _has_room(row, limits):
            # A full tablespace counts as full until garbage collection measures it again.
            return row
        return {**row, **await self.measure(row["tablespace"])}

    async def measure(self, tablespace: str) -> Row:
        """Measure what the buckets in a tablespace of the pool hold, and store it in its row.

        Raises `MetadataUnavailable`.
        """
        own = await self._blobs.committer(tablespace, create=True)
        try:
            objects, size_bytes = await own.rows.counted_together()
        except Error as error:
            raise told(error) from error
        now_ms = self._blobs.client.clock.wall_ms()
        seen = {"objects": objects, "size_bytes": size_bytes, "measured_ms": now_ms}
        key: RowKey = ("pool_tablespaces", (tablespace,))

        def decide(found: Found) -> Effect[bool]:
            there = found[key]
            return Effect({} if there is None else {key: {**there, **seen}}, True)

        # If the measurement is lost, it is only made again earlier.
        await self._registry.change(Change((key,), decide, lambda _: True))
        return seen


def joined(found: Row | None, chosen: Row, limits: PoolLimits) -> dict[RowKey, Row | None]:
    """The row of a tablespace after one bucket was added. Raises `PoolFull`."""
    row = chosen if found is None else found
    if row["buckets"] >= limits.buckets:
        raise PoolFull(f"tablespace {row['tablespace']} has {row['buckets']} buckets")
    return {("pool_tablespaces", (row["tablespace"],)): {**row, "buckets": row["buckets"] + 1}}


def left(found: Row | None) -> dict[RowKey, Row | None]:
    """The row of a tablespace after one bucket was removed; nothing if it is not of the pool."""
    if found is None:
        return {}
    row = {**found, "buckets": max(0, found["buckets"] - 1)}
    return {("pool_tablespaces", (found["tablespace"],)): row}


def _has_room(row: Row, limits: PoolLimits) -> bool:
    objects_left = not limits.objects or row["objects"] < limits.objects
    return objects_left and (not limits.bytes or row["size_bytes"] < limits.bytes)

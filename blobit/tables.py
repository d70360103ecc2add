"""What the store keeps in tablespaces: its tables, and what their rows mean.

The registry names the buckets, and the tablespaces that they share. Every tablespace that holds
buckets has all tables, so that nothing differs between one of many buckets and one of a single
bucket.

Invariants:
- What holds a range of a ledger is a row of `refs`. A ledger's row goes only when no row of `refs`
  names it, and `refs` names only ledgers that have their row: the database sees to both.
- `homes` has a row for each bucket that lives in the tablespace; nothing is written for another.
- `open_buckets` has a row for each bucket that takes objects; it goes only when there is no object.
- What the rows of `counts` of a bucket say together is what its rows of `objects` are.
- A bucket's id is never given to another bucket.
- `buckets` of a row of `pool_tablespaces` is how many rows of `buckets` and `deleted_buckets` name
  that tablespace; what it says of objects and bytes was so when it was measured.
- What is read of a bucket counts unless `moving_buckets` says that it does not live there.
"""

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from blobit.naming import is_of_pool, tablespace_name
from blobit.object_id import ObjectId
from blobit.settings import BucketSettings

Row = dict[str, Any]
"""A row, by column."""
RowKey = tuple[str, tuple[Any, ...]]
"""A table, and the values of a row's primary key."""

REGISTRY: Final = "blobs"
"""The tablespace of the registry, and of the buckets of a folder."""

PART_ROOM: Final = 2**20
"""So many refs one part of an upload may take."""


class BucketState(enum.IntEnum):
    """Of a row in `buckets`. Numbers are part of the format."""

    BEING_MADE = 0
    ACTIVE = 1
    CLOSING = 2


class LedgerState(enum.IntEnum):
    """Of a row in `ledgers`. Numbers are part of the format."""

    OPEN = 1
    SEALED = 2


class LedgerKind(enum.IntEnum):
    """What a ledger holds. Numbers are part of the format."""

    NAMED = 1
    UNNAMED = 2
    EXPIRING = 3


TABLES: Final[dict[str, str]] = {
    "homes": "CREATE TABLE IF NOT EXISTS homes (bucket_id BIGINT PRIMARY KEY)",
    "open_buckets": "CREATE TABLE IF NOT EXISTS open_buckets (bucket_id BIGINT PRIMARY KEY)",
    "buckets": """CREATE TABLE IF NOT EXISTS buckets (
        name VARCHAR PRIMARY KEY, bucket_id BIGINT NOT NULL, state INT NOT NULL,
        tablespace VARCHAR NOT NULL, settings BLOB NOT NULL, created_ms BIGINT NOT NULL)""",
    "deleted_buckets": """CREATE TABLE IF NOT EXISTS deleted_buckets (
        bucket_id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, tablespace VARCHAR NOT NULL,
        settings BLOB NOT NULL, created_ms BIGINT NOT NULL, deleted_ms BIGINT NOT NULL)""",
    "ledgers": """CREATE TABLE IF NOT EXISTS ledgers (
        ledger_id BIGINT PRIMARY KEY, bucket_id BIGINT NOT NULL, state INT NOT NULL,
        kind INT NOT NULL, created_ms BIGINT NOT NULL, sealed_ms BIGINT, stored_bytes BIGINT,
        newest_expiry_ms BIGINT,
        CONSTRAINT ledgers_home FOREIGN KEY (bucket_id) REFERENCES homes (bucket_id))""",
    "dying": """CREATE TABLE IF NOT EXISTS dying (
        ledger_id BIGINT PRIMARY KEY, bucket_id BIGINT NOT NULL, since_ms BIGINT NOT NULL)""",
    "objects": """CREATE TABLE IF NOT EXISTS objects (
        bucket_id BIGINT NOT NULL, name VARCHAR NOT NULL, object_id BLOB NOT NULL,
        length BIGINT NOT NULL, etag VARCHAR NOT NULL, content_type VARCHAR NOT NULL,
        metadata BLOB NOT NULL, created_ms BIGINT NOT NULL, expires_ms BIGINT,
        PRIMARY KEY (bucket_id, name),
        CONSTRAINT objects_open FOREIGN KEY (bucket_id) REFERENCES open_buckets (bucket_id))""",
    "expiries": """CREATE TABLE IF NOT EXISTS expiries (
        bucket_id BIGINT NOT NULL, expires_ms BIGINT NOT NULL, name VARCHAR NOT NULL,
        PRIMARY KEY (bucket_id, expires_ms, name))""",
    "refs": """CREATE TABLE IF NOT EXISTS refs (
        ledger_id BIGINT NOT NULL, bucket_id BIGINT NOT NULL, owner VARCHAR NOT NULL,
        part BIGINT NOT NULL, object_id BLOB NOT NULL, stored_bytes BIGINT NOT NULL,
        PRIMARY KEY (ledger_id, bucket_id, owner, part),
        CONSTRAINT refs_ledger FOREIGN KEY (ledger_id) REFERENCES ledgers (ledger_id))""",
    "uploads": """CREATE TABLE IF NOT EXISTS uploads (
        bucket_id BIGINT NOT NULL, upload_id VARCHAR NOT NULL, name VARCHAR NOT NULL,
        content_type VARCHAR NOT NULL, metadata BLOB NOT NULL, created_ms BIGINT NOT NULL,
        expires_ms BIGINT NOT NULL, object_expires_ms BIGINT, revision BIGINT NOT NULL,
        PRIMARY KEY (bucket_id, upload_id),
        CONSTRAINT uploads_home FOREIGN KEY (bucket_id) REFERENCES homes (bucket_id))""",
    "upload_parts": """CREATE TABLE IF NOT EXISTS upload_parts (
        upload_id VARCHAR NOT NULL, number BIGINT NOT NULL, object_id BLOB NOT NULL,
        length BIGINT NOT NULL, etag VARCHAR NOT NULL, PRIMARY KEY (upload_id, number))""",
    "counts": """CREATE TABLE IF NOT EXISTS counts (
        bucket_id BIGINT NOT NULL, number INT NOT NULL, objects BIGINT NOT NULL,
        size_bytes BIGINT NOT NULL, objects_max BIGINT, bytes_max BIGINT,
        PRIMARY KEY (bucket_id, number),
        CONSTRAINT counts_home FOREIGN KEY (bucket_id) REFERENCES homes (bucket_id))""",
    "pool_tablespaces": """CREATE TABLE IF NOT EXISTS pool_tablespaces (
        tablespace VARCHAR PRIMARY KEY, number BIGINT NOT NULL, buckets BIGINT NOT NULL,
        objects BIGINT NOT NULL, size_bytes BIGINT NOT NULL, measured_ms BIGINT NOT NULL)""",
    "pool_limits": """CREATE TABLE IF NOT EXISTS pool_limits (
        name VARCHAR PRIMARY KEY, most BIGINT NOT NULL)""",
    "moves": """CREATE TABLE IF NOT EXISTS moves (
        bucket_id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, source VARCHAR NOT NULL,
        target VARCHAR NOT NULL, phase INT NOT NULL, claim BIGINT NOT NULL, beat BIGINT NOT NULL,
        former VARCHAR NOT NULL)""",
    "moving_buckets": """CREATE TABLE IF NOT EXISTS moving_buckets (
        bucket_id BIGINT PRIMARY KEY, claim BIGINT NOT NULL, lives_here INT NOT NULL)""",
}
"""How each table is made; parents come before their children."""

LATER: Final = frozenset({"counts", "pool_tablespaces", "pool_limits", "moves", "moving_buckets"})
"""Tables that older versions did not make: who may only read does without them."""

INDEXES: Final[dict[str, str]] = {
    "ledgers": "CREATE INDEX IF NOT EXISTS ledgers_by_bucket ON ledgers (bucket_id)",
    "dying": "CREATE INDEX IF NOT EXISTS dying_by_bucket ON dying (bucket_id)",
}
"""By table; made right after it, so that whoever finds all tables finds them, too."""

OBJECT_COLUMNS: Final = (
    *("bucket_id", "name", "object_id", "length", "etag", "content_type", "metadata"),
    *("created_ms", "expires_ms"),
)
REF_COLUMNS: Final = ("ledger_id", "bucket_id", "owner", "part", "object_id", "stored_bytes")
"""The columns of the tables that every put writes to, as they were made."""

PRIMARY: Final[dict[str, tuple[str, ...]]] = {
    "homes": ("bucket_id",),
    "open_buckets": ("bucket_id",),
    "buckets": ("name",),
    "deleted_buckets": ("bucket_id",),
    "ledgers": ("ledger_id",),
    "dying": ("ledger_id",),
    "objects": ("bucket_id", "name"),
    "expiries": ("bucket_id", "expires_ms", "name"),
    "refs": ("ledger_id", "bucket_id", "owner", "part"),
    "uploads": ("bucket_id", "upload_id"),
    "upload_parts": ("upload_id", "number"),
    "counts": ("bucket_id", "number"),
    "pool_tablespaces": ("tablespace",),
    "pool_limits": ("name",),
    "moves": ("bucket_id",),
    "moving_buckets": ("bucket_id",),
}
"""The columns of each table's primary key."""


class ObjectInfo(msgspec.Struct, frozen=True, gc=False):
    """What is known of one version of a named object. Times in milliseconds of the wall clock.

    `etag` names the version: overwriting, appending and copying make another, renaming does not.
    """

    name: str
    length: int
    etag: str
    content_type: str
    created_ms: int
    expires_ms: int | None
    packed_id: bytes
    packed_metadata: bytes = b""

    @property
    def object_id(self) -> ObjectId:
        """Where the bytes lie."""
        return ObjectId.from_bytes(self.packed_id)

    @property
    def metadata(self) -> dict[str, str]:
        """What the user keeps with the object."""
        return unpacked_metadata(self.packed_metadata)


class BucketInfo(msgspec.Struct, frozen=True):
    """What is known of a bucket."""

    name: str
    bucket_id: int
    tablespace: str
    settings: BucketSettings
    created_ms: int


class PartInfo(msgspec.Struct, frozen=True):
    """One part of an upload that is not completed; `checksum` is the CRC32C of its bytes."""

    number: int
    length: int
    etag: str
    checksum: int = 0


class UploadInfo(msgspec.Struct, frozen=True):
    """An upload in parts that is not completed. Times in milliseconds of the wall clock."""

    upload_id: str
    name: str
    created_ms: int
    expires_ms: int
    content_type: str = ""
    packed_metadata: bytes = b""

    @property
    def metadata(self) -> dict[str, str]:
        """What the user keeps with the object."""
        return unpacked_metadata(self.packed_metadata)


class Usage(msgspec.Struct, frozen=True):
    """What a bucket holds: named objects and their bytes, its ledgers and the bytes in them."""

    objects: int
    bytes: int
    ledgers: int
    stored_bytes: int


def object_info(row: Mapping[str, Any]) -> ObjectInfo:
    """What a row of `objects` says."""
    return ObjectInfo(
        row["name"],
        row["length"],
        row["etag"],
        row["content_type"],
        row["created_ms"],
        row["expires_ms"],
        row["object_id"],
        row["metadata"],
    )


def object_row(bucket_id: int, info: ObjectInfo) -> Row:
    """The row of `objects` that says so."""
    return {
        "bucket_id": bucket_id,
        "name": info.name,
        "object_id": info.packed_id,
        "length": info.length,
        "etag": info.etag,
        "content_type": info.content_type,
        "metadata": info.packed_metadata,
        "created_ms": info.created_ms,
        "expires_ms": info.expires_ms,
    }


def ref_row(bucket_id: int, owner: str, number: int, part: ObjectId, packed: bytes) -> Row:
    """The row of `refs` that holds a part, which is `packed`."""
    return {
        "ledger_id": part.ledger_id,
        "bucket_id": bucket_id,
        "owner": owner,
        "part": number,
        "object_id": packed,
        "stored_bytes": part.stored_bytes,
    }


def upload_row(bucket_id: int, upload_id: str, name: str, created_ms: int, expires_ms: int) -> Row:
    """A row of `uploads`, of an object without properties."""
    return {
        "bucket_id": bucket_id,
        "upload_id": upload_id,
        "name": name,
        "content_type": "",
        "metadata": b"",
        "created_ms": created_ms,
        "expires_ms": expires_ms,
        "object_expires_ms": None,
        "revision": 0,
    }


def holds_a_stream(upload: Mapping[str, Any]) -> bool:
    """Whether a row of `uploads` only holds the parts of a stream: no user knows of it.

    Its revision falls with each part; those of others rise.
    """
    return bool(upload["revision"] < 0)


def upload_owner(upload_id: str) -> str:
    """Who holds the parts of an upload."""
    return f"m:{upload_id}"


def bucket_info(row: Mapping[str, Any]) -> BucketInfo:
    """What a row of `buckets` says. Raises `msgspec.ValidationError` for settings unknown here."""
    name, bucket_id, tablespace = row["name"], row["bucket_id"], row["tablespace"]
    settings = msgspec.json.decode(row["settings"], type=BucketSettings)
    if settings.tablespace is not None and is_of_pool(settings.tablespace):
        settings = msgspec.structs.replace(settings, tablespace=None)
    elif settings.tablespace is None and is_own(tablespace, name, bucket_id):
        settings = msgspec.structs.replace(settings, own_tablespace=True)
    return BucketInfo(name, bucket_id, tablespace, settings, row["created_ms"])


def packed_settings(settings: BucketSettings, tablespace: str) -> bytes:
    """Settings of a bucket in a tablespace, as its row keeps them.

    One of the pool is written down as if somebody had named it, for versions that know of no pool
    drop every other tablespace with its bucket. That a tablespace is a bucket's own its name tells.
    """
    kept = msgspec.structs.asdict(settings)
    del kept["own_tablespace"]
    if is_of_pool(tablespace):
        kept["tablespace"] = tablespace
    return msgspec.json.encode(kept)


def is_own(tablespace: str, bucket: str, bucket_id: int) -> bool:
    """Whether a tablespace was made for this bucket alone."""
    return tablespace == tablespace_name(bucket, bucket_id)


def unpacked_metadata(packed: bytes) -> dict[str, str]:
    """What `naming.packed_metadata` packed."""
    return msgspec.msgpack.decode(packed, type=dict[str, str]) if packed else {}


def moving_key(bucket_id: int) -> RowKey:
    """The key of the row that says whether a bucket lives in a tablespace."""
    return "moving_buckets", (bucket_id,)


def lives_here(moving: Mapping[str, Any] | None) -> bool:
    """Whether it does, by that row: most buckets were never moved, and have none."""
    return moving is None or bool(moving["lives_here"])


def key_of(table: str, row: Mapping[str, Any]) -> RowKey:
    """The key of a row."""
    return table, tuple([row[column] for column in PRIMARY[table]])

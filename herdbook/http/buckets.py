"""`/api/v1/buckets`: buckets, and the names in them. Bytes are the business of `objects.py`."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from blobit.settings import BucketSettings
from blobit.tables import BucketInfo, ObjectInfo
from broker.http.routes import Told
from broker.http.shapes import Changed
from herdbook.http.house import House
from herdbook.http.naming import buckets_of
from herdbook.http.routes import KNOWN, Ask, Need, Route

_Count = Annotated[int, Meta(ge=1)] | None


class BucketFacts(msgspec.Struct):
    """A bucket. What is null is the store's choice."""

    name: str
    created_ms: int
    tablespace: str
    ensemble: int | None
    write_quorum: int | None
    ack_quorum: int | None
    ttl_ms: int | None
    compression: str


class BucketList(msgspec.Struct):
    """Buckets by name."""

    buckets: list[BucketFacts]


class BucketShape(msgspec.Struct, forbid_unknown_fields=True):
    """A bucket to make. What is not said is the store's choice; none of it changes later."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    ensemble: _Count = None
    write_quorum: _Count = None
    ack_quorum: _Count = None
    ttl_ms: _Count = None
    compression: str = ""
    own_tablespace: bool = False


class DropQuery(msgspec.Struct):
    """`force` deletes the objects that it holds, too."""

    force: bool = False


class ObjectFacts(msgspec.Struct):
    """An object. `etag` names this version of it; times are milliseconds since 1970."""

    name: str
    size: int
    etag: str
    content_type: str
    created_ms: int
    expires_ms: int | None


class ObjectsQuery(msgspec.Struct):
    """Objects whose names begin with `prefix`, folded at `delimiter`; `after` goes on."""

    prefix: str = ""
    delimiter: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class ObjectPage(msgspec.Struct):
    """A page of objects, and of beginnings that names behind the delimiter have in common.

    `after` goes on where the page ended, null at the end.
    """

    objects: list[ObjectFacts]
    prefixes: list[str]
    after: str | None


def object_facts(info: ObjectInfo) -> ObjectFacts:
    """What is told of an object."""
    return ObjectFacts(
        info.name, info.length, info.etag, info.content_type, info.created_ms, info.expires_ms
    )


def _bucket_facts(info: BucketInfo) -> BucketFacts:
    kept = info.settings
    return BucketFacts(
        info.name,
        info.created_ms,
        info.tablespace,
        kept.ensemble,
        kept.write_quorum,
        kept.ack_quorum,
        kept.ttl_ms,
        kept.compression,
    )


async def list_buckets(house: House, ask: Ask) -> Told:
    """Those that the caller may read."""
    return Told(BucketList([_bucket_facts(each) for each in await buckets_of(house, ask.who)]))


async def create_bucket(house: House, ask: Ask) -> Told:
    """Make one."""
    told: BucketShape = ask.body
    settings = BucketSettings(
        ensemble=told.ensemble,
        write_quorum=told.write_quorum,
        ack_quorum=told.ack_quorum,
        ttl_ms=told.ttl_ms,
        compression=told.compression,
        own_tablespace=told.own_tablespace,
    )
    made = await house.blobs.create_bucket(told.name, settings)
    return Told(_bucket_facts(made.core.info), 201)


async def delete_bucket(house: House, ask: Ask) -> Told:
    """Remove one."""
    await house.blobs.delete_bucket(ask.path["bucket"], force=ask.query.force)
    return Told(Changed(True))


async def list_objects(house: House, ask: Ask) -> Told:
    """A page of names."""
    bucket = await house.blobs.bucket(ask.path["bucket"])
    query: ObjectsQuery = ask.query
    page = await bucket.list(
        query.prefix, delimiter=query.delimiter, token=query.after, limit=query.limit
    )
    told = [object_facts(each) for each in page.objects]
    return Told(ObjectPage(told, page.prefixes, page.token or None))


READ: Final = Need("bucket", "read", "bucket")
WRITE: Final = Need("bucket", "write", "bucket")
RULE: Final = Need("bucket", "admin", "bucket")
ROUTES: Final = (
    Route(
        "GET", "/buckets", "list_buckets", "List buckets.", KNOWN, list_buckets, reply=BucketList
    ),
    Route(
        "POST",
        "/buckets",
        "create_bucket",
        "Make a bucket.",
        Need("bucket", "admin", "body.name"),
        create_bucket,
        body=BucketShape,
        reply=BucketFacts,
        status=201,
        other_statuses=(400, 409),
    ),
    Route(
        "DELETE",
        "/buckets/{bucket}",
        "delete_bucket",
        "Remove a bucket.",
        RULE,
        delete_bucket,
        DropQuery,
        reply=Changed,
        other_statuses=(400, 404, 409),
    ),
    Route(
        "GET",
        "/buckets/{bucket}/objects",
        "list_objects",
        "List objects by name.",
        READ,
        list_objects,
        ObjectsQuery,
        reply=ObjectPage,
        other_statuses=(400, 404),
    ),
)

"""`/api/v1/buckets/{bucket}/quota`: what a bucket holds, and what it may hold."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from blobit.counting import BucketUse
from blobit.errors import NoSuchBucket
from broker.http.routes import Told
from herdbook.http.buckets import READ, RULE
from herdbook.http.house import House
from herdbook.http.naming import buckets_of
from herdbook.http.routes import KNOWN, Ask, Route

_Quota = Annotated[int, Meta(ge=0, le=2**53)] | None


class UseFacts(msgspec.Struct):
    """The named objects of a bucket and their bytes, and what these may be; 0: no limit."""

    bucket: str
    objects: int
    bytes: int
    quota_objects: int
    quota_bytes: int


class UseList(msgspec.Struct):
    """What buckets hold, by name."""

    buckets: list[UseFacts]


class QuotaShape(msgspec.Struct, forbid_unknown_fields=True):
    """What a bucket may hold. 0 takes a limit away; what is null or not said stays as it is."""

    quota_objects: _Quota = None
    quota_bytes: _Quota = None


def _facts(bucket: str, use: BucketUse) -> UseFacts:
    return UseFacts(bucket, use.objects, use.bytes, use.quota_objects, use.quota_bytes)


async def list_use(house: House, ask: Ask) -> Told:
    """Of the buckets that the caller may read."""
    found = list[UseFacts]()
    for info in await buckets_of(house, ask.who):
        try:
            found.append(_facts(info.name, await house.blobs.use(info.name)))
        except NoSuchBucket:
            # It was deleted since the list was read.
            continue
    return Told(UseList(found))


async def get_quota(house: House, ask: Ask) -> Told:
    """Of one bucket."""
    name = ask.path["bucket"]
    return Told(_facts(name, await house.blobs.use(name)))


async def set_quota(house: House, ask: Ask) -> Told:
    """Change it."""
    name, told = ask.path["bucket"], ask.body
    use = await house.blobs.set_quota(
        name, quota_objects=told.quota_objects, quota_bytes=told.quota_bytes
    )
    return Told(_facts(name, use))


_PATH: Final = "/buckets/{bucket}/quota"
ROUTES: Final = (
    Route(
        "GET",
        "/quotas",
        "list_use",
        "List what buckets hold and may hold.",
        KNOWN,
        list_use,
        reply=UseList,
    ),
    Route(
        "GET",
        _PATH,
        "get_quota",
        "What a bucket holds and may hold.",
        READ,
        get_quota,
        reply=UseFacts,
        other_statuses=(400, 404),
    ),
    Route(
        "PUT",
        _PATH,
        "set_quota",
        "Say what a bucket may hold.",
        RULE,
        set_quota,
        body=QuotaShape,
        reply=UseFacts,
        other_statuses=(400, 404),
    ),
)

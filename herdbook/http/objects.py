"""`/api/v1/buckets/{bucket}/objects/{name}`: the bytes of objects, in and out.

Invariants:
- Memory is flat: an object passes through in pieces, however large it is, and there is room for
  what comes in before it is read.
- A body that is cut off, late or too long leaves nothing behind that anybody could see.
- What clients take out of a path is no name here: a request for an object never reaches its bucket.
- All bytes of a reply are of the one version that its ETag names.
- A browser never takes an object for a page: it is an attachment, of the type that was put and no
  other one, and in a sandbox should it be opened all the same.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from email.utils import formatdate
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from blobit.bucket import AsyncBucket
from blobit.errors import BlobError, InvalidName, NoSuchObject
from blobit.settings import BlobSettings
from blobit.tables import ObjectInfo
from broker.http.front import json_reply, user_of
from broker.http.routes import Told
from broker.http.shapes import Changed
from engine.errors import EngineError
from herdbook.http.buckets import READ, WRITE, ObjectFacts, object_facts
from herdbook.http.errors import HttpError
from herdbook.http.house import House
from herdbook.http.login import gate_of
from herdbook.http.ranges import Slice, etags_of, parse_range
from herdbook.http.routes import Ask, Route
from herdbook.http.transfers import SMALL_BYTES_MAX, Room, Transfers, too_long

METADATA: Final = "X-Herdbook-Metadata"
_METADATA_CHARACTERS_MAX: Final = 8_192
_POLICY: Final = "sandbox; default-src 'none'"
_BATCH_BYTES: Final = BlobSettings().batch_bytes
_BYTES: Final = "application/octet-stream"
_logger: Final = logging.getLogger(__name__)


class PutQuery(msgspec.Struct):
    """`expires_ms` is a moment of the wall clock, null for what the bucket says."""

    expires_ms: Annotated[int, Meta(ge=1, le=2**53)] | None = None


def _named(ask: Ask) -> str:
    """The object's name. Raises `InvalidName` for one that other clients can write in no path."""
    name: str = ask.path["name"]
    if name in (".", ".."):
        raise InvalidName(f"{name!r} cannot be reached over HTTP: clients take it out of the path")
    return name


# Out


async def get_object(house: House, ask: Ask) -> Response:
    """An object, or a range of it."""
    request = ask.request
    bucket = await house.blobs.bucket(ask.path["bucket"])
    info = await bucket.stat(_named(ask))
    headers = _headers(info)
    if not _is_wanted(request, info):
        raise HttpError(412, "condition_failed", "the object is not the one of If-Match")
    if _is_known(request, info):
        return Response(status_code=304, headers=headers)
    try:
        asked = _range(request, info)
    except HttpError as error:
        reply = error.reply
        reply.headers["Content-Range"] = f"bytes */{info.length}"
        return reply
    part = asked or Slice(0, info.length)
    headers["Content-Length"] = str(part.length)
    if asked is not None:
        last = part.offset + part.length - 1
        headers["Content-Range"] = f"bytes {part.offset}-{last}/{info.length}"
    status = 200 if asked is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    transfers = gate_of(request).transfers
    return Outgoing(bucket, info, part, transfers, status, headers)


class Outgoing(StreamingResponse):
    """The bytes of one version, as they are read."""

    def __init__(
        self,
        bucket: AsyncBucket,
        info: ObjectInfo,
        part: Slice,
        transfers: Transfers,
        status: int,
        headers: dict[str, str],
    ) -> None:
        self._pieces = bucket.stream_version(info, part.offset, part.length)
        self._transfers = transfers
        self._length = part.length
        super().__init__(self._read(), status, headers)

    async def _read(self) -> AsyncIterator[bytes]:
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                yield piece

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. A reply that breaks off ends its connection: no client takes it for all."""
        try:
            with self._transfers.one(user_of(scope)):
                async with asyncio.timeout(self._transfers.time_s(self._length)):
                    await super().__call__(scope, receive, send)
        except HttpError as error:
            await self._pieces.aclose()
            await error.reply(scope, receive, send)
        except (BlobError, EngineError, TimeoutError, OSError, ClientDisconnect) as error:
            _logger.warning("an object broke off on its way out: %s", str(error) or "too slow")


def _headers(info: ObjectInfo) -> dict[str, str]:
    name = info.name.rpartition("/")[2] or "object"
    plain = "".join(c if (c.isalnum() and c.isascii()) or c in "-_. " else "_" for c in name)
    shown = quote(name, safe="")
    headers = {
        "ETag": f'"{info.etag}"',
        "Content-Type": _type_of(info),
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{shown}",
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Last-Modified": formatdate(info.created_ms / 1000, usegmt=True),
    }
    if info.packed_metadata:
        told = json.dumps(info.metadata, separators=(",", ":"))
        if len(told) <= _METADATA_CHARACTERS_MAX:
            headers[METADATA] = told
    return headers


def _type_of(info: ObjectInfo) -> str:
    """What it is said to be, unless that is from before types were looked at and is no header."""
    said = info.content_type
    return said if said and said.isascii() and said.isprintable() else _BYTES


def _is_wanted(request: Request, info: ObjectInfo) -> bool:
    header = request.headers.get("if-match")
    etags = None if header is None else etags_of(header)
    return etags is None or info.etag in etags


def _is_known(request: Request, info: ObjectInfo) -> bool:
    header = request.headers.get("if-none-match")
    if header is None:
        return False
    etags = etags_of(header)
    return etags is None or info.etag in etags


def _range(request: Request, info: ObjectInfo) -> Slice | None:
    header = request.headers.get("range")
    only = request.headers.get("if-range")
    if header is None or (only is not None and only.strip() != f'"{info.etag}"'):
        return None
    return parse_range(header, info.length)


# In


async def put_object(house: House, ask: Ask) -> Response:
    """Store an object, in place of the one that has its name."""
    request, name = ask.request, _named(ask)
    transfers = gate_of(request).transfers
    user = user_of(request.scope)
    with transfers.one(user):
        bucket = await house.blobs.bucket(ask.path["bucket"])
        options: dict[str, Any] = await _conditions(request, bucket, name)
        options["content_type"] = request.headers.get("content-type", "")
        options["metadata"] = _metadata(request)
        options["expires_ms"] = ask.query.expires_ms
        length = _announced(request)
        if length is not None and length > transfers.settings.object_bytes_max:
            raise too_long(transfers.settings)
        if length is not None:
            await bucket.check_room(name, length)
        held = SMALL_BYTES_MAX if length is None else min(length, SMALL_BYTES_MAX)
        async with transfers.room(held, user) as room:
            info = await _taken(request, transfers, room, bucket, name, options)
    return json_reply(object_facts(info), 201, {"ETag": f'"{info.etag}"'})


def _announced(request: Request) -> int | None:
    """How long a body says that it is."""
    header = request.headers.get("content-length", "")
    return int(header) if header.isdecimal() else None


async def _taken(
    request: Request,
    transfers: Transfers,
    room: Room,
    bucket: AsyncBucket,
    name: str,
    options: dict[str, Any],
) -> ObjectInfo:
    """Take a body in: small ones at once, so that they share ledgers, others piece by piece."""
    first: list[bytes] = []
    size = 0
    async with aclosing(transfers.incoming(request)) as pieces:
        async for piece in pieces:
            first.append(piece)
            size += len(piece)
            if size > SMALL_BYTES_MAX:
                break
        whole = b"".join(first)
        first.clear()
        if size <= SMALL_BYTES_MAX:
            return await bucket.put(name, whole, **options)
        upload = bucket.upload(name, **options)
        try:
            await upload.write(whole)
            del whole
            # What it holds from here on are pieces that do not make a batch yet.
            room.shrink(_BATCH_BYTES)
            async for piece in pieces:
                await upload.write(piece)
            return await upload.finish()
        except BaseException:
            await upload.abort()
            raise


async def _conditions(request: Request, bucket: AsyncBucket, name: str) -> dict[str, Any]:
    """What must hold for a put or a delete; looked at before a byte is read, and at its end."""
    wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
    told: dict[str, Any] = {}
    if unwanted is not None:
        if etags_of(unwanted) is not None:
            raise HttpError(400, "invalid_condition", 'If-None-Match of a change is "*"')
        told["if_absent"] = True
        if await bucket.exists(name):
            raise HttpError(412, "object_exists", f"there is an object {name!r} already")
    if wanted is not None:
        told["if_match"] = await _matched(bucket, name, etags_of(wanted))
    return told


async def _matched(bucket: AsyncBucket, name: str, etags: list[str] | None) -> str:
    """The etag of the object that is there, which is one of those wanted."""
    try:
        etag = (await bucket.stat(name)).etag
    except NoSuchObject as error:
        raise HttpError(412, "condition_failed", str(error)) from error
    if etags is not None and etag not in etags:
        raise HttpError(
            412,
            "condition_failed",
            f"object {name!r} is not the one of If-Match any more",
            remedy="read it again",
        )
    return etag


def _metadata(request: Request) -> dict[str, str] | None:
    header = request.headers.get(METADATA.lower())
    if header is None:
        return None
    try:
        return msgspec.json.decode(header.encode("latin-1"), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HttpError(
            400, "invalid_metadata", f"{METADATA} is a JSON object of texts: {error}"
        ) from error


async def delete_object(house: House, ask: Ask) -> Told:
    """Remove an object."""
    name = _named(ask)
    bucket = await house.blobs.bucket(ask.path["bucket"])
    told = await _conditions(ask.request, bucket, name)
    if told.pop("if_absent", False):
        raise HttpError(400, "invalid_condition", "a delete takes If-Match alone")
    if not await bucket.delete(name, **told):
        raise HttpError(404, "no_such_object", f"there is no object {name!r}")
    return Told(Changed(True))


_PATH: Final = "/buckets/{bucket}/objects/{name}"
ROUTES: Final = (
    Route(
        "GET",
        _PATH,
        "get_object",
        "The bytes of an object, or a range of them; HEAD tells the same without them.",
        READ,
        get_object,
        reply=bytes,
        other_statuses=(206, 304, 400, 404, 412, 416),
        headers=("Range", "If-Range", "If-Match", "If-None-Match"),
    ),
    Route(
        "PUT",
        _PATH,
        "put_object",
        "Store an object.",
        WRITE,
        put_object,
        PutQuery,
        body=bytes,
        body_optional=True,
        reply=ObjectFacts,
        status=201,
        other_statuses=(400, 404, 408, 412, 413, 504, 507),
        headers=("If-Match", "If-None-Match", METADATA),
    ),
    Route(
        "DELETE",
        _PATH,
        "delete_object",
        "Remove an object.",
        WRITE,
        delete_object,
        reply=Changed,
        other_statuses=(400, 404, 412),
        headers=("If-Match",),
    ),
)

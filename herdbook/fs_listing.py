"""What the file system `blobit://` sees: objects as files, shared beginnings of names as folders.

Invariants:
- A name that ends with a slash is no file: it marks a folder that may be empty.
- Entries are in the order of their names.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from blobit import AsyncBlobs, ObjectInfo
from blobit.errors import (
    BlobNotFound,
    BucketExists,
    BucketNotEmpty,
    InvalidName,
    NoSuchBucket,
    NoSuchObject,
    ObjectExists,
    QuotaExceeded,
)
from blobit.file import ObjectVersion
from herdbook.blob_store import parse_address

Entry = dict[str, Any]
LISTED_AT_ONCE: Final = 1_000


@contextmanager
def as_of_files() -> Iterator[None]:
    """Errors that files have, too, come as those; the store's own stand in `__cause__`."""
    try:
        yield
    except (NoSuchBucket, NoSuchObject, BlobNotFound) as error:
        raise FileNotFoundError(errno.ENOENT, str(error)) from error
    except (BucketExists, ObjectExists) as error:
        raise FileExistsError(errno.EEXIST, str(error)) from error
    except InvalidName as error:
        raise OSError(errno.EINVAL, str(error)) from error
    except QuotaExceeded as error:
        raise OSError(errno.EDQUOT, str(error)) from error
    except BucketNotEmpty as error:
        raise OSError(errno.ENOTEMPTY, str(error)) from error


def _file(bucket: str, info: ObjectInfo) -> Entry:
    created = datetime.fromtimestamp(info.created_ms / 1000, UTC)
    return {
        "name": f"{bucket}/{info.name}",
        "size": info.length,
        "type": "file",
        "etag": info.etag,
        "content_type": info.content_type,
        "metadata": dict(info.metadata),
        "created": created,
        "mtime": info.created_ms / 1000,
        "expires_ms": info.expires_ms,
    }


def _folder(path: str) -> Entry:
    return {"name": path, "size": 0, "type": "directory"}


async def _pages(bucket: Any, prefix: str, delimiter: str, limit: int) -> AsyncIterator[Any]:
    token = ""
    while True:
        page = await bucket.list(prefix, delimiter=delimiter, token=token, limit=limit)
        yield page
        token = page.token
        if not token:
            return


async def listed(blobs: AsyncBlobs, path: str) -> list[Entry]:
    """A folder's entries, or the object of that name."""
    address = parse_address(path)
    if not address.bucket:
        return [_folder(info.name) for info in await blobs.buckets()]
    bucket = await blobs.bucket(address.bucket)
    prefix = f"{address.name}/" if address.name else ""
    entries: list[Entry] = []
    marked = not prefix
    async for page in _pages(bucket, prefix, "/", LISTED_AT_ONCE):
        for info in page.objects:
            # An object whose name is the folder's marks one that is empty.
            if info.name == prefix:
                marked = True
            else:
                entries.append(_file(address.bucket, info))
        entries += [_folder(f"{address.bucket}/{below[:-1]}") for below in page.prefixes]
    if not entries and not marked:
        entries = [_file(address.bucket, await bucket.stat(address.name))]
    return sorted(entries, key=lambda entry: str(entry["name"]))


async def info_of(blobs: AsyncBlobs, path: str) -> Entry:
    """What is known of an object, a folder or a bucket. Raises `NoSuchObject`."""
    address = parse_address(path)
    if not address.bucket:
        return _folder("")
    bucket = await blobs.bucket(address.bucket)
    if not address.name:
        return _folder(path)
    try:
        return _file(address.bucket, await bucket.stat(address.name))
    except NoSuchObject:
        below = await bucket.list(f"{address.name}/", limit=1)
        if not below.objects:
            raise
    return _folder(path)


async def found_below(blobs: AsyncBlobs, path: str, withdirs: bool) -> dict[str, Entry]:
    """All objects below a folder in one scan; with the folders that their names imply."""
    address = parse_address(path)
    bucket = await blobs.bucket(address.bucket)
    prefix = f"{address.name}/" if address.name else ""
    files: dict[str, Entry] = {}
    folders: set[str] = set()
    async for info in bucket.scan(prefix):
        parts = info.name[len(prefix) :].split("/")[:-1]
        if withdirs:
            folders |= {prefix + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
            folders.add(address.name)
        if not info.name.endswith("/"):
            files[f"{address.bucket}/{info.name}"] = _file(address.bucket, info)
    found = {f"{address.bucket}/{name}".rstrip("/"): name for name in folders}
    entries = files | {name: _folder(name) for name in found if name not in files}
    if not entries and address.name:
        try:
            entries[path] = _file(address.bucket, await bucket.stat(address.name))
        except NoSuchObject:
            return {}
    return dict(sorted(entries.items()))


async def remove(blobs: AsyncBlobs, paths: list[str], recursive: bool) -> None:
    """Delete objects; with `recursive` whole buckets, too. Raises `FileNotFoundError`."""
    names: dict[str, list[str]] = {}
    buckets = []
    for path in paths:
        address = parse_address(path)
        if not address.name:
            if not recursive:
                await blobs.bucket(address.bucket)
                raise IsADirectoryError(errno.EISDIR, "a bucket goes with recursive=True", path)
            buckets.append(address.bucket)
            continue
        # A folder that was empty has an object that marks it.
        both = [address.name, f"{address.name}/"] if recursive else [address.name]
        names.setdefault(address.bucket, []).extend(both)
    for name in buckets:
        names.pop(name, None)
        await blobs.delete_bucket(name, force=True)
    missing = []
    for name, several in names.items():
        bucket = await blobs.bucket(name)
        if recursive:
            await bucket.delete_many(several)
            continue
        for start in range(0, len(several), LISTED_AT_ONCE):
            some = several[start : start + LISTED_AT_ONCE]
            deleted = await asyncio.gather(*map(bucket.delete, some))
            missing += [f"{name}/{one}" for one, was in zip(some, deleted, strict=True) if not was]
    if missing:
        raise FileNotFoundError(errno.ENOENT, "no such object", missing[0])


Slice = tuple[str, int | None, int | None]
"""A path, and the first byte and the one behind the last, as Python's slices have them."""


async def read_slice(blobs: AsyncBlobs, wanted: Slice) -> bytes:
    """Some bytes of an object, of one version. Raises `NoSuchObject`, `ObjectChanged`."""
    path, start, end = wanted
    if start is None and end is None:
        address = parse_address(path)
        return await (await blobs.bucket(address.bucket)).get(address.name)
    return await _cut(await _version(blobs, path), start, end)


async def read_slices(blobs: AsyncBlobs, wanted: list[Slice], at_once: int) -> list[Any]:
    """Many slices, or what kept each from being read; those of one path are of one version."""
    turns = asyncio.Semaphore(at_once)
    looks: dict[str, asyncio.Task[ObjectVersion]] = {}

    async def one(path: str, start: int | None, end: int | None) -> bytes:
        async with turns:
            with as_of_files():
                if path not in looks:
                    looks[path] = asyncio.ensure_future(_version(blobs, path))
                return await _cut(await asyncio.shield(looks[path]), start, end)

    try:
        reads = [one(*each) for each in wanted]
        return await asyncio.gather(*reads, return_exceptions=True)
    finally:
        await asyncio.gather(*looks.values(), return_exceptions=True)


async def _version(blobs: AsyncBlobs, path: str) -> ObjectVersion:
    address = parse_address(path)
    bucket = await blobs.bucket(address.bucket)
    return ObjectVersion(blobs, bucket, await bucket.stat(address.name))


async def _cut(version: ObjectVersion, start: int | None, end: int | None) -> bytes:
    low, high, _ = slice(start, end).indices(version.info.length)
    return await version.read(low, high - low) if low < high else b""

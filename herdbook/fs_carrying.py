"""Copying and moving many objects of `blobit://` by one call.

Invariants:
- A target that is itself still to be carried ends the call before anything was changed: what comes
  of it would depend on the order.
- A move deletes a source only when its target has the bytes, and only the version it copied; what
  is moved to where it is already stays.
"""

import asyncio
import errno
from typing import Final

from blobit import AsyncBlobs, NoSuchBucket, NoSuchObject
from herdbook.blob_store import parse_address, remove_source
from herdbook.fs_listing import as_of_files

CARRIED_AT_ONCE: Final = 16
Pair = tuple[str, str]
"""Two paths: from and to."""


def check_apart(pairs: list[Pair]) -> None:
    """Raise `OSError` where one object would take the place of another that is carried, too."""
    sources = {source for source, _ in pairs}
    for source, target in pairs:
        if target in sources and target != source:
            raise OSError(
                errno.EINVAL, f"{source} would take the place of {target}, which is carried, too"
            )
    if len({target for _, target in pairs}) < len(pairs):
        raise OSError(errno.EINVAL, "several objects would get one name")


async def carry(
    blobs: AsyncBlobs, pairs: list[Pair], *, moving: bool, skip_missing: bool = False
) -> None:
    """Copy or move objects. Raises `FileNotFoundError` for one that is missing, unless skipped."""
    turns = asyncio.Semaphore(CARRIED_AT_ONCE)

    async def one(source: str, target: str) -> None:
        async with turns:
            with as_of_files():
                try:
                    await _carry_one(blobs, source, target, moving=moving)
                except NoSuchBucket:
                    raise
                except NoSuchObject:
                    if not skip_missing:
                        raise

    done = await asyncio.gather(*[one(*pair) for pair in pairs], return_exceptions=True)
    for error in done:
        if error is not None:
            raise error


async def _carry_one(blobs: AsyncBlobs, source: str, target: str, *, moving: bool) -> None:
    first, second = parse_address(source), parse_address(target)
    bucket = await blobs.bucket(first.bucket)
    if moving and first.bucket == second.bucket:
        await bucket.rename(first.name, second.name)
        return
    to = bucket if first.bucket == second.bucket else await blobs.bucket(second.bucket)
    info = await bucket.stat(first.name)
    await bucket.copy(first.name, second.name, to=to)
    if moving:
        await remove_source(bucket, info)


async def objects_among(blobs: AsyncBlobs, paths: list[str]) -> list[str]:
    """Those of some paths that are objects, and not only folders."""
    turns = asyncio.Semaphore(CARRIED_AT_ONCE)

    async def is_object(path: str) -> bool:
        address = parse_address(path)
        if not address.name:
            return False
        async with turns:
            try:
                return await (await blobs.bucket(address.bucket)).exists(address.name)
            except NoSuchBucket:
                return False

    known = await asyncio.gather(*map(is_object, paths))
    return [path for path, there in zip(paths, known, strict=True) if there]

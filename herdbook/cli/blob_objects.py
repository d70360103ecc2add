"""`herdbook blob cat|rm|cp|mv|concat`: what is done with objects inside a store.

Invariants:
- `cat` writes an object's bytes to standard output and nothing else.
- `mv` deletes the old name only when the new one has the bytes, and only the version it copied.
- Names that are many go in batches, `--jobs` at a time.
"""

import asyncio
import sys
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from blobit.errors import ConditionFailed, NoSuchObject
from engine.ports.workers import Workers
from herdbook.blob_store import Address, remove_source
from herdbook.cli.blob_moving import Batches, each_of, in_parallel, is_of_one, told
from herdbook.cli.blob_store import (
    JOBS,
    IfAbsent,
    Jobs,
    Recursive,
    bucket_named,
    facts_of,
    folder_prefix,
    object_named,
    say_error,
    target_name,
    with_blobs,
    write_json,
)
from herdbook.cli.sql import ending_quietly
from herdbook.cli.sql_errors import harmless
from herdbook.cli.store import AsJson, Url
from herdbook.cli.working import aside

if TYPE_CHECKING:
    from blobit import AsyncBlobs, AsyncBucket, ObjectInfo

DELETED_AT_ONCE: Final = 1_000

Names = Annotated[list[str], typer.Argument(help="Objects.", metavar="BUCKET/NAME")]
Source = Annotated[str, typer.Argument(help="The object.", metavar="BUCKET/NAME")]
Target = Annotated[
    str,
    typer.Argument(
        help="Its new name; below that, if it is a bucket or ends with a slash.",
        metavar="BUCKET[/NAME]",
    ),
]


def cat(
    names: Names,
    url: Url = None,
    offset: Annotated[int, typer.Option(help="The first byte.", min=0)] = 0,
    length: Annotated[int | None, typer.Option(help="How many bytes. Default: all.", min=0)] = None,
) -> None:
    """Write objects' bytes to standard output."""
    addresses = [object_named(name) for name in names]

    async def write(blobs: "AsyncBlobs", workers: Workers) -> None:
        for address in addresses:
            bucket = await blobs.bucket(address.bucket)
            await write_out(bucket, workers, address.name, offset, length)

    with ending_quietly():
        with_blobs(url, write)


async def write_out(
    bucket: "AsyncBucket", workers: Workers, name: str, offset: int = 0, length: int | None = None
) -> None:
    """An object's bytes to standard output."""
    out = sys.stdout.buffer
    async with aclosing(bucket.stream(name, offset, length)) as pieces:
        async for piece in pieces:
            # Whoever reads may be slow: that is not the loop's business.
            await workers.run(partial(out.write, piece))
    await workers.run(out.flush)


def rm(
    names: Names, url: Url = None, recursive: Recursive = False, as_json: AsJson = False
) -> None:
    """Delete objects, or whole folders of them.

    With -r all that lies below a folder, or in a bucket, is deleted, too.
    """
    addresses = [bucket_named(name) if recursive else object_named(name) for name in names]

    async def remove(blobs: "AsyncBlobs", _: Workers) -> int:
        missing = 0
        for address in addresses:
            bucket = await blobs.bucket(address.bucket)
            deleted = int(bool(address.name) and await bucket.delete(address.name))
            if recursive:
                deleted += await _remove_below(bucket, folder_prefix(address.name))
            missing += not deleted and bool(address.name)
            if as_json:
                write_json({"bucket": address.bucket, "name": address.name, "deleted": deleted})
            elif not deleted and address.name:
                say_error(f"NoSuchObject: {address} {await _what_is_there(bucket, address.name)}")
            elif recursive:
                with aside():
                    typer.echo(harmless(f"{address}: {deleted:,} objects are deleted"))
        return missing

    if with_blobs(url, remove, what="deleting"):
        raise typer.Exit(1)


async def _what_is_there(bucket: "AsyncBucket", name: str) -> str:
    """Why there is no object of a name to delete."""
    below = await bucket.list(folder_prefix(name), limit=1)
    return "is a folder: -r deletes all that lies below it" if below.objects else "does not exist"


async def _remove_below(bucket: "AsyncBucket", prefix: str) -> int:
    # Onwards only: who puts meanwhile does not keep it busy for ever.
    deleted, token = 0, ""
    while True:
        page = await bucket.list(prefix, token=token, limit=DELETED_AT_ONCE)
        deleted += await bucket.delete_many([info.name for info in page.objects])
        token = page.token
        if not token:
            return deleted


def cp(
    source: Source,
    target: Target,
    url: Url = None,
    recursive: Recursive = False,
    if_absent: IfAbsent = False,
    jobs: Jobs = JOBS,
    as_json: AsJson = False,
) -> None:
    """Copy an object, or a whole folder of them.

    Within a bucket no byte moves.
    """
    _carry(source, target, url, _Way(False, recursive, if_absent, jobs, as_json))


def mv(
    source: Source,
    target: Target,
    url: Url = None,
    recursive: Recursive = False,
    if_absent: IfAbsent = False,
    jobs: Jobs = JOBS,
    as_json: AsJson = False,
) -> None:
    """Rename an object, or a whole folder of them.

    Into another bucket they are copied, and deleted here.
    """
    _carry(source, target, url, _Way(True, recursive, if_absent, jobs, as_json))


class _Way(NamedTuple):
    """How objects are carried."""

    moving: bool
    recursive: bool
    if_absent: bool
    jobs: int
    as_json: bool


class _Carrying:
    """Copies or moves objects from one bucket to one bucket."""

    def __init__(self, source: "AsyncBucket", target: "AsyncBucket", way: _Way) -> None:
        self._source = source
        self._target = target
        self._way = way
        self.failed = 0

    async def carry_all(self, prefix: str, target: str) -> None:
        """All below a prefix. Raises `NoSuchObject` if there is nothing, and `ConditionFailed`
        if one would take the place of another that is still to be carried: nothing was changed."""
        # Names are made while they are listed: what is listed must be known before.
        found = [info.name async for info in self._source.scan(prefix)]
        if not found:
            raise NoSuchObject(f"nothing lies below {self._source.name}/{prefix}")
        pairs = [(name, target + name[len(prefix) :]) for name in found]
        if self._source is self._target:
            _check_apart(pairs)

        async def carry(batch: list[tuple[str, str]]) -> None:
            await asyncio.gather(*[self._carry_told(*names) for names in batch])

        await in_parallel(Batches(each_of(pairs), lambda _: 0), carry, self._way.jobs)

    async def carry_one(self, name: str, target: str) -> None:
        """One object. Raises what a rename or a copy raises."""
        if_absent = self._way.if_absent
        info: ObjectInfo
        if self._way.moving and self._source is self._target:
            info = await self._source.rename(name, target, if_absent=if_absent)
        else:
            copied = await self._source.stat(name) if self._way.moving else None
            info = await self._source.copy(name, target, to=self._target, if_absent=if_absent)
            if copied is not None:
                await remove_source(self._source, copied)
        if self._way.as_json:
            write_json({"from": name, **facts_of(self._target.name, info)})

    async def _carry_told(self, name: str, target: str) -> None:
        try:
            await self.carry_one(name, target)
        except Exception as error:
            if not is_of_one(error):
                raise
            self.failed += 1
            say_error(f"{name}: {told(error)}")


def _check_apart(pairs: list[tuple[str, str]]) -> None:
    sources = {source for source, _ in pairs}
    for source, target in pairs:
        if target in sources:
            raise ConditionFailed(
                f"{source} would take the place of {target}, which is itself to go elsewhere: "
                "nothing was changed; go by way of another folder"
            )


def _carry(source: str, target: str, url: str | None, way: _Way) -> None:
    first = bucket_named(source) if way.recursive else object_named(source)
    second = bucket_named(target)

    async def work(blobs: "AsyncBlobs", _: Workers) -> int:
        bucket = await blobs.bucket(first.bucket)
        same = first.bucket == second.bucket
        carrying = _Carrying(bucket, bucket if same else await blobs.bucket(second.bucket), way)
        if not way.recursive:
            await carrying.carry_one(first.name, target_name(second, first.name))
            return 0
        prefix, below = folder_prefix(first.name), folder_prefix(second.name)
        if same and below.startswith(prefix):
            raise typer.BadParameter(f"{second} lies below {first}")
        await carrying.carry_all(prefix, below)
        return carrying.failed

    if with_blobs(url, work, what="renaming" if way.moving else "copying"):
        raise typer.Exit(1)


def concat(
    target: Annotated[str, typer.Argument(help="What is made.", metavar="BUCKET/NAME")],
    sources: Annotated[list[str], typer.Argument(help="Of what, in order.", metavar="BUCKET/NAME")],
    url: Url = None,
    keep: Annotated[bool, typer.Option("--keep", help="The sources stay.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make one object of several, and remove those.

    All are of one bucket; no byte moves.
    """
    made: Address = object_named(target)
    parts = [object_named(source) for source in sources]
    if any(part.bucket != made.bucket for part in parts):
        raise typer.BadParameter(f"all of them must be in bucket {made.bucket}: cp brings them")

    async def work(blobs: "AsyncBlobs", _: Workers) -> dict[str, Any]:
        bucket = await blobs.bucket(made.bucket)
        info = await bucket.concat(made.name, [part.name for part in parts], keep=keep)
        return facts_of(made.bucket, info)

    facts = with_blobs(url, work, what="concatenating")
    if as_json:
        write_json(facts)
    else:
        typer.echo(harmless(f"{made} has {facts['bytes']:,} bytes"))

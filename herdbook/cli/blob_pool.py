"""`herdbook blob pool` and `move`: the tablespaces that buckets share, and which bucket is where.

Invariants:
- Showing the pool measures nothing and moves nothing.
"""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from engine.ports.workers import Workers
from herdbook.cli.blob_quota import bytes_of
from herdbook.cli.blob_store import size_of, with_blobs, write_json
from herdbook.cli.store import AsJson, Url, plain, print_table

if TYPE_CHECKING:
    from blobit import AsyncBlobs, PoolLimits, PoolTablespace

_COLUMNS: Final = ("tablespace", "buckets", "objects", "bytes")


def pool(
    url: Url = None,
    buckets: Annotated[
        int | None, typer.Option(min=1, help="The maximum number of buckets in a tablespace.")
    ] = None,
    objects: Annotated[
        int | None,
        typer.Option(min=0, help="It takes new ones while they hold fewer objects; 0: no limit."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--bytes", metavar="SIZE", help="The same in bytes: 10TiB; 0: no limit."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the tablespaces that buckets share, or change how many buckets each takes.

    A new bucket goes to the first one that has room; if none has, another one is created. Existing
    buckets stay where they are. A folder keeps all buckets in one tablespace and has no pool.
    """
    size_bytes = None if size is None else bytes_of(size)

    async def work(blobs: "AsyncBlobs", _: Workers) -> tuple["PoolLimits", list["PoolTablespace"]]:
        if buckets is objects is size_bytes is None:
            return await blobs.pool_limits(), await blobs.pool_tablespaces()
        limits = await blobs.set_pool_limits(
            buckets=buckets, objects=objects, size_bytes=size_bytes
        )
        return limits, await blobs.pool_tablespaces()

    limits, there = with_blobs(url, work, what="looking")
    if as_json:
        write_json({"limits": plain(limits), "tablespaces": [plain(each) for each in there]})
        return
    most = f"{limits.objects:,}" if limits.objects else "any number of"
    most_bytes = size_of(limits.bytes) if limits.bytes else "any size"
    typer.echo(f"at most {limits.buckets:,} buckets; new ones up to {most} objects, {most_bytes}")
    rows = [
        (each.tablespace, f"{each.buckets:,}", f"{each.objects:,}", size_of(each.bytes))
        for each in there
    ]
    print_table(_COLUMNS, rows)


def move(
    bucket: Annotated[str, typer.Argument(help="The bucket's name.")],
    to: Annotated[
        str | None,
        typer.Option(metavar="TABLESPACE", help="One of the pool. Default: one that has room."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Move a bucket to another tablespace of the pool while it is in use.

    Programs that use the bucket need no change. Changes of the bucket wait while its last rows are
    copied. If a move is interrupted, the next change of the bucket, garbage collection, or the same
    command finishes it.
    """

    async def work(blobs: "AsyncBlobs", _: Workers) -> str:
        return (await blobs.move_bucket(bucket, to)).tablespace

    tablespace = with_blobs(url, work, what="moving")
    if as_json:
        write_json({"bucket": bucket, "tablespace": tablespace})
    else:
        typer.echo(f"bucket {bucket} is in {tablespace}")

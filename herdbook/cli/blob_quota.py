"""`herdbook blob buckets` and `quota`: what buckets hold, and what they may hold.

Invariants:
- What is shown is what the buckets count themselves: no object is looked at, but for those of a
  bucket that nobody has counted yet.
"""

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engine.ports.workers import Workers
from herdbook.cli.blob_store import size_of, with_blobs, write_json
from herdbook.cli.store import AsJson, Url, plain, print_table

if TYPE_CHECKING:
    from blobit import AsyncBlobs, BucketUse

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp]?)(i?)b?)?", re.IGNORECASE | re.ASCII)
_POWERS: Final = "kmgtp"


def bytes_of(text: str) -> int:
    """How many bytes a size says.

    >>> bytes_of("10GiB") == 10 * 2**30, bytes_of("1.5 MB"), bytes_of("0"), bytes_of("7k")
    (True, 1500000, 0, 7000)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no size: say 500MB, 10GiB, or a number of bytes")
    number, unit, binary = found.groups(default="")
    power = _POWERS.find(unit.lower()) + 1 if unit else 0
    whole, _, fraction = number.partition(".")
    scale: int = pow(1024 if binary else 1000, power)
    size: int = int(whole) * scale + int(fraction or 0) * scale // 10 ** len(fraction)
    return size


def list_use(url: Url = None, as_json: AsJson = False) -> None:
    """List buckets with what they hold and what they may hold."""

    async def look(blobs: "AsyncBlobs", _: Workers) -> list[tuple[str, "BucketUse"]]:
        return [(info.name, await blobs.use(info.name)) for info in await blobs.buckets()]

    found = with_blobs(url, look, what="counting")
    if as_json:
        for name, use in found:
            write_json({"bucket": name, **plain(use)})
        return
    columns = ("bucket", "objects", "at most", "bytes", "at most ")
    print_table(columns, [(name, *_shown(use)) for name, use in found])


def quota(
    bucket: Annotated[str, typer.Argument(help="The bucket's name.")],
    url: Url = None,
    size: Annotated[
        str | None,
        typer.Option("--bytes", metavar="SIZE", help="At most so much: 10GiB, 500MB; 0: no limit."),
    ] = None,
    objects: Annotated[
        int | None, typer.Option(min=0, help="At most so many objects; 0: no limit.")
    ] = None,
    recount: Annotated[
        bool, typer.Option("--recount", help="Count all objects of the bucket again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a bucket holds and may hold, or change what it may.

    It holds at once for all who put. What is there stays: a bucket that holds more takes nothing
    until enough of it is deleted.
    """
    size_bytes = None if size is None else bytes_of(size)

    async def work(blobs: "AsyncBlobs", _: Workers) -> "BucketUse":
        if size_bytes is None and objects is None and not recount:
            return await blobs.use(bucket)
        return await blobs.set_quota(
            bucket, quota_bytes=size_bytes, quota_objects=objects, recount=recount
        )

    use = with_blobs(url, work, what="counting")
    if as_json:
        write_json({"bucket": bucket, **plain(use)})
        return
    # In bytes, as a put is told that it is refused: no rounding hides what is left.
    most = f"{use.quota_objects:,}" if use.quota_objects else "any number"
    most_bytes = f"{use.quota_bytes:,} bytes" if use.quota_bytes else "any size"
    typer.echo(f"bucket {bucket} holds {use.objects:,} objects, at most {most}")
    typer.echo(f"and {use.bytes:,} bytes in them, at most {most_bytes}")


def _shown(use: "BucketUse") -> tuple[Any, ...]:
    return (
        f"{use.objects:,}",
        f"{use.quota_objects:,}" if use.quota_objects else "",
        size_of(use.bytes),
        size_of(use.quota_bytes) if use.quota_bytes else "",
    )

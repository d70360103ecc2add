"""`herdbook blob`: buckets and objects of a store.

Invariants:
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
- With `--json` standard output carries JSON alone, one object a line.
- Nothing but `rm`, `rb`, `mv`, `concat` and `gc` ever deletes.
"""

import sys
from heapq import merge
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from engine.ports.workers import Workers
from herdbook.blob_store import Address
from herdbook.cli.blob_objects import cat, concat, cp, mv, rm
from herdbook.cli.blob_pool import move, pool
from herdbook.cli.blob_quota import list_use, quota
from herdbook.cli.blob_store import (
    bucket_named,
    facts_of,
    readable,
    say_error,
    size_of,
    with_blobs,
    write_json,
)
from herdbook.cli.blob_transfer import get, put
from herdbook.cli.sql import ending_quietly
from herdbook.cli.sql_errors import harmless
from herdbook.cli.store import AsJson, Url, moment_of, plain, print_facts
from herdbook.cli.working import aside

if TYPE_CHECKING:
    from blobit import AsyncBlobs, ObjectInfo

PAGE_NAMES: Final = 1_000

app = typer.Typer(
    help="Buckets and objects: put files and folders in, get them out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("put")(put)
app.command("get")(get)
app.command("cat")(cat)
app.command("rm")(rm)
app.command("cp")(cp)
app.command("mv")(mv)
app.command("concat")(concat)
app.command("buckets")(list_use)
app.command("quota")(quota)
app.command("pool")(pool)
app.command("move")(move)

Buckets = Annotated[list[str], typer.Argument(help="The buckets' names.", metavar="BUCKET")]
TtlMs = Annotated[
    int | None, typer.Option(help="Objects expire after so long, milliseconds.", min=1)
]
LedgerBytes = Annotated[int | None, typer.Option(help="A ledger ends at so many bytes.", min=1)]
Quorum = Annotated[int | None, typer.Option(min=1, help="Default: the store's.")]
Tablespace = Annotated[
    str | None, typer.Option(help="Where the names are kept. Default: the store's choice.")
]
OwnTablespace = Annotated[
    bool, typer.Option("--own-tablespace", help="Names share no tablespace with other buckets.")
]
Leader = Annotated[
    str | None, typer.Option(help="The node that is to lead a tablespace of its own.")
]


@app.command("mb")
def make_buckets(
    buckets: Buckets,
    url: Url = None,
    ensemble: Quorum = None,
    write_quorum: Quorum = None,
    ack_quorum: Quorum = None,
    ttl_ms: TtlMs = None,
    ledger_bytes_max: LedgerBytes = None,
    compression: Annotated[str, typer.Option(help='"zstd", or nothing.')] = "",
    tablespace: Tablespace = None,
    own_tablespace: OwnTablespace = False,
    leader: Leader = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="A bucket that is there is as good as a new one.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Make the store's folder if it is not there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make buckets."""
    from blobit import BucketSettings

    told: dict[str, Any] = {
        "ensemble": ensemble,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "ttl_ms": ttl_ms,
        "compression": compression,
        "tablespace": tablespace,
        "own_tablespace": own_tablespace,
        "leader": leader,
    }
    if ledger_bytes_max is not None:
        told["ledger_bytes_max"] = ledger_bytes_max
    try:
        settings = BucketSettings(**told)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    async def make(blobs: "AsyncBlobs", _: Workers) -> None:
        for name in buckets:
            bucket = await blobs.create_bucket(name, settings, exist_ok=exist_ok)
            if as_json:
                write_json({"bucket": bucket.name, "bucket_id": bucket.bucket_id})
            else:
                typer.echo(f"bucket {bucket.name} is there")

    with_blobs(url, make, create=create)


@app.command("rb")
def remove_buckets(
    buckets: Buckets,
    url: Url = None,
    force: Annotated[
        bool, typer.Option("--force", help="With all objects in them, for ever.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove buckets: empty ones, or any with --force."""

    async def remove(blobs: "AsyncBlobs", _: Workers) -> None:
        for name in buckets:
            await blobs.delete_bucket(name, force=force)
            if as_json:
                write_json({"bucket": name, "deleted": True})
            else:
                with aside():
                    typer.echo(f"bucket {name} is deleted")

    with_blobs(url, remove, what="deleting")


@app.command("ls")
def list_names(
    place: Annotated[
        str | None,
        typer.Argument(
            help="A bucket, or what names in it begin with. Default: all buckets.",
            metavar="BUCKET[/PREFIX]",
        ),
    ] = None,
    url: Url = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="All names, also those with a delimiter.")
    ] = False,
    delimiter: Annotated[str, typer.Option(help="Names are shown up to the next one, once.")] = "/",
    long: Annotated[
        bool, typer.Option("--long", "-l", help="With sizes and when they were put.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(help="So many names, and a token for the rest.", min=1)
    ] = None,
    token: Annotated[str, typer.Option(help="Go on where a listing with --limit ended.")] = "",
    as_json: AsJson = False,
) -> None:
    """List buckets, or names in a bucket.

    Names come in the order of their UTF-8 bytes, folded at the delimiter.
    """
    address = bucket_named(place) if place else None
    if (limit or token) and address is None:
        raise typer.BadParameter("all buckets are listed at once: --limit needs a bucket")

    async def look(blobs: "AsyncBlobs", _: Workers) -> None:
        if address is None:
            await _list_buckets(blobs, long=long, as_json=as_json)
            return
        cut = "" if recursive else delimiter
        await _list_objects(blobs, address, cut, limit, token, long=long, as_json=as_json)

    with ending_quietly():
        with_blobs(url, look)


async def _list_buckets(blobs: "AsyncBlobs", *, long: bool, as_json: bool) -> None:
    for info in await blobs.buckets():
        if as_json:
            write_json({"bucket": info.name, "created_ms": info.created_ms})
        elif long:
            sys.stdout.write(f"{moment_of(info.created_ms)}  {info.name}\n")
        else:
            sys.stdout.write(f"{info.name}\n")


async def _list_objects(
    blobs: "AsyncBlobs",
    address: Address,
    delimiter: str,
    limit: int | None,
    token: str,
    *,
    long: bool,
    as_json: bool,
) -> None:
    bucket = await blobs.bucket(address.bucket)
    left = limit
    while True:
        size = PAGE_NAMES if left is None else min(left, PAGE_NAMES)
        page = await bucket.list(address.name, delimiter=delimiter, token=token, limit=size)
        # Both are in order already, each by itself.
        lines = list(
            merge(
                ((name.encode(), name, None) for name in page.prefixes),
                ((info.name.encode(), info.name, info) for info in page.objects),
                key=lambda each: each[0],
            )
        )
        write = _json_line if as_json else _long_line if long else _short_line
        sys.stdout.write("".join(write(address.bucket, name, info) for _, name, info in lines))
        token = page.token
        left = None if left is None else left - len(lines)
        if not token or left == 0:
            break
    if token and as_json:
        write_json({"token": token})
    elif token:
        say_error(f"there is more: --token {token}")


def _json_line(bucket: str, name: str, info: "ObjectInfo | None") -> str:
    facts = {"bucket": bucket, "prefix": name} if info is None else facts_of(bucket, info)
    return msgspec.json.encode(facts).decode() + "\n"


def _long_line(bucket: str, name: str, info: "ObjectInfo | None") -> str:
    if info is None:
        return f"{'-':>14}  {'':25}  {harmless(name)}\n"
    return f"{info.length:>14,}  {moment_of(info.created_ms)}  {harmless(name)}\n"


def _short_line(bucket: str, name: str, info: "ObjectInfo | None") -> str:
    return f"{harmless(name)}\n"


@app.command("stat")
def stat(
    places: Annotated[
        list[str], typer.Argument(help="Buckets or objects.", metavar="BUCKET[/NAME]")
    ],
    url: Url = None,
    locations: Annotated[
        bool, typer.Option("--locations", help="On which bookies an object's bytes lie.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is known of objects or of buckets."""
    addresses = [bucket_named(place) for place in places]

    async def look(blobs: "AsyncBlobs", _: Workers) -> list[dict[str, Any]]:
        return [await _facts(blobs, address, locations) for address in addresses]

    for facts in with_blobs(url, look, what="looking"):
        write_json(facts) if as_json else print_facts(readable(facts))


async def _facts(blobs: "AsyncBlobs", address: Address, locations: bool) -> dict[str, Any]:
    bucket = await blobs.bucket(address.bucket)
    if address.name:
        facts = facts_of(address.bucket, await bucket.stat(address.name))
        if locations:
            facts["locations"] = [plain(each) for each in await bucket.locations(address.name)]
        return facts
    found = next(info for info in await blobs.buckets() if info.name == address.bucket)
    return {
        "bucket": found.name,
        "bucket_id": found.bucket_id,
        "created_ms": found.created_ms,
        **plain(found.settings),
        "tablespace": found.tablespace,
    }


@app.command("du")
def disk_usage(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            help="Buckets, or what names in them begin with. Default: all buckets.",
            metavar="BUCKET[/PREFIX]",
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Count objects and their bytes.

    Of whole buckets also what their ledgers hold of one copy.
    """
    addresses = [bucket_named(place) for place in places or []]

    async def count(blobs: "AsyncBlobs", _: Workers) -> list[dict[str, Any]]:
        wanted = addresses or [Address(info.name, "") for info in await blobs.buckets()]
        return [await _usage(blobs, address) for address in wanted]

    for facts in with_blobs(url, count, what="counting"):
        if as_json:
            write_json(facts)
            continue
        line = f"{facts['bytes']:>16,} bytes  {facts['objects']:>10,} objects  {facts['place']}"
        if "stored_bytes" in facts:
            line += f"  ({facts['ledgers']:,} ledgers, {size_of(facts['stored_bytes'])} in them)"
        typer.echo(harmless(line))


async def _usage(blobs: "AsyncBlobs", address: Address) -> dict[str, Any]:
    bucket = await blobs.bucket(address.bucket)
    if not address.name:
        return {"place": address.bucket, **plain(await bucket.usage())}
    objects = size_bytes = 0
    async for info in bucket.scan(address.name):
        objects += 1
        size_bytes += info.length
    return {"place": str(address), "objects": objects, "bytes": size_bytes}


@app.command("gc")
def collect(
    bucket: Annotated[
        str | None, typer.Argument(help="One bucket. Default: all, and what nobody owns.")
    ] = None,
    url: Url = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    unpin: Annotated[
        str | None,
        typer.Option(metavar="PIN", help="First remove a pin that holds bytes, by its name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Collect garbage: give back the bytes of what was deleted.

    What readers of a checkpoint have pinned stays until they are done; the report names the pins.
    """
    if unpin and dry_run:
        raise typer.BadParameter("--unpin changes something, and --dry-run nothing: take one")

    async def work(blobs: "AsyncBlobs", _: Workers) -> dict[str, Any]:
        if unpin is not None and not await blobs.unpin(unpin):
            say_error(f"there is no pin {unpin}")
            raise typer.Exit(1)
        report = await blobs.collect(bucket, dry_run=dry_run)
        facts: dict[str, Any] = plain(report)
        return facts

    facts = with_blobs(url, work, what="collecting")
    if as_json:
        write_json(facts)
        return
    typer.echo("What a round would do:" if dry_run else "What the round did:")
    for each in facts.pop("buckets"):
        print_facts(readable({name: value for name, value in each.items() if value != 0}))
    print_facts(readable(facts))

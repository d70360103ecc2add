"""What the commands of `herdbook blob` share: the store, what is named in it, how they end.

Invariants:
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
- With `--json` standard output carries JSON alone, one object a line.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer

from blobit.errors import BlobError
from engine.ports.system_workers import ThreadWorkers
from engine.ports.workers import Workers
from herdbook.blob_store import Address, open_blobs, parse_address
from herdbook.cli.sql_errors import harmless
from herdbook.cli.statuses import status_of
from herdbook.cli.store import moment_of, plain, run
from herdbook.cli.working import Working, aside

if TYPE_CHECKING:
    from blobit import AsyncBlobs, ObjectInfo

R = TypeVar("R")

Recursive = Annotated[
    bool, typer.Option("--recursive", "-r", help="Everything below that folder, too.")
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="How many at a time.", min=1, max=256)]
IfAbsent = Annotated[
    bool, typer.Option("--if-absent", help="Only where there is nothing; else it fails.")
]
JOBS: Final = 8
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def with_blobs(
    url: str | None,
    work: Callable[["AsyncBlobs", Workers], Awaitable[R]],
    *,
    create: bool = False,
    what: str = "",
) -> R:
    """Open the store that the rule finds, do the work with its blobs, close it.

    `what` is what a person reads meanwhile, if the work shows nothing itself.
    """
    from herd.errors import Error

    async def opened() -> R:
        workers = ThreadWorkers(asyncio.get_running_loop())
        try:
            async with open_blobs(url, create=create) as blobs:
                return await work(blobs, workers)
        finally:
            await workers.close()

    try:
        with Working(what) if what else nullcontext():
            return run(opened())
    except BrokenPipeError:
        raise
    except (BlobError, Error, OSError) as error:
        say_error(f"{type(error).__name__}: {error}")
        raise typer.Exit(status_of(error)) from error


def say_error(text: str) -> None:
    """One line on standard error, behind what was written until now."""
    with aside():
        sys.stdout.flush()
        typer.echo(harmless(" ".join(text.split())), err=True)


def bucket_named(text: str) -> Address:
    """A bucket, with a beginning of names or without. Ends the command for what is none."""
    address = parse_address(text)
    if not address.bucket:
        raise typer.BadParameter(f"{text!r} names no bucket: say BUCKET or BUCKET/NAME")
    return address


def object_named(text: str) -> Address:
    """A bucket and a name in it. Ends the command for what is none."""
    address = bucket_named(text)
    if not address.name:
        raise typer.BadParameter(f"{text!r} names a bucket, not an object: say BUCKET/NAME")
    return address


def folder_prefix(name: str) -> str:
    """What the names of all objects below a folder begin with."""
    return name if not name or name.endswith("/") else f"{name}/"


def target_name(target: Address, source: str) -> str:
    """What an object is called that goes to `target`: where that is a folder, as it was."""
    if target.name and not target.name.endswith("/"):
        return target.name
    return target.name + source.rstrip("/").rpartition("/")[2]


def facts_of(bucket: str, info: "ObjectInfo") -> dict[str, Any]:
    """What is known of an object, for JSON."""
    return {
        "bucket": bucket,
        "name": info.name,
        "bytes": info.length,
        "etag": info.etag,
        "id": str(info.object_id),
        "content_type": info.content_type,
        "metadata": dict(info.metadata),
        "created_ms": info.created_ms,
        "expires_ms": info.expires_ms,
    }


def readable(facts: dict[str, Any]) -> dict[str, Any]:
    """The same for people: moments as such, nothing that is empty."""
    shown: dict[str, Any] = {}
    for name, value in facts.items():
        if value is None or value in ("", {}, []):
            continue
        if name.endswith("_ms") and name != "ttl_ms":
            shown[name.removesuffix("_ms")] = moment_of(value)
        elif name == "metadata":
            shown[name] = harmless("\n".join(f"{k}={v}" for k, v in value.items()), newlines=True)
        elif name == "locations":
            lines = [
                f"{each['length']:,} from {each['offset']:,}: {', '.join(each['bookies'])}"
                for each in value
            ]
            shown[name] = harmless("\n".join(lines), newlines=True)
        elif name == "pins":
            lines = [
                f"{each['pin']} holds {each['bytes']:,} bytes of checkpoint {each['checkpoint']} "
                f"until {moment_of(each['expires_ms'])}"
                for each in value
            ]
            shown[name] = harmless("\n".join(lines), newlines=True)
        elif name == "bytes" or name.endswith("_bytes"):
            shown[name] = f"{value:,}"
        else:
            shown[name] = harmless(str(value), newlines=True)
    return shown


def size_of(size_bytes: int) -> str:
    """A size in the unit in which it has one to three digits before the point.

    >>> size_of(999), size_of(1_500), size_of(23_456_789)
    ('999 B', '1.5 kB', '23.5 MB')
    """
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 999.95 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def write_json(facts: dict[str, Any]) -> None:
    """One object on a line of standard output."""
    with aside():
        sys.stdout.write(msgspec.json.encode(plain(facts)).decode() + "\n")

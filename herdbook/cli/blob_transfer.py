"""`herdbook blob put` and `get`: files and whole folders, many at a time, in and out.

Invariants:
- What is there already with equal length and checksum is passed over, unless `--again`.
- Every file that could not be put or got is named on standard error, and the status is 1 then.
- A bar is drawn on standard error where a person looks at it, and nowhere else.
"""

import os
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from engine.ports.workers import Workers
from herdbook.blob_store import Address
from herdbook.cli.blob_folders import LeftOut, Links, item_of, walk
from herdbook.cli.blob_getting import Getting
from herdbook.cli.blob_moving import Bar, Outcome
from herdbook.cli.blob_objects import write_out
from herdbook.cli.blob_piping import put_piped
from herdbook.cli.blob_putting import Planned, PutOptions, Putting
from herdbook.cli.blob_store import (
    JOBS,
    IfAbsent,
    Jobs,
    Recursive,
    bucket_named,
    folder_prefix,
    object_named,
    size_of,
    target_name,
    with_blobs,
    write_json,
)
from herdbook.cli.sql import ending_quietly
from herdbook.cli.sql_errors import harmless
from herdbook.cli.store import AsJson, Url

if TYPE_CHECKING:
    from blobit import AsyncBlobs

_STDIO: Final = "-"

Sources = Annotated[
    list[str],
    typer.Argument(help="Files, folders with -r; - is standard input.", metavar="FILE"),
]
PutTarget = Annotated[
    str,
    typer.Argument(
        help="A name; or a bucket, or what ends with a slash, for the files' own names.",
        metavar="BUCKET[/NAME]",
    ),
]
ContentType = Annotated[str | None, typer.Option(help="Default: what the name's ending says.")]
Metadata = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="May be said several times.")
]
TtlMs = Annotated[int | None, typer.Option(help="They expire after so long, milliseconds.", min=1)]
Append = Annotated[bool, typer.Option("--append", help="Behind what the one object has already.")]
LinksOption = Annotated[
    str,
    typer.Option("--links", help="Symbolic links below a folder: keep, follow or skip."),
]
Attributes = Annotated[
    bool,
    typer.Option("--attributes/--no-attributes", help="Keep modes and times in metadata."),
]
GetSource = Annotated[
    str,
    typer.Argument(help="An object; a bucket or folder with -r.", metavar="BUCKET[/NAME]"),
]
GetTarget = Annotated[
    str,
    typer.Argument(help="A file, or the folder it goes in; - is standard output.", metavar="FILE"),
]
Again = Annotated[
    bool, typer.Option("--again", help="Also what is there with the same length and checksum.")
]


def put(
    sources: Sources,
    target: PutTarget,
    url: Url = None,
    recursive: Recursive = False,
    content_type: ContentType = None,
    metadata: Metadata = None,
    if_absent: IfAbsent = False,
    ttl_ms: TtlMs = None,
    append: Append = False,
    links: LinksOption = "keep",
    attributes: Attributes = True,
    again: Again = False,
    jobs: Jobs = JOBS,
    as_json: AsJson = False,
) -> None:
    """Put files or whole folders into a bucket.

    What a folder holds goes below the target, several folders below it by their names.
    """
    address = bucket_named(target)
    pairs = _pairs(metadata or [])
    options = PutOptions(content_type, pairs, if_absent, ttl_ms, attributes, again)
    if append or sources == [_STDIO]:
        if len(sources) != 1 or recursive:
            raise typer.BadParameter("one source at a time is appended, or read from -")
        if append and (content_type is not None or pairs or if_absent or ttl_ms is not None):
            raise typer.BadParameter("what is appended to keeps its type, metadata and expiry")
        if sources == [_STDIO] and (not address.name or address.name.endswith("/")):
            raise typer.BadParameter(f"{target} is no object's name, and - has none of its own")
        put_piped(sources[0], address, options, url, append=append, as_json=as_json)
        return
    if len(sources) > 1 and address.name and not address.name.endswith("/") and not recursive:
        raise typer.BadParameter(f"{target} is one name, for several files: end it with a slash")
    follow = _links(links)
    told = _Told("putting", as_json)

    async def work(blobs: "AsyncBlobs", workers: Workers) -> None:
        bucket = await blobs.bucket(address.bucket)
        planned, left_out = await workers.run(
            lambda: _planned(sources, address, recursive=recursive, links=follow)
        )
        _check_names(planned)
        for each in left_out:
            told.tell(_not_stored(each))
        putting = Putting(bucket, workers, told, options.begun(blobs.client.clock), jobs)
        await putting.put_all(planned)

    told.through(lambda: with_blobs(url, work), f"in {address}")


def _check_names(planned: list[Planned]) -> None:
    """End the command if two files would become one object."""
    paths: dict[str, str] = {}
    for item, name in planned:
        if (other := paths.setdefault(name, item.path)) != item.path:
            raise typer.BadParameter(f"{other} and {item.path} would both be {name}")


def _not_stored(left_out: LeftOut) -> Outcome:
    done: Literal["failed", "left out"] = "failed" if left_out.failed else "left out"
    return Outcome(done, "", left_out.path, 0, error=left_out.reason)


def _planned(
    sources: list[str], address: Address, *, recursive: bool, links: Links
) -> tuple[list[Planned], list[LeftOut]]:
    """The files to put, with their objects' names; and what is not stored. In a thread."""
    planned: list[Planned] = []
    left_out: list[LeftOut] = []
    for source in sources:
        if recursive and os.path.isdir(source):
            prefix = folder_prefix(address.name)
            if len(sources) > 1:
                prefix += folder_prefix(Path(source).resolve().name)
            for item in walk(source, links):
                if isinstance(item, LeftOut):
                    left_out.append(item)
                else:
                    planned.append(Planned(item, prefix + item.name))
            continue
        into = Address(address.bucket, folder_prefix(address.name)) if recursive else address
        name = target_name(into, source)
        try:
            planned.append(Planned(item_of(source, name), name))
        except OSError as error:
            left_out.append(LeftOut(source, error.strerror or str(error), True))
    return planned, left_out


def get(
    source: GetSource,
    target: GetTarget = ".",
    url: Url = None,
    recursive: Recursive = False,
    again: Again = False,
    jobs: Jobs = JOBS,
    as_json: AsJson = False,
) -> None:
    """Get an object, or a whole folder of them.

    With -r all that lies below a folder of a bucket goes below a folder here.
    """
    address = bucket_named(source) if recursive else object_named(source)
    if target == _STDIO:
        if recursive or as_json:
            raise typer.BadParameter("standard output takes one object's bytes and nothing else")

        async def write(blobs: "AsyncBlobs", workers: Workers) -> None:
            await write_out(await blobs.bucket(address.bucket), workers, address.name)

        with ending_quietly():
            with_blobs(url, write)
        return
    told = _Told("getting", as_json)

    async def work(blobs: "AsyncBlobs", workers: Workers) -> None:
        bucket = await blobs.bucket(address.bucket)
        getting = Getting(blobs, bucket, workers, told, jobs, again=again)
        if recursive:
            await getting.get_all(folder_prefix(address.name), target)
            return
        info = await bucket.stat(address.name)
        await getting.get_one(info, await workers.run(lambda: _file_in(target, address.name)))

    told.through(lambda: with_blobs(url, work), f"of {address}")


def _file_in(target: str, name: str) -> str:
    """The file that an object of a name goes in."""
    if not target.endswith("/") and not os.path.isdir(target):
        return target
    last = name.rstrip("/").rpartition("/")[2]
    if last in ("", ".", ".."):
        raise OSError(f"{name!r} cannot be a file's name: say which file")
    return os.path.join(target, last)


def _links(text: str) -> Links:
    found: dict[str, Links] = {"keep": "keep", "follow": "follow", "skip": "skip"}
    if text not in found:
        raise typer.BadParameter(f"--links is keep, follow or skip, not {text}")
    return found[text]


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--metadata")
        pairs[key] = value
    return pairs


class _Told:
    """What is going on, on the terminal, and at the end in one line or as JSON."""

    def __init__(self, what: str, as_json: bool) -> None:
        self._bar = Bar(what)
        self._as_json = as_json
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._writing = threading.Lock()

    def expect(self, size_bytes: int) -> None:
        """So many more bytes are to be moved."""
        self._bar.expect(size_bytes)

    def moved(self, size_bytes: int) -> None:
        """So many bytes were moved."""
        self._bar.moved(size_bytes)

    def tell(self, outcome: Outcome) -> None:
        """One file is done with."""
        with self._writing:
            self._counts[outcome.done] += 1
            self._bytes[outcome.done] += outcome.size_bytes
            if self._as_json:
                write_json(outcome.as_json())
            if outcome.error:
                self._bar.say(harmless(f"{outcome.path or outcome.name}: {outcome.error}"))

    def through(self, work: Any, where: str) -> None:
        """Do it, say at the end what became of it, and end the command so."""
        with ending_quietly():
            with self._bar:
                work()
            if not self._as_json:
                typer.echo(harmless(self._summary(where)))
        if self._counts["failed"]:
            raise typer.Exit(1)

    def _summary(self, where: str) -> str:
        parts = [
            f"{self._counts[done]:,} {done} ({size_of(self._bytes[done])})"
            for done in ("put", "got")
            if self._counts[done]
        ]
        if self._counts["same"]:
            parts.append(f"{self._counts['same']:,} there already")
        parts += [
            f"{self._counts[done]:,} {done}"
            for done in ("left out", "failed")
            if self._counts[done]
        ]
        return f"{where}: {', '.join(parts) or 'nothing'}"

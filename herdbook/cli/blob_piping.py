"""Standard input as an object, and the end of an object from a file: one source, piece by piece.

Invariants:
- Of a source that fails on the way no object is left.
"""

import os
import select
import sys
from typing import TYPE_CHECKING, BinaryIO, Final

import typer

from engine.ports.workers import Workers
from herdbook.blob_store import Address
from herdbook.cli.blob_moving import Bar
from herdbook.cli.blob_putting import ClosingFile, Counted, PutOptions
from herdbook.cli.blob_store import facts_of, target_name, with_blobs, write_json
from herdbook.cli.sql_errors import harmless

if TYPE_CHECKING:
    from blobit import AsyncBlobs, AsyncBucket, ObjectInfo

STDIO: Final = "-"
_LOOK_S: Final = 0.2


def put_piped(
    source: str,
    address: Address,
    options: PutOptions,
    url: str | None,
    *,
    append: bool,
    as_json: bool,
) -> None:
    """Put or append what a file, or standard input, has until its end."""
    name = target_name(address, source)

    async def work(blobs: "AsyncBlobs", workers: Workers) -> "ObjectInfo":
        bucket = await blobs.bucket(address.bucket)
        begun = options.begun(blobs.client.clock)
        file: ClosingFile = (
            StandardInput() if source == STDIO else await workers.run(lambda: _open(source))
        )
        try:
            with Bar(name) as bar:
                return await _take(bucket, name, Counted(file, bar), begun, append=append)
        finally:
            # In the loop's own thread: the others may all be waiting for standard input.
            file.close()

    info = with_blobs(url, work)
    if as_json:
        write_json({"done": "put", **facts_of(address.bucket, info)})
    else:
        typer.echo(harmless(f"{address.bucket}/{name} has {info.length:,} bytes"))


class StandardInput:
    """Standard input, for a thread that must not wait for it when nobody wants it any more."""

    def __init__(self) -> None:
        self._closed = False
        try:
            self._number: int | None = sys.stdin.fileno()
        except OSError:
            self._number = None

    def read(self, size: int, /) -> bytes:
        """The next bytes, as soon as there are some. Raises `OSError` once it was closed."""
        if self._number is None:
            return sys.stdin.buffer.read(size)
        while not self._closed:
            if select.select([self._number], [], [], _LOOK_S)[0]:
                return os.read(self._number, size)
        raise OSError("standard input was given up")

    def close(self) -> None:
        """Let whoever waits go."""
        self._closed = True


async def _take(
    bucket: "AsyncBucket", name: str, file: Counted, options: PutOptions, *, append: bool
) -> "ObjectInfo":
    if append:
        return await bucket.append(name, file)
    return await bucket.put(name, file, **options.of(name, {}))


def _open(path: str) -> BinaryIO:
    return open(path, "rb")

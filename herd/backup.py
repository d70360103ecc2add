"""Backups of a tablespace in one file, taken while it works, and their restoration.

    "HERDBAK" major(1)                         the file's head
    kind(1) size(8) crc32c(4) bytes            'M' the manifest, then 'P' each page, in its order,
                                               and behind it each of its deltas
    'E' size crc pages(8)                      the end; without it the file is not whole

Invariants:
- A backup is of exactly one position; the checkpoint that it is read from is pinned meanwhile.
- Only what was checked is restored: a file that is cut short or damaged is found before the first
  row is written, and in a cluster before the name is taken.
- Indexes are not in the file: they are made of the rows.
"""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import google_crc32c

from engine.errors import CannotRead
from engine.ledger.client import LedgerClient
from engine.ports.disk import AppendFile, Disk
from engine.ports.workers import Workers
from engine.state.contract import State
from herd.checkpoint.blobs import read_blob
from herd.checkpoint.manifest import Manifest, decode_manifest, encode_manifest
from herd.checkpoint.record import CheckpointList
from herd.nodes.restoring import made_whole
from herd.restoring import fill, pages_in
from herd.tablespace import Tablespace
from herd.translating import translating

FORMAT_MAJOR: Final = 1
_MAGIC: Final = b"HERDBAK"
_FRAME: Final = struct.Struct(">cQI")
_COUNT: Final = struct.Struct(">Q")
_MANIFEST, _PAGE, _END = b"M", b"P", b"E"
_PIN_MS: Final = 24 * 3_600_000
_FRAME_BYTES_MAX: Final = 1 << 32


async def back_up(
    space: Tablespace, client: LedgerClient, workers: Workers, disk: Disk, name: str
) -> Manifest:
    """Write all tables as they are now into a new file of a disk; durable when it returns.

    A backup that fails leaves no file. Raises `LeaderUnavailable`, `NotSupportedError`,
    `StorageFailed`, and `OSError` (there is such a file, the disk is full).
    """
    record = await space.checkpoint()
    return await write_checkpoint(client, space.name, record.number, workers, disk, name)


async def write_checkpoint(
    client: LedgerClient,
    tablespace: str,
    number: int | None,
    workers: Workers,
    disk: Disk,
    name: str,
) -> Manifest:
    """Write a checkpoint (None: the newest) into a new file, from wherever the ledgers are read.

    Raises `StorageFailed`, `OSError`.
    """
    checkpoints = CheckpointList(client.store, tablespace, client.time)
    pin = f"backup {number or 'newest'} {client.rng.getrandbits(32):08x}"
    with translating():
        record = await checkpoints.pin(pin, number, _PIN_MS)
        try:
            manifest = decode_manifest(await read_blob(client, record.locator))
            file = await workers.run(partial(disk.open_append, name, create=True))
            try:
                await _write(file, manifest, client, workers)
            except BaseException:
                await workers.run(partial(disk.remove, name))
                raise
            finally:
                await workers.run(file.close)
            await workers.run(partial(disk.sync_folder, ""))
        finally:
            await checkpoints.unpin(pin)
    return manifest


async def _write(
    file: AppendFile, manifest: Manifest, client: LedgerClient, workers: Workers
) -> None:
    head = [_MAGIC + bytes((FORMAT_MAJOR,)), *_frame(_MANIFEST, encode_manifest(manifest))]
    await workers.run(partial(file.write, head))
    async for blob in pages_in(client, manifest):
        await workers.run(partial(file.write, _frame(_PAGE, blob)))
    await workers.run(partial(file.write, _frame(_END, _COUNT.pack(_page_count(manifest)))))
    await workers.run(file.sync)


def check_backup(path: Path) -> Manifest:
    """Read a whole backup and check every byte of it; returns its manifest. Blocks.

    Raises `CannotRead` for a file that is damaged, cut short, or no backup.
    """
    with path.open("rb") as file:
        manifest = _manifest(file, path)
        for pages, (kind, blob) in enumerate(_frames(file, path)):
            if kind == _END:
                (wanted,) = _COUNT.unpack(blob)
                if wanted != pages or wanted != _page_count(manifest):
                    raise CannotRead(f"{path} has {pages} of {wanted} pages")
                return manifest
    raise CannotRead(f"{path} is cut short: it has no end")


async def restore(space: Tablespace, workers: Workers, path: Path) -> Manifest:
    """Fill an empty tablespace from a backup; returns its manifest.

    Raises `ProgrammingError` if there are tables, `StorageFailed` for a damaged file,
    `LeaderUnavailable`.
    """
    with translating():
        manifest = await workers.run(partial(check_backup, path))
        pages = _pages_of(path, workers)
        await fill(space, workers, manifest, pages)
    return manifest


async def restore_as(
    client: LedgerClient,
    workers: Workers,
    path: Path,
    name: str,
    open_state: Callable[[], Awaitable[State]],
) -> Manifest:
    """Create a tablespace of a cluster from a backup, with the default number of replicas.

    It is filled here, in an empty state that `open_state` makes. Either all of it exists in the
    end, or nothing. Raises as `restore` and `made_whole`.
    """
    with translating():
        manifest = await workers.run(partial(check_backup, path))
        async with made_whole(client, name, open_state) as space:
            await fill(space, workers, manifest, _pages_of(path, workers))
    return manifest


async def copy_checkpoint(
    space: Tablespace, client: LedgerClient, workers: Workers, manifest: Manifest
) -> None:
    """Fill an empty tablespace from a checkpoint of another one. Raises as `restore` does."""
    with translating():
        await fill(space, workers, manifest, pages_in(client, manifest))


async def _pages_of(path: Path, workers: Workers) -> AsyncIterator[bytes]:
    file: BinaryIO = await workers.run(partial(_opened, path))
    try:
        await workers.run(partial(_manifest, file, path))
        frames = _frames(file, path)
        while (frame := await workers.run(partial(next, frames)))[0] != _END:
            yield frame[1]
    finally:
        await workers.run(file.close)


# The file


def _opened(path: Path) -> BinaryIO:
    return path.open("rb")


def _frame(kind: bytes, blob: bytes) -> list[bytes]:
    return [_FRAME.pack(kind, len(blob), google_crc32c.value(kind + blob)), blob]


def _page_count(manifest: Manifest) -> int:
    return sum(len(page.locators) for table in manifest.pages for page in table.pages)


def _manifest(file: BinaryIO, path: Path) -> Manifest:
    head = file.read(len(_MAGIC) + 1)
    if head[:-1] != _MAGIC:
        raise CannotRead(f"{path} is no backup")
    if head[-1] > FORMAT_MAJOR:
        raise CannotRead(f"{path} has format {head[-1]}; this program reads {FORMAT_MAJOR}")
    kind, blob = next(_frames(file, path))
    if kind != _MANIFEST:
        raise CannotRead(f"{path} does not begin with a manifest")
    return decode_manifest(blob)


def _frames(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, bytes]]:
    while True:
        head = file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            raise CannotRead(f"{path} is cut short")
        kind, size_bytes, checksum = _FRAME.unpack(head)
        blob = file.read(size_bytes) if size_bytes <= _FRAME_BYTES_MAX else b""
        if len(blob) < size_bytes:
            raise CannotRead(f"{path} is cut short, or damaged")
        if google_crc32c.value(kind + blob) != checksum:
            raise CannotRead(f"{path} is damaged")
        yield kind, blob

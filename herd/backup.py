"""Backups of a tablespace in one file, taken while it works, and their restoration.

    "HERDBAK" major(1)                         the file's head
    kind(1) size(8) crc32c(4) bytes            'M' the manifest, then 'P' each page, in its order
    'E' size crc pages(8)                      the end; without it the file is not whole

Invariants:
- A backup is of exactly one position; the checkpoint that it is read from is pinned meanwhile.
- Restoration writes only into an empty tablespace, and only what was checked: a file that is cut
  short or damaged is found before the first row is written.
- Indexes are not in the file: they are made of the rows.
"""

import struct
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import google_crc32c

from engine.errors import CannotRead
from engine.ledger.client import LedgerClient
from engine.ports.disk import AppendFile, Disk
from engine.ports.workers import Workers
from herd.catalog import Catalog
from herd.checkpoint.blobs import read_blob
from herd.checkpoint.manifest import Manifest, decode_manifest, encode_manifest
from herd.checkpoint.pages import decode_page
from herd.checkpoint.unpacking import unpacked
from herd.commands import Change, Write, encode_command
from herd.errors import LeaderUnavailable, ProgrammingError
from herd.plan import Plan
from herd.rows import encode_row
from herd.schema import Table
from herd.tablespace import Tablespace
from herd.translating import translating

FORMAT_MAJOR: Final = 1
_MAGIC: Final = b"HERDBAK"
_FRAME: Final = struct.Struct(">cQI")
_COUNT: Final = struct.Struct(">Q")
_MANIFEST, _PAGE, _END = b"M", b"P", b"E"
_PIN_MS: Final = 24 * 3_600_000
_WRITE_BYTES: Final = 1024 * 1024
_FRAME_BYTES_MAX: Final = 1 << 32


async def back_up(
    space: Tablespace, client: LedgerClient, workers: Workers, disk: Disk, name: str
) -> Manifest:
    """Write all tables as they are now into a new file of a disk; durable when it returns.

    A backup that fails leaves no file. Raises `LeaderUnavailable`, `NotSupportedError`,
    `StorageFailed`, and `OSError` (there is such a file, the disk is full).
    """
    record = await space.checkpoint()
    assert space.checkpointer is not None
    pin = f"backup {record.number} {client.rng.getrandbits(32):08x}"
    with translating():
        await space.checkpointer.list.pin(pin, record.number, _PIN_MS)
        try:
            manifest = await space.checkpointer.manifest(record)
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
            await space.checkpointer.list.unpin(pin)
    return manifest


async def _write(
    file: AppendFile, manifest: Manifest, client: LedgerClient, workers: Workers
) -> None:
    head = [_MAGIC + bytes((FORMAT_MAJOR,)), *_frame(_MANIFEST, encode_manifest(manifest))]
    await workers.run(partial(file.write, head))
    async for blob in _pages_in(client, manifest):
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


async def copy_checkpoint(
    space: Tablespace, client: LedgerClient, workers: Workers, manifest: Manifest
) -> None:
    """Fill an empty tablespace from a checkpoint of another one. Raises as `restore` does."""
    with translating():
        await fill(space, workers, manifest, _pages_in(client, manifest))


async def fill(
    space: Tablespace, workers: Workers, manifest: Manifest, pages: AsyncIterator[bytes]
) -> None:
    """Write definitions and rows into an empty tablespace."""
    term = space.term
    if not term:
        raise LeaderUnavailable(f"this replica of tablespace {space.name} does not lead")
    if space.catalog.tables or space.catalog.views:
        raise ProgrammingError(f"tablespace {space.name} is not empty", hint="restore into another")
    catalog = Catalog(
        {table.id: table for table in manifest.tables},
        {view.name.lower(): view for view in manifest.views},
        manifest.counters,
    )
    tables = {table.id: table for table in manifest.tables}
    for table_pages in manifest.pages:
        table = tables[table_pages.table_id]
        plan = catalog.plan(table)
        for _ in table_pages.pages:
            blob = await anext(pages)
            for command in await workers.run(partial(_commands, table, plan, blob)):
                await space.propose(command, term)
    # Last of all: before, nobody can see half a restoration as tables.
    definitions = [*catalog.definitions(), *manifest.plain]
    await space.propose(encode_command(Write((), definitions)), term)


def _commands(table: Table, plan: Plan, blob: bytes) -> list[bytes]:
    """A page's rows, and the entries of their indexes, as commands of a useful size."""
    commands: list[bytes] = []
    rows: list[Change] = []
    plain: list[Change] = []
    size_bytes = 0
    for primary, row in unpacked(table, decode_page(table, blob)):
        key = plan.prefix + primary
        encoded = encode_row(row)
        rows.append((key, encoded))
        plain += [(entry, primary) for entry in plan.entries(row, key)]
        size_bytes += len(key) + len(encoded)
        if size_bytes >= _WRITE_BYTES:
            commands.append(encode_command(Write(rows, plain)))
            rows, plain, size_bytes = [], [], 0
    if rows:
        commands.append(encode_command(Write(rows, plain)))
    return commands


async def _pages_in(client: LedgerClient, manifest: Manifest) -> AsyncIterator[bytes]:
    for table in manifest.pages:
        for page in table.pages:
            yield await read_blob(client, page.locator)


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
    return sum(len(table.pages) for table in manifest.pages)


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

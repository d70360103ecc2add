"""A new store of a backup: a folder, or a cluster in which there is nothing yet.

    /restoring    which backup is being written (`engine/metadata/restoring.py`)

In a cluster the key is deleted when the backup is completely restored. In a folder it stays and
says that the restore has finished; then the folder gets its name.

Ledgers keep their ids, so every object's id that was ever handed out goes on to be good. Names come
last: first all ledgers are written, then the lists of logs, then the tablespaces.

Invariants:
- All of the backup is read and checked before the first byte is written.
- A folder has its name when it is whole. In a cluster nobody finds a tablespace, a bucket or a task
  before all ledgers are there.
- Only another attempt with the same backup continues an interrupted restore. Until then nobody
  leads a log in the store, and repair does not close its ledgers.
- Before any name is written, each ledger's end is compared with the one in the backup.
- The new store never gives out an id of a ledger that the old store gave out.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from engine import cluster
from engine.errors import CannotRead, FolderMismatch, InvalidRequest, KeyExists
from engine.ledger.client import LedgerClient
from engine.metadata.bookies import Bookies
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import LEDGERS
from engine.metadata.restoring import (
    MARK,
    Restoration,
    mark_restoration,
    restoration_in,
)
from engine.ports.workers import Workers
from engine.repair.outlook import Workshop
from herd.nodes.facts import NODES, SETTINGS, SPACES, decode_space, encode_fact
from herdbook.archive.apart import check_apart
from herdbook.archive.checking import Progress, check_backup
from herdbook.archive.framing import sync_folder
from herdbook.archive.ledger_file import read_blocks
from herdbook.archive.manifest import BackupFolder, KeptLedger, StoreManifest
from herdbook.archive.writing_back import check_restored, write_back

FOLDER_SUFFIX: Final = ".restoring"
_AT_ONCE: Final = 4
_IDS_AT_ONCE: Final = 1_024
_READ_AT_ONCE: Final = 64


class Restored(msgspec.Struct, frozen=True):
    """What a restoration did. `length` in bytes of entries; `written`: ledgers that this try wrote,
    the others were there from one before."""

    number: int
    ledgers: int
    written: int
    length: int
    seconds: float


async def restore_folder(
    workers: Workers,
    backup: Path,
    target: Path,
    *,
    number: int | None = None,
    bookies: int | None = None,
    checking: Progress | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Make a folder of a backup; it has its name when all of it is there.

    `bookies` (None: as many as the folder had, of a cluster one) are the copies that it keeps.
    Raises `InvalidRequest` for a folder that is not empty or lies in the backup's, `CannotRead` for
    a backup that is not whole, `FormatTooNew`, `FolderError`, `Unavailable`, `OSError`.
    """
    target, part = await workers.run(partial(_places, backup, target))
    manifest = await _checked(workers, backup, number, checking)
    if bookies is None:
        bookies = max(1, manifest.bookies) if manifest.kind == "folder" else 1
    async with cluster.open(part, bookies=bookies) as client:
        restored = await _restore(client, workers, backup, manifest, 0, progress)
        await mark_restoration(client.store, _restoration(manifest, under_way=False))
    await workers.run(partial(_appear, part, target))
    return restored


async def restore_cluster(
    client: LedgerClient,
    workers: Workers,
    backup: Path,
    *,
    replicas: int,
    number: int | None = None,
    checking: Progress | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Fill a cluster that has bookies and nothing else; its nodes are started afterwards.

    `replicas` are those of tablespaces that do not say how many they had. Raises as
    `restore_folder`, `InvalidRequest` for a cluster that is not empty.
    """
    assert replicas >= 1
    manifest = await _checked(workers, backup, number, checking)
    restored = await _restore(client, workers, backup, manifest, replicas, progress)
    await client.store.delete(MARK)
    return restored


def _places(backup: Path, target: Path) -> tuple[Path, Path]:
    """Where a new folder lies, behind all links, and where it is written; both as they must be."""
    check_apart(backup, target)
    target = Path(os.path.realpath(target))
    part = target.with_name(target.name + FOLDER_SUFFIX)
    check_apart(backup, part)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidRequest(f"{target} is not empty: name a folder that is not there yet")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target, part


def _appear(part: Path, target: Path) -> None:
    part.replace(target)
    sync_folder(target.parent)


async def _checked(
    workers: Workers, backup: Path, number: int | None, progress: Progress | None
) -> StoreManifest:
    check = await workers.run(partial(check_backup, backup, number, progress))
    if not check.whole:
        wrong = [*check.missing, *check.damaged]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise CannotRead(f"backup {check.manifest.number} is not whole: {wrong[0]}{more}")
    return check.manifest


async def _restore(
    client: LedgerClient,
    workers: Workers,
    backup: Path,
    manifest: StoreManifest,
    replicas: int,
    progress: Progress | None,
) -> Restored:
    begun_s = client.clock.monotonic()
    await _take(client.store, manifest)
    workshop = Workshop(
        store=client.store, transport=client.transport, clock=client.clock, rng=client.rng
    )
    await _raise_ids(workshop, _next_id(manifest))
    written = await _write_all(client, workshop, workers, BackupFolder(backup), manifest, progress)
    await _compare_all(workshop, manifest)
    for key, value in _in_order(manifest, replicas):
        if key == SETTINGS and await client.store.get(key) is not None:
            # Settings of the new store stay.
            continue
        await _name(client.store, key, value)
    return Restored(
        number=manifest.number,
        ledgers=len(manifest.ledgers),
        written=written,
        length=manifest.length,
        seconds=round(client.clock.monotonic() - begun_s, 3),
    )


async def _take(store: MetadataStore, manifest: StoreManifest) -> None:
    """Begin, or go on. Raises `InvalidRequest` where there is anything but this restoration."""
    wanted = _restoration(manifest, under_way=True)
    await store.sync()
    found = await restoration_in(store)
    if found is not None:
        if not found.of_same_backup(wanted):
            raise FolderMismatch(
                "another backup was being restored into this store: go on with that one, or begin "
                "with a new store"
            )
    elif await _in_use(store, manifest):
        raise InvalidRequest(
            "the store is not empty: restore into a folder that is not there yet, or into a "
            "cluster of bookies alone"
        )
    if await store.children(NODES):
        raise InvalidRequest("nodes run in the cluster: stop them, and start them afterwards")
    await mark_restoration(store, wanted)


def _restoration(manifest: StoreManifest, *, under_way: bool) -> Restoration:
    return Restoration(manifest.cluster_id, manifest.number, manifest.cut_ms, under_way)


async def _compare_all(workshop: Workshop, manifest: StoreManifest) -> None:
    """Compare the ledgers of the store with those of the backup.

    Raises `NoSuchLedger` for one that was deleted meanwhile, `KeyExists` for one that differs.
    """
    for start in range(0, len(manifest.ledgers), _READ_AT_ONCE):
        some = manifest.ledgers[start : start + _READ_AT_ONCE]
        found = await asyncio.gather(*(workshop.ledgers.read(kept.ledger_id) for kept in some))
        for held, kept in zip(found, some, strict=True):
            check_restored(held.metadata, kept)


async def _in_use(store: MetadataStore, manifest: StoreManifest) -> bool:
    if (await store.page(LEDGERS)).numbers or await store.children(SPACES):
        return True
    keys = manifest.keys.keys() - {SETTINGS}
    return any([await store.get(key) is not None for key in sorted(keys)])


def _next_id(manifest: StoreManifest) -> int:
    """Manifests of earlier programs drew theirs before some of the ledgers that they name."""
    return max([manifest.next_id, *(kept.ledger_id + 1 for kept in manifest.ledgers)])


async def _raise_ids(workshop: Workshop, next_id: int) -> None:
    """Draw ids until the new store gives none of the old one's. Many share one sync."""
    drawn = await workshop.ledgers.new_id()
    while drawn < next_id:
        count = min(_IDS_AT_ONCE, next_id - drawn)
        drawn = max(await asyncio.gather(*(workshop.ledgers.new_id() for _ in range(count))))


async def _write_all(
    client: LedgerClient,
    workshop: Workshop,
    workers: Workers,
    folder: BackupFolder,
    manifest: StoreManifest,
    progress: Progress | None,
) -> int:
    """Write every ledger that is not there yet; returns how many."""
    bookies = len(await Bookies(client.store).available())
    done = written = length = 0
    queue: Iterator[KeptLedger] = iter(manifest.ledgers)

    async def work() -> None:
        nonlocal done, written, length
        for kept in queue:
            async with aclosing(_batches(workers, folder, kept)) as batches:
                new = await write_back(workshop, client.settings, bookies, kept, batches)
            written += new
            done += 1
            length += kept.length
            if progress is not None:
                progress(done, len(manifest.ledgers), length)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return written


async def _batches(
    workers: Workers, folder: BackupFolder, kept: KeptLedger
) -> AsyncGenerator[list[bytes], None]:
    """The entries of a ledger's file. The file is closed when this ends, for any reason."""
    path = folder.ledger(kept.ledger_id, kept.last)
    blocks = read_blocks(path, kept.ledger_id, kept.last, kept.length)
    reading: asyncio.Future[list[bytes] | None] | None = None

    def has_read(done: asyncio.Future[list[bytes] | None]) -> None:
        # If the loop itself ends, the thread may still be reading.
        if not done.cancelled():
            blocks.close()

    try:
        while True:
            reading = asyncio.ensure_future(workers.run(partial(next, blocks, None)))
            bodies = await asyncio.shield(reading)
            if bodies is None:
                return
            yield bodies
    finally:
        if reading is None or reading.done():
            blocks.close()
        else:
            # The caller was cancelled. The file cannot be closed until the thread has read.
            reading.add_done_callback(has_read)


def _in_order(manifest: StoreManifest, replicas: int) -> Iterator[tuple[str, bytes]]:
    """The keys, those last that make something be there."""
    facts = {key for key in manifest.keys if _is_fact(key)}
    for key in sorted(manifest.keys.keys() - facts):
        yield key, manifest.keys[key]
    for key in sorted(facts):
        yield key, _fact(manifest.keys[key], replicas)


def _is_fact(key: str) -> bool:
    return key.startswith(SPACES) and "/" not in key.removeprefix(f"{SPACES}/")


def _fact(value: bytes, replicas: int) -> bytes:
    """A tablespace as the new store runs it: its nodes are not those of the old one."""
    fact = decode_space(value)
    expected = (fact.expected or replicas) if replicas else 0
    return encode_fact(msgspec.structs.replace(fact, expected=expected, replicas=(), leader=""))


async def _name(store: MetadataStore, key: str, value: bytes) -> None:
    try:
        await store.create(key, value)
    except KeyExists as error:
        found = await store.get(key)
        if found is None or found.value != value:
            raise KeyExists(
                f"{key} is there already: somebody began to use the store meanwhile; begin with a "
                "new one"
            ) from error

"""The mark of a store that is being restored from a backup, or whose lost metadata are rebuilt.

Invariants:
- While this runs, and after it was interrupted, nobody leads a log of the store, creates a
  tablespace in it, or treats a ledger as garbage: the names of the ledgers are written last.
- Only the command that set the mark removes it. Running the same command again continues it. A
  rebuild puts back the mark that it finds: an earlier program's restore may still need it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from engine.errors import CannotRead, Unavailable
from engine.metadata.contract import MetadataStore, Versioned

MARK: Final = "/restoring"
_NO_BACKUP: Final = 0


class Restoration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The backup that a store is restored from, and whether the restore is still under way.

    Backups are numbered from 1; 0 stands for metadata that are rebuilt from bookies' folders. A
    value of a program without `under_way` reads as a finished restore. `before` is the value that a
    rebuild of metadata found, and puts back at its end.
    """

    cluster_id: str
    number: int
    cut_ms: int
    under_way: bool = False
    before: bytes = b""

    def of_same_backup(self, other: "Restoration") -> bool:
        """Whether both restore the same backup."""
        mine = (self.cluster_id, self.number, self.cut_ms)
        return mine == (other.cluster_id, other.number, other.cut_ms)

    @property
    def command(self) -> str:
        """The command that an operator runs to continue."""
        if self.number == _NO_BACKUP:
            return "python -m engine.bookie rebuild-metadata"
        return "herdbook store restore"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Restoration).decode


async def restoration_in(store: MetadataStore) -> Restoration | None:
    """The mark of a store, or None. Raises `CannotRead`, `MetadataUnavailable`."""
    found = await store.get(MARK)
    return None if found is None else _decoded(found)


async def restoration_under_way(store: MetadataStore) -> bool:
    """Whether a store is being restored. Raises `CannotRead`, `MetadataUnavailable`."""
    found = await restoration_in(store)
    return found is not None and found.under_way


async def check_not_under_way(store: MetadataStore) -> None:
    """Raise `Unavailable` while a store is being restored."""
    found = await restoration_in(store)
    if found is not None and found.under_way:
        raise Unavailable(
            f"this store is being restored: wait until `{found.command}` has finished, or run it "
            "again if it was interrupted"
        )


async def mark_restoration(store: MetadataStore, wanted: Restoration) -> None:
    """Write the mark. Raises `VersionConflict`, `KeyExists`, `MetadataUnavailable`."""
    await _put(store, _encode(wanted))


async def _put(store: MetadataStore, value: bytes) -> None:
    found = await store.get(MARK)
    if found is None:
        await store.create(MARK, value)
    elif found.value != value:
        await store.set(MARK, value, found.version)


@asynccontextmanager
async def rebuilding_metadata(store: MetadataStore) -> AsyncIterator[None]:
    """Mark a store as incomplete until the block ends without an error.

    If a restore is already under way there, its mark is kept. Any other mark is there again at the
    end. Raises `CannotRead`, `MetadataUnavailable`.
    """
    found = await store.get(MARK)
    mark = None if found is None else _decoded(found)
    if mark is not None and mark.under_way and mark.number != _NO_BACKUP:
        yield
        return
    before = b""
    if found is not None and mark is not None:
        before = mark.before if mark.number == _NO_BACKUP else found.value
    wanted = Restoration(store.cluster_id, _NO_BACKUP, 0, under_way=True, before=before)
    await mark_restoration(store, wanted)
    yield
    if before:
        await _put(store, before)
    else:
        await store.delete(MARK)


def _decoded(found: Versioned) -> Restoration:
    try:
        return _decode(found.value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the restore's mark, {MARK}, is damaged: {error}") from error

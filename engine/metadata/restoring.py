"""The mark of a store that is being filled: from a backup, or with its lost metadata.

Invariants:
- While that is under way, or was cut short, nobody leads a log of the store, makes a tablespace in
  it, or takes a ledger for garbage: what names the ledgers is written last.
- Only who fills it ends the mark. A try that was cut short is gone on with by the same command.
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
    """Which backup a store is made of, and whether it is still being written.

    Backups are numbered from 1 on; 0 is for metadata that are made anew from bookies' folders. The
    values of programs that did not know `under_way` read as a restoration that has ended.
    """

    cluster_id: str
    number: int
    cut_ms: int
    under_way: bool = False

    def of_same_backup(self, other: "Restoration") -> bool:
        """Whether both are restorations of one backup."""
        mine = (self.cluster_id, self.number, self.cut_ms)
        return mine == (other.cluster_id, other.number, other.cut_ms)

    @property
    def command(self) -> str:
        """What an operator calls to go on."""
        if self.number == _NO_BACKUP:
            return "python -m engine.bookie rebuild-metadata"
        return "herdbook store restore"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Restoration).decode


async def restoration_in(store: MetadataStore) -> Restoration | None:
    """The mark of a store, None where there is none. Raises `CannotRead`, `MetadataUnavailable`."""
    found = await store.get(MARK)
    return None if found is None else _decoded(found)


async def restoration_under_way(store: MetadataStore) -> bool:
    """Whether a store is being filled. Raises `CannotRead`, `MetadataUnavailable`."""
    found = await restoration_in(store)
    return found is not None and found.under_way


async def check_not_under_way(store: MetadataStore) -> None:
    """Raise `Unavailable` while a store is being filled."""
    found = await restoration_in(store)
    if found is not None and found.under_way:
        raise Unavailable(
            f"this store is being restored: wait until `{found.command}` has ended, or give the "
            "command again if it was cut short"
        )


async def mark_restoration(store: MetadataStore, wanted: Restoration) -> None:
    """Write the mark. Raises `VersionConflict`, `KeyExists`, `MetadataUnavailable`."""
    found, value = await store.get(MARK), _encode(wanted)
    if found is None:
        await store.create(MARK, value)
    elif found.value != value:
        await store.set(MARK, value, found.version)


@asynccontextmanager
async def metadata_made_anew(store: MetadataStore) -> AsyncIterator[None]:
    """Mark a store as incomplete until the block has ended without an error.

    A restoration that is under way there already keeps its mark, and goes on being one. Raises
    `CannotRead`, `MetadataUnavailable`.
    """
    found = await restoration_in(store)
    if found is not None and found.under_way and found.number != _NO_BACKUP:
        yield
        return
    await mark_restoration(store, Restoration(store.cluster_id, _NO_BACKUP, 0, under_way=True))
    yield
    await store.delete(MARK)


def _decoded(found: Versioned) -> Restoration:
    try:
        return _decode(found.value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the mark of a restoration, {MARK}, is damaged: {error}") from error

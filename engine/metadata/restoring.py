"""The mark of a store that a backup is being restored into.

Invariants:
- While a restoration is under way, or was cut short, nobody leads a log of the store, makes a
  tablespace in it or takes a ledger for garbage: what names the ledgers is written last.
- Only the restoration that made the mark ends it, or goes on with it.
"""

from typing import Final

import msgspec

from engine.errors import CannotRead, Unavailable
from engine.metadata.contract import MetadataStore

MARK: Final = "/restoring"


class Restoration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which backup a store is made of, and whether it is still being written.

    The values of programs that did not know `under_way` read as a restoration that has ended.
    """

    cluster_id: str
    number: int
    cut_ms: int
    under_way: bool = False

    def of_same_backup(self, other: "Restoration") -> bool:
        """Whether both are restorations of one backup."""
        return (self.cluster_id, self.number, self.cut_ms) == (
            other.cluster_id,
            other.number,
            other.cut_ms,
        )


encode_restoration = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Restoration).decode


def decode_restoration(value: bytes) -> Restoration:
    """Decode a stored value. Raises `CannotRead`."""
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the mark of a restoration, {MARK}, is damaged: {error}") from error


async def restoration_under_way(store: MetadataStore) -> bool:
    """Whether a backup is being restored into the store. Raises `MetadataUnavailable`."""
    found = await store.get(MARK)
    return found is not None and decode_restoration(found.value).under_way


async def check_not_under_way(store: MetadataStore) -> None:
    """Raise `Unavailable` while a backup is being restored into the store."""
    if await restoration_under_way(store):
        raise Unavailable(
            "a backup is being restored into this store: wait until `herdbook store restore` has "
            "ended, or give the command again if it was cut short"
        )

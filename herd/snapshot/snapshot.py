"""A table as a pinned checkpoint has it: what is small enough to travel with a plan.

    snapshot = open_snapshot(place, application, Wanted("cows"))
    parts = plan(snapshot, conditions)            # where rows are planned
    for batch in read_part(snapshot, parts[0], conditions): ...     # wherever it is read

Invariants:
- One snapshot is one position of the log, however often and wherever it is read.
- What names no row is left where it is: a snapshot does not grow with its table.
"""

import msgspec

from engine.errors import NotFound
from engine.place import Place, held_client
from herd.checkpoint.blobs import read_blob
from herd.checkpoint.manifest import Manifest, ManifestRecord, decode_manifest
from herd.checkpoint.record import CheckpointList
from herd.errors import StorageFailed
from herd.schema import Column, Table
from herd.snapshot.conditions import Condition
from herd.translating import translating


class Snapshot(msgspec.Struct, frozen=True):
    """A table, some of its columns, and the checkpoint that has them."""

    place: Place
    tablespace: str
    record: ManifestRecord
    pin: str
    """The name under which the checkpoint is kept for the application."""
    table: Table
    columns: tuple[Column, ...]
    """Those that are shown."""
    conditions: tuple[Condition, ...] = ()
    """What its rows meet, before any other condition is asked."""

    def at(self, place: Place) -> "Snapshot":
        """The same, reached by another place of the store."""
        return msgspec.structs.replace(self, place=place)


def read_manifest(place: Place, tablespace: str, record: ManifestRecord) -> Manifest:
    """A checkpoint's manifest. Blocks. Raises `StorageFailed`, `LeaderUnavailable`."""
    held = held_client(place)
    with translating():
        try:
            blob = held.run(lambda: read_blob(held.client, record.locator))
        except NotFound as error:
            raise released(place, tablespace, record) or error from None
    return decode_manifest(blob)


def released(place: Place, tablespace: str, record: ManifestRecord) -> StorageFailed | None:
    """What to tell who misses bytes of a checkpoint: it was let go; None if it is kept. Blocks."""
    held = held_client(place)
    kept = held.run(CheckpointList(held.client.store, tablespace, held.client.time).get).kept
    if record in kept:
        return None
    return StorageFailed(
        f"checkpoint {record.number} of tablespace {tablespace} is kept no more",
        hint="its pin has ended: load again",
    )

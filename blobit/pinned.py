"""Which ledgers the pinned checkpoints of a tablespace name: their bytes stay as long as the pins.

Whoever reads a checkpoint's objects in place reads their bytes, too, for as long as that takes. So
what a pinned checkpoint names is not deleted; it dies as ever, and waits.

Invariants:
- A checkpoint has the row of every ledger that its objects lie in: what it does not have it does
  not name, and no clock is asked.
- A checkpoint that cannot be read is taken to name everything.
- A pin is good for what died after its checkpoint was taken and was not yet deleted. The grace of
  dying ledgers covers the moment between a checkpoint and its pin.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec

from engine.errors import EngineError
from engine.expiry import is_over
from engine.ledger.client import LedgerClient
from herd.checkpoint.blobs import read_blob, read_page
from herd.checkpoint.manifest import Manifest, ManifestRecord, Pin, decode_manifest
from herd.checkpoint.record import CheckpointList

if TYPE_CHECKING:
    from herd.schema import Table

_LEDGERS: Final = "ledgers"
_KEY: Final = "ledger_id"
_EVERYTHING: Final = None
"""What a checkpoint names that cannot be read."""


class Holding(msgspec.Struct, frozen=True):
    """A pin that keeps dead ledgers of a tablespace from being deleted."""

    tablespace: str
    pin: Pin
    ledger_ids: tuple[int, ...]


class PinnedCheckpoints:
    """The pinned checkpoints of all tablespaces, each read once. On one event loop."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._named: dict[tuple[str, ManifestRecord], frozenset[int]] = {}

    async def holding(self, tablespace: str, ledger_ids: Collection[int]) -> list[Holding]:
        """The pins that hold some of these ledgers, which are dead, in the order of their names.

        Raises `MetadataUnavailable`, of the engine: then nothing may be deleted.
        """
        if not ledger_ids:
            return []
        client = self._client
        listed = await CheckpointList(client.store, tablespace, client.time).get()
        now_ms = await client.time.earliest_ms()
        records = {record.number: record for record in listed.kept}
        pins = [
            pin
            for pin in listed.pins
            if pin.number in records and not is_over(pin.expires_ms, now_ms)
        ]
        self._forget(tablespace, {records[pin.number] for pin in pins})
        found: list[Holding] = []
        for pin in sorted(pins, key=lambda pin: pin.name):
            named = await self._names(tablespace, records[pin.number])
            held = [one for one in ledger_ids if named is _EVERYTHING or one in named]
            if held:
                found.append(Holding(tablespace, pin, tuple(held)))
        return found

    async def any(self, tablespace: str) -> bool:
        """Whether a checkpoint of it is pinned. Raises `MetadataUnavailable`, of the engine."""
        client = self._client
        listed = await CheckpointList(client.store, tablespace, client.time).get()
        now_ms = await client.time.earliest_ms()
        return any(not is_over(pin.expires_ms, now_ms) for pin in listed.pins)

    async def unpin(self, tablespace: str, name: str) -> bool:
        """Remove a pin; False if there is none of that name. Raises `MetadataUnavailable`."""
        pins = CheckpointList(self._client.store, tablespace, self._client.time)
        if all(pin.name != name for pin in (await pins.get()).pins):
            return False
        await pins.unpin(name)
        return True

    def _forget(self, tablespace: str, pinned: Collection[ManifestRecord]) -> None:
        gone = [key for key in self._named if key[0] == tablespace and key[1] not in pinned]
        for key in gone:
            del self._named[key]

    async def _names(self, tablespace: str, record: ManifestRecord) -> frozenset[int] | None:
        found = self._named.get((tablespace, record))
        if found is None:
            try:
                found = await self._read(record)
            except EngineError:
                return _EVERYTHING
            self._named[tablespace, record] = found
        return found

    async def _read(self, record: ManifestRecord) -> frozenset[int]:
        manifest = decode_manifest(await read_blob(self._client, record.locator))
        table = next((one for one in manifest.tables if one.name == _LEDGERS), None)
        return frozenset() if table is None else await self._ids(manifest, table)

    async def _ids(self, manifest: Manifest, table: "Table") -> frozenset[int]:
        # Only who has pins needs Arrow.
        from herd.arrow import schema_of
        from herd.checkpoint.pages import decode_columns

        columns = [table.column(_KEY)]
        schema = schema_of(columns)
        found: set[int] = set()
        for pages in manifest.pages:
            if pages.table_id != table.id:
                continue
            for page in pages.pages:
                blobs = await read_page(self._client, page)
                found.update(decode_columns(columns, schema, blobs).column(0).to_pylist())
        return frozenset(found)

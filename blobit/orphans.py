"""Ledgers that no row names: their writer ended between writing a row and making the ledger.

A ledger's row is written before the ledger exists, once, and never again. So a ledger that names a
bucket and has no row is dead for ever: nothing that anybody can read lies in it, and no object can
be committed to it, whenever its writer wakes up. Its age is asked for out of politeness alone.

Invariants:
- Only ledgers that say that they belong to a bucket are looked at, never those of objects without a
  bucket, of logs, or of anybody else.
- The rows, and where they are, are asked for after the ledger was seen, the living before the
  dying.
- A ledger whose bucket's rows cannot be read is left alone.
"""

from collections.abc import Awaitable, Callable, Collection

from blobit.errors import DiskFull, MetadataUnavailable
from blobit.ownership import LEDGER_OWNER
from blobit.rows import Rows
from engine.errors import EngineError, NoSuchLedger
from engine.ledger.client import LedgerClient
from engine.metadata.ledgers import LedgerMetadata
from herd.errors import Error

PlaceOf = Callable[[int], Awaitable[str | None]]
"""The tablespace that holds a bucket's rows, by bucket id; None: it is known to have no rows."""
RowsIn = Callable[[str], Awaitable[Rows]]
"""The tables of a tablespace."""


class OrphanScan:
    """Looks for ledgers without a row."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client

    async def find(
        self, known: Collection[int], place_of: PlaceOf, rows_in: RowsIn, now_ms: int, age_ms: int
    ) -> dict[int, int]:
        """Ledgers without a row, at least `age_ms` old, with the ids of the buckets they name.

        Ledgers in `known` have a row, or had one a moment ago. A tablespace that does not answer is
        asked only once, because it may have thousands of ledgers.

        Raises `MetadataUnavailable` of the engine.
        """
        found: dict[int, int] = {}
        silent: set[str | None] = set()
        for ledger_id in await self._client.owners.ledgers_of(LEDGER_OWNER["owner"]):
            if ledger_id in known:
                continue
            metadata = await self._metadata(ledger_id)
            if metadata is None or metadata.created_ms + age_ms > now_ms:
                continue
            bucket_id = int(metadata.custom["bucket"])
            try:
                place = await place_of(bucket_id)
            except (Error, MetadataUnavailable, DiskFull):
                # The tablespace of a bucket cannot be determined for any ledger now.
                return found
            if place in silent:
                continue
            try:
                if place is None or await _has_no_row(await rows_in(place), ledger_id):
                    found[ledger_id] = bucket_id
            except (Error, MetadataUnavailable, DiskFull):
                # It is unknown for now whether the ledger has a row.
                silent.add(place)
        return found

    async def delete(self, ledger_ids: Collection[int]) -> int:
        """Delete them; returns how many are gone. What cannot be reached is left."""
        count = 0
        for ledger_id in ledger_ids:
            try:
                await self._client.delete_ledger(ledger_id)
            except NoSuchLedger:
                pass
            except EngineError:
                continue
            count += 1
        return count

    async def _metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """What is known of a ledger of a bucket; None if it is none, or cannot be read."""
        try:
            metadata = await self._client.ledger_metadata(ledger_id)
        except EngineError:
            return None
        return metadata if is_of_a_bucket(metadata) else None


def is_of_a_bucket(metadata: LedgerMetadata) -> bool:
    """Whether a ledger says that it holds objects of a bucket."""
    custom = metadata.custom
    owned = custom.get("owner") == LEDGER_OWNER["owner"]
    return owned and custom.get("bucket", b"").isdigit()


async def _has_no_row(rows: Rows, ledger_id: int) -> bool:
    if await rows.get("ledgers", (ledger_id,)) is not None:
        return False
    return await rows.get("dying", (ledger_id,)) is None

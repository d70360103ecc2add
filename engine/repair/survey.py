"""Looking at the metadata of all ledgers, a page at a time.

Invariants:
- At most `ledgers_a_page` values are read at once, at most `metadata_reads_a_second` in a second,
  and other work goes on between pages.
- A ledger that was deleted meanwhile is passed over. So is one whose metadata cannot be read, which
  is remembered: whoever asks what all ledgers have in common must ask for those, too.
- An absent metadata store ends the survey.
- What a survey asks for is written only where it is news.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from engine.errors import CannotRead, FormatTooNew, NoSuchLedger
from engine.metadata.ledgers import LedgerMetadata
from engine.metadata.repairs import RepairItem
from engine.repair.outlook import Workshop


async def survey(workshop: Workshop, above: int = -1) -> AsyncIterator[LedgerMetadata]:
    """The metadata of every ledger over an id, ascending. Raises `MetadataUnavailable`.

    Not a snapshot: ledgers come and go meanwhile. `workshop.unreadable` names those that were
    passed over, when the survey is finished and began with the first ledger.
    """
    await workshop.store.sync()
    unreadable: dict[int, str] = {}
    async for ids in workshop.ledgers.pages(above):
        async for page in read_paged(workshop, ids, unreadable):
            for metadata in page:
                yield metadata
    if above < 0:
        workshop.unreadable = unreadable


async def read_paged(
    workshop: Workshop, ledger_ids: Sequence[int], unreadable: dict[int, str]
) -> AsyncIterator[list[LedgerMetadata]]:
    """The metadata of some ledgers, as `read_many` returns them, a page at a time."""
    size = workshop.settings.ledgers_a_page
    for start in range(0, len(ledger_ids), size):
        page = ledger_ids[start : start + size]
        await workshop.reading.spend(len(page))
        yield await read_many(workshop, page, unreadable)


async def read_many(
    workshop: Workshop, ledger_ids: Sequence[int], unreadable: dict[int, str] | None = None
) -> list[LedgerMetadata]:
    """The metadata of some ledgers, without those that are gone or, noted, cannot be read.

    Raises `MetadataUnavailable`.
    """
    noted = {} if unreadable is None else unreadable
    tasks = [asyncio.ensure_future(_read(workshop, ledger_id, noted)) for ledger_id in ledger_ids]
    try:
        found = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return [metadata for metadata in found if metadata is not None]


async def ask_for(workshop: Workshop, ledger_id: int, wanted: RepairItem) -> bool:
    """Queue a ledger unless it is queued for the same already; tell whether that was news.

    Raises `MetadataUnavailable`.
    """
    held = await workshop.queue.read(ledger_id)
    if held is not None and held.item.merged(wanted) == held.item:
        return False
    await workshop.queue.request(ledger_id, wanted)
    return True


async def _read(
    workshop: Workshop, ledger_id: int, unreadable: dict[int, str]
) -> LedgerMetadata | None:
    try:
        return (await workshop.ledgers.read(ledger_id)).metadata
    except NoSuchLedger:
        return None
    except (CannotRead, FormatTooNew) as error:
        unreadable[ledger_id] = str(error)
        return None

"""Where an object lies: which bookies hold which of its bytes, so that work can be sent to them.

Invariants:
- The ranges lie in the object one behind the other and cover all of it.
- Each range's bookies are those of its entries' fragment and stripe, not of the ledger's beginning.
- It is advice: repair may have moved a copy by the time somebody goes there.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import msgspec

from blobit.errors import BlobNotFound, BlobUnreadable
from blobit.object_id import ObjectId
from blobit.ownership import bucket_of
from blobit.reading import Readers
from blobit.streaming import parts_of
from engine.errors import EngineError, NoSuchLedger
from engine.ledger.client import LedgerClient
from engine.metadata.bookies import Bookies
from engine.metadata.ledgers import LedgerMetadata


class Location(msgspec.Struct, frozen=True):
    """A range of an object in bytes, and the bookies that hold it.

    A bookie is named by its address ("tcp:host:port"), or by its id where it has none now: it is
    not running, or runs within its owner's process.
    """

    offset: int
    length: int
    bookies: tuple[str, ...]


async def locations_of(client: LedgerClient, readers: Readers, name: ObjectId) -> list[Location]:
    """Where an object's bytes lie, in their order; neighbours on the same bookies are one range.

    Raises `BlobNotFound`, `BlobUnreadable`.
    """
    found: list[Location] = []
    try:
        addresses = {
            bookie_id: registration.address or bookie_id
            for bookie_id, registration in (await Bookies(client.store).available()).items()
        }
        async with aclosing(_ranges(client, readers, name)) as ranges:
            async for offset, length, bookies in ranges:
                named = tuple(addresses.get(bookie_id, bookie_id) for bookie_id in bookies)
                if found and found[-1].bookies == named:
                    found[-1] = Location(found[-1].offset, found[-1].length + length, named)
                else:
                    found.append(Location(offset, length, named))
    except NoSuchLedger as error:
        raise BlobNotFound(f"object {name}: {error}") from error
    except EngineError as error:
        raise BlobUnreadable(f"object {name}: {error}: ask again later") from error
    return found


async def _ranges(
    client: LedgerClient, readers: Readers, name: ObjectId
) -> AsyncGenerator[tuple[int, int, tuple[str, ...]], None]:
    offset = 0
    metadata: LedgerMetadata | None = None
    async with aclosing(parts_of(readers, name)) as parts:
        async for part in parts:
            if metadata is None or metadata.ledger_id != part.ledger_id:
                metadata = await client.ledger_metadata(part.ledger_id)
                readers.check_owner(part, bucket_of(metadata.custom))
            for length, bookies in _within(metadata, part):
                yield offset, length, bookies
                offset += length


def _within(metadata: LedgerMetadata, part: ObjectId) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The ranges of one part: lengths in bytes, and the bookies' ids."""
    entry_id = part.first_entry
    left_bytes = part.length
    striped = metadata.ensemble_size > metadata.write_quorum
    starts = [fragment.first for fragment in metadata.fragments]
    while entry_id <= part.last_entry:
        last = min([part.last_entry, *(first - 1 for first in starts if first > entry_id)])
        if striped:
            stripe_entries = metadata.stripe_entries
            last = min(last, entry_id - entry_id % stripe_entries + stripe_entries - 1)
        ensemble = metadata.fragment_of(entry_id).ensemble
        length = min((last - entry_id + 1) * part.entry_bytes, left_bytes)
        yield length, tuple(ensemble[index] for index in metadata.write_set(entry_id))
        left_bytes -= length
        entry_id = last + 1

"""A snapshot's rows in parts: which pages each has, and reading one of them.

Invariants:
- Parts together name each page that may have wanted rows once, in the order of keys.
- A page that cannot be read, or has another number of rows than the manifest says, is an error that
  names table and page; it never becomes missing rows.
- At most `_AHEAD` pages are on their way or in hands.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Final

import msgspec
import pyarrow as pa

from engine.carried import Carried, HeldReader, carry, held_reader
from engine.errors import EngineError, NotFound
from engine.ledger.reader import LedgerReader
from engine.place import HeldClient, Place, held_client
from herd.checkpoint.blobs import read_from
from herd.checkpoint.manifest import Locator, Page
from herd.errors import Error, StorageFailed
from herd.snapshot.arrays import page_batch, plain_schema
from herd.snapshot.conditions import Condition, selected
from herd.snapshot.snapshot import Snapshot, read_manifest, released
from herd.translating import translated, translating

_AHEAD: Final = 4
_PART_ROWS: Final = 512 * 1024
_PART_BYTES: Final = 16 * 1024 * 1024


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A page of a part, with its deltas: where they are, its rows, its number within the table."""

    locators: tuple[Locator, ...]
    rows: int
    number: int
    """From 0 on."""

    @property
    def size_bytes(self) -> int:
        """What is fetched for it."""
        return sum(locator.size_bytes for locator in self.locators)


def piece_of(page: Page, number: int) -> Piece:
    """A page as a piece of its table."""
    return Piece(page.locators, page.rows, number)


Part = tuple[Piece, ...]


def plan(snapshot: Snapshot, conditions: Sequence[Condition] = ()) -> list[Part]:
    """All parts with pages that may have rows that meet the conditions; none of an empty table.

    Blocks. Raises `StorageFailed`, `LeaderUnavailable`.
    """
    manifest = read_manifest(snapshot.place, snapshot.tablespace, snapshot.record)
    pages: Sequence[Page] = ()
    for found in manifest.pages:
        if found.table_id == snapshot.table.id:
            pages = found.pages
    wanted = [
        piece_of(page, number)
        for number, page in enumerate(pages)
        if all(condition.may_match(page) for condition in (*snapshot.conditions, *conditions))
    ]
    return list(_grouped(wanted))


def carried_for(place: Place, parts: Sequence[Part]) -> list[Carried]:
    """What a reader of each part needs to know of a cluster, so that it asks bookies alone. Blocks.

    Raises `LeaderUnavailable`, `StorageFailed`.
    """
    if not place.is_cluster:
        return [Carried()] * len(parts)
    held, known = held_client(place), dict[frozenset[int], Carried]()
    found = []
    with translating():
        for part in parts:
            ledgers = frozenset(at.ledger_id for piece in part for at in piece.locators)
            if ledgers not in known:
                known[ledgers] = held.run(partial(carry, held.client, ledgers))
            found.append(known[ledgers])
    return found


def _grouped(pieces: Sequence[Piece]) -> Iterator[Part]:
    part: list[Piece] = []
    rows = size_bytes = 0
    for piece in pieces:
        rows += piece.rows
        size_bytes += piece.size_bytes
        if part and (rows > _PART_ROWS or size_bytes > _PART_BYTES):
            yield tuple(part)
            part, rows, size_bytes = [], piece.rows, piece.size_bytes
        part.append(piece)
    if part:
        yield tuple(part)


def read_part(
    snapshot: Snapshot,
    part: Part,
    conditions: Sequence[Condition] = (),
    carried: Carried = Carried(),  # noqa: B008 (it never changes)
) -> Iterator[pa.RecordBatch]:
    """The rows of a part that meet the conditions, a batch a page, in the order of keys.

    `carried` is what `carried_for` knew; what is missing is asked for. Blocks. Raises
    `StorageFailed` for a page that cannot be read or is kept no more, `LeaderUnavailable` when no
    bookie answers for now.
    """
    conditions = (*snapshot.conditions, *conditions)
    decoding = _Decoding(snapshot, conditions)
    held, pieces = held_reader(snapshot.place, carried), iter(part)
    pages, coming = _Pages(held), deque[tuple[Piece, Future[list[bytes]]]]()
    try:
        for piece in islice(pieces, _AHEAD):
            coming.append((piece, pages.begin(piece)))
        while coming:
            piece, blobs = coming.popleft()
            batch = decoding.page(piece, blobs)
            for later in islice(pieces, 1):
                coming.append((later, pages.begin(later)))
            if batch.num_rows:
                yield batch
    finally:
        for _, one in coming:
            one.cancel()


class _Pages:
    """Fetches pages of one part, whose ledgers are opened once."""

    def __init__(self, held: HeldReader | HeldClient) -> None:
        self._held = held
        self._readers: dict[int, asyncio.Task[LedgerReader]] = {}

    def begin(self, piece: Piece) -> "Future[list[bytes]]":
        """Begin to fetch a page and its deltas."""
        return self._held.begin(partial(self._blobs, piece))

    async def _blobs(self, piece: Piece) -> list[bytes]:
        return await asyncio.gather(*[self._blob(locator) for locator in piece.locators])

    async def _blob(self, locator: Locator) -> bytes:
        opening = self._readers.get(locator.ledger_id)
        if opening is None:
            opened = self._held.client.open_ledger(locator.ledger_id, recover=False)
            opening = self._readers[locator.ledger_id] = asyncio.ensure_future(opened)
            # A waiting caller gets the exception. Perhaps nobody waits any more.
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A page that nobody waits for any more leaves the others their ledger.
        return await read_from(await asyncio.shield(opening), locator)


class _Decoding:
    """Makes batches of pages: rows that meet conditions, with the columns that are shown."""

    def __init__(self, snapshot: Snapshot, conditions: Sequence[Condition]) -> None:
        self._snapshot = snapshot
        self._conditions = conditions
        asked = {condition.column.number: condition.column for condition in conditions}
        for column in snapshot.columns:
            asked.pop(column.number, None)
        self._columns = (*snapshot.columns, *asked.values())
        self._schema = plain_schema(self._columns)
        self._places = {column.number: place for place, column in enumerate(self._columns)}

    def page(self, piece: Piece, blobs: "Future[list[bytes]]") -> pa.RecordBatch:
        """Wait for a page and decode it. Raises `StorageFailed`, `LeaderUnavailable`."""
        table = self._snapshot.table.name
        name = f"page {piece.number} of table {table}"
        try:
            batch = page_batch(self._columns, self._schema, blobs.result())
        except NotFound as error:
            raise _missing(self._snapshot, name, error) from None
        except EngineError as error:
            told = translated(error)
            raise type(told)(f"{name}: {told.message}", hint=told.hint) from None
        except (pa.ArrowException, OSError) as error:
            raise StorageFailed(f"{name} is damaged: {error}") from None
        if batch.num_rows != piece.rows:
            raise StorageFailed(f"{name} is damaged: it has {batch.num_rows} of {piece.rows} rows")
        batch = selected(batch, self._conditions, self._places)
        return batch.select(range(len(self._snapshot.columns)))


def _missing(snapshot: Snapshot, name: str, error: NotFound) -> Error:
    """The checkpoint was let go, which is told as that; else bytes are gone that should not be."""
    try:
        gone = released(snapshot.place, snapshot.tablespace, snapshot.record)
    except EngineError:
        gone = None
    return gone or StorageFailed(f"{name} cannot be read: {error}")

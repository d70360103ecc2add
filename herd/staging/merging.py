"""Staged rows in the order of their keys, whatever tasks they come from, a few blocks at a time.

Blocks are taken in the order of their first keys. What lies before the first key of the next block
is whole: it can go on. So no block is read before it is needed, and which is next is known early.

Invariants:
- Rows come in ascending keys, each once; a key that two of them have is refused.
- What is held is about as many blocks as there are runs, and those that are read ahead.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from operator import itemgetter
from typing import Final

from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.ports.workers import Workers
from herd.checkpoint.blobs import read_from
from herd.checkpoint.manifest import Locator
from herd.errors import UniqueViolation
from herd.rows import Row, row_decoder
from herd.schema import Table
from herd.staging.layout import Block, Pair, Staged, decode_pairs
from herd.staging.registry import open_staged
from herd.transaction import FRESH
from herd.types import returning

_AT_ONCE: Final = (8, 64)
"""At least and at most so many blocks are put among each other at once."""
_AHEAD: Final = 8
_first: Final = itemgetter(0)


class StagedRows:
    """The rows of some tasks."""

    def __init__(
        self,
        client: LedgerClient,
        workers: Workers,
        tablespace: str,
        table: Table,
        parts: Sequence[Staged],
    ) -> None:
        blocks = [block for part in parts for block in part.blocks]
        # Blocks whose keys are not known yet stay in their order.
        self._blocks = sorted(blocks, key=lambda block: block.first_key)
        self._at_once = max(_AT_ONCE[0], min(sum(part.runs for part in parts), _AT_ONCE[1]))
        self._client = client
        self._tablespace = tablespace
        self._workers = workers
        self._table = table
        self._readers: dict[int, LedgerReader] = {}

    async def lists(self, *, ordered: bool = True) -> AsyncGenerator[list[Pair], None]:
        """The rows; not `ordered`: as they were staged, for keys that are not known yet.

        Raises `UniqueViolation`, `CannotRead`, `NoSuchLedger`.
        """
        held: list[Pair] = []
        step = self._at_once
        async with aclosing(self._blobs()) as blobs:
            for start in range(0, len(self._blocks), step):
                some = [await anext(blobs) for _ in self._blocks[start : start + step]]
                after = self._blocks[start + step : start + step + 1]
                limit = after[0].first_key if ordered and after else None
                work = partial(self._merged, held, some, limit, ordered)
                ready, held = await self._workers.run(work)
                if ready:
                    yield ready

    def _merged(
        self, held: list[Pair], blobs: list[bytes], limit: bytes | None, ordered: bool
    ) -> tuple[list[Pair], list[Pair]]:
        """In a thread: what is whole, and what is not yet."""
        rows = held
        for blob in blobs:
            rows += decode_pairs(blob)
        if not ordered:
            return rows, []
        rows.sort(key=_first)
        place = len(rows) if limit is None else bisect_left(rows, limit, key=_first)
        ready = rows[:place]
        if len(set(map(_first, ready))) < place:
            raise self._twice(ready)
        return ready, rows[place:]

    def _twice(self, rows: list[Pair]) -> UniqueViolation:
        place = next(n for n in range(1, len(rows)) if rows[n - 1][0] == rows[n][0])
        shown = shown_key(self._table, rows[place][1])
        return UniqueViolation(
            f"two of the rows to write into {self._table.name} have the primary key {shown}",
            hint="leave one of them out, as dropDuplicates does",
        )

    async def _blobs(self) -> AsyncGenerator[bytes, None]:
        """The blocks' bytes in their order, some read ahead."""
        ahead: deque[asyncio.Task[bytes]] = deque()
        try:
            for block in self._blocks:
                ahead.append(asyncio.create_task(self._read(block)))
                if len(ahead) > _AHEAD:
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _read(self, block: Block) -> bytes:
        return await read_from(await self._reader(block.locator), block.locator)

    async def _reader(self, locator: Locator) -> LedgerReader:
        found = self._readers.get(locator.ledger_id)
        if found is None:
            found = await open_staged(self._client, self._tablespace, locator.ledger_id)
            self._readers[locator.ledger_id] = found
        return found


async def among(
    below: AsyncIterator[list[Pair]],
    above: AsyncIterator[list[Pair]],
    table: Table,
    *,
    replace: bool,
) -> AsyncGenerator[list[Pair], None]:
    """Rows of two ordered streams in one.

    Where both have a key, that of `above` counts if it is to `replace` the other. Raises
    `UniqueViolation` if not.
    """
    old: list[Pair] = await anext(below, [])
    new: list[Pair] = await anext(above, [])
    while old and new:
        limit = min(old[-1][0], new[-1][0])
        old_end = bisect_right(old, limit, key=_first)
        new_end = bisect_right(new, limit, key=_first)
        yield _laid_over(old[:old_end], new[:new_end], table, replace=replace)
        old = old[old_end:] or await anext(below, [])
        new = new[new_end:] or await anext(above, [])
    while old:
        yield old
        old = await anext(below, [])
    while new:
        yield new
        new = await anext(above, [])


def _laid_over(old: list[Pair], new: list[Pair], table: Table, *, replace: bool) -> list[Pair]:
    if not old or not new:
        return old or new
    rows = dict(old)
    if not replace:
        for key, row in new:
            if key in rows:
                raise taken(table, row)
    rows.update(new)
    return sorted(rows.items(), key=_first)


def taken(table: Table, row: bytes) -> UniqueViolation:
    """What is said of a row whose key is there."""
    return UniqueViolation(
        f"{table.name} has a row with the primary key {shown_key(table, row)} already",
        hint="write with upsert to replace it",
    )


def shown_key(table: Table, row: bytes) -> str:
    """The primary key of an encoded row, for people."""

    values: Row = row_decoder(table)(FRESH + row)
    shown = []
    for number in table.primary:
        convert, value = returning(table.by_number[number].type), values[number]
        shown.append(repr(value if convert is None or value is None else convert(value)))
    return ", ".join(shown)

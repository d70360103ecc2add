"""Many rows, worked through on the event loop without keeping it.

    async for row in in_turns(rows):
        ...

A leader that answers nobody for a second loses its lease, so no statement keeps the loop longer
than some hundreds of rows take.

Invariants:
- Others run between two rows, so what was looked at before a row may have changed by then, unless
  a lock keeps it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

ROWS_AT_ONCE: Final = 500
"""So many rows are worked through without letting others run."""


async def in_turns(rows: Iterable[T]) -> AsyncIterator[T]:
    """The rows, one by one, with a pause for others after each `ROWS_AT_ONCE`."""
    left = ROWS_AT_ONCE
    for row in rows:
        if not left:
            await asyncio.sleep(0)
            left = ROWS_AT_ONCE
        left -= 1
        yield row


async def in_parts(rows: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The same in parts of `ROWS_AT_ONCE`, which cost less where a row needs little work."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        yield rows[start : start + ROWS_AT_ONCE]

"""Who waits for the ids of appended entries.

Invariants:
- Of one `append_many` only the last entry has a future: the others cost a place in a list.
"""

import asyncio
from typing import Any

from engine.run import Run


class ManyFuture(asyncio.Future[list[int]]):
    """Resolves with all ids of one `append_many`."""

    count = 0


Waiter = asyncio.Future[Any] | None
"""One entry's future; None for all but the last entry of an `append_many`."""


def resolve(run: Run, waiters: list[Waiter]) -> None:
    """Give each waiting future its id; abandoned ones are passed over."""
    entry_id = run.first
    for future in waiters:
        if future is not None and not future.done():
            if type(future) is ManyFuture:
                future.set_result(list(range(entry_id - future.count + 1, entry_id + 1)))
            else:
                future.set_result(entry_id)
        entry_id += 1

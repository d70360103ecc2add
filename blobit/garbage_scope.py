"""What the parts of a round of collection work with: one bucket, and what is told of it.

Invariants:
- The wall clock is read once, when the round begins: it says how old things are, and never whether
  they may go.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from blobit.bucket_core import BucketCore
from blobit.committing import Committer
from blobit.garbage_report import BucketGarbage
from blobit.garbage_settings import GarbageSettings
from blobit.pinned import PinnedCheckpoints
from blobit.rows import Rows
from blobit.tables import Row
from engine.ledger.client import LedgerClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BucketScope:
    """One bucket in one round."""

    core: BucketCore
    client: LedgerClient
    settings: GarbageSettings
    report: BucketGarbage
    now_ms: int
    dry_run: bool
    pinned: PinnedCheckpoints
    former: tuple[str, ...] = ()
    """The tablespaces where the bucket has lived before."""

    @property
    def bucket_id(self) -> int:
        """Of the bucket."""
        return self.core.bucket_id

    @property
    def committer(self) -> Committer:
        """Changes rows of the bucket's tablespace."""
        return self.core.committer

    @property
    def rows(self) -> Rows:
        """The tables of the bucket's tablespace."""
        return self.core.rows


async def batches(rows: AsyncIterator[Row], size: int) -> AsyncIterator[list[Row]]:
    """Rows, so many at a time."""
    batch: list[Row] = []
    async for row in rows:
        batch.append(row)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def in_batches(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    """The same of what is at hand."""
    return (items[start : start + size] for start in range(0, len(items), size))

"""How a bucket's objects are divided among tasks.

A share is some rows of a page of names, with about as many bytes of content as others; an object
that is bigger than that, and may be split, is shared by several. Where a page tells by its lowest
and highest length how big its objects are, nothing is read for it; else its lengths are.

Invariants:
- All shares together cover every row once, and every byte of an object that is split once.
- The planner holds the lengths of one page at a time, and never a name.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from blobit.object_id import ObjectId
from blobit.snapshot.bucket_snapshot import BucketSnapshot
from blobit.snapshot.names import lengths_of
from blobit.snapshot.wanted import Wanted
from engine.limits import MIB
from herd.checkpoint.manifest import Page
from herd.snapshot.conditions import Condition
from herd.snapshot.parts import Piece, piece_of
from herd.snapshot.snapshot import read_manifest

SHARE_BYTES: Final = 128 * MIB
_ALIKE: Final = 4
"""Objects are alike if the biggest is at most so many times the smallest."""


class Share(msgspec.Struct, frozen=True):
    """What one task reads: `rows` rows of a page from `first` on, or objects by their ids.

    Of an object that is split it reads part `part` of `parts`.
    """

    piece: Piece | None = None
    first: int = 0
    rows: int = 0
    ids: tuple[str, ...] = ()
    part: int = 0
    parts: int = 1

    def ranges(self, length: int, range_bytes: int) -> range:
        """Where the ranges of an object begin that belong to this share, each at a multiple.

        >>> [list(Share(part=part, parts=2).ranges(50, 20)) for part in range(2)]
        [[0], [20, 40]]
        """
        count = -(-length // range_bytes)
        first, end = (count * number // self.parts for number in (self.part, self.part + 1))
        return range(first * range_bytes, end * range_bytes, range_bytes)


class Rows(NamedTuple):
    """Rows side by side, and which part of them, if that is one big object."""

    first: int
    rows: int
    part: int = 0
    parts: int = 1


def plan(snapshot: BucketSnapshot, wanted: Wanted, conditions: Sequence[Condition]) -> list[Share]:
    """The shares of a bucket, of pages that may meet conditions. Blocks.

    Raises `herd.errors.StorageFailed`, `LeaderUnavailable`.
    """
    names = snapshot.names
    manifest = read_manifest(names.place, names.tablespace, names.record)
    number = snapshot.column("length").number
    shares: list[Share] = []
    pages = [one.pages for one in manifest.pages if one.table_id == names.table.id]
    for place, page in enumerate(pages[0] if pages else ()):
        if all(condition.may_match(page) for condition in conditions):
            piece = piece_of(page, place)
            found = _rows_of(snapshot, wanted, page, piece, number)
            shares += [Share(piece, *one[:2], (), *one[2:]) for one in found]
    return shares


def plan_ids(ids: Iterable[str], *, is_split: bool) -> list[Share]:
    """The shares of objects that are named by their ids, as they lie in the ledgers."""
    parsed = sorted(
        (ObjectId.parse(one) for one in ids), key=lambda one: (one.ledger_id, one.first_entry)
    )
    texts = tuple(str(one) for one in parsed)
    return [
        Share(ids=texts[one.first : one.first + one.rows], part=one.part, parts=one.parts)
        for one in divided([one.length for one in parsed], SHARE_BYTES, is_split=is_split)
    ]


def divided(lengths: Sequence[int], share_bytes: int, *, is_split: bool) -> list[Rows]:
    """Rows with objects of these lengths, divided.

    >>> divided([10, 10, 35], 20, is_split=True)[1:]
    [Rows(first=2, rows=1, part=0, parts=2), Rows(first=2, rows=1, part=1, parts=2)]
    """
    found: list[Rows] = []
    first = held_bytes = 0

    def end(row: int) -> None:
        if row > first:
            found.append(Rows(first, row - first))

    for row, length in enumerate(lengths):
        if is_split and length > share_bytes:
            end(row)
            parts = -(-length // share_bytes)
            found += [Rows(row, 1, part, parts) for part in range(parts)]
            first, held_bytes = row + 1, 0
            continue
        if held_bytes and held_bytes + length > share_bytes:
            end(row)
            first, held_bytes = row, 0
        held_bytes += length
    end(len(lengths))
    return found


def _rows_of(
    snapshot: BucketSnapshot, wanted: Wanted, page: Page, piece: Piece, number: int
) -> list[Rows]:
    known = next(((one.lowest, one.highest) for one in page.ranges if one.column == number), None)
    low, high = known if known is not None and known[0] is not None else (0, 2**63)
    if not wanted.content or page.rows * high <= SHARE_BYTES:
        return [Rows(0, page.rows)]
    if high <= min(_ALIKE * low, SHARE_BYTES):
        return divided([high] * page.rows, SHARE_BYTES, is_split=wanted.is_split)
    return divided(lengths_of(snapshot, piece), SHARE_BYTES, is_split=wanted.is_split)

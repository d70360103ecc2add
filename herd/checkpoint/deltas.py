"""Deltas: what changed in a page, and putting it in its place.

A delta is an Arrow stream of one batch, as a page is, with two columns more:

    _place     where the row stands in the page with this delta; NULL: its key is gone
    _before    where its key stood in the page before; NULL: it is new

Rows come first, in the order of their keys, then the keys that are gone, their columns NULL.

Invariants:
- Keys are compared once, by who builds a delta. Readers move rows by their places, all of a page
  at a time: no key is unpacked for it, and nothing is sorted.
- A delta that does not fit its page is damage, never other rows.
- A range over a page and its deltas has every value of both; it may be wider than the rows are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.errors import CannotRead
from engine.log.position import Position
from herd.arrow import KEY, batch_of
from herd.checkpoint.manifest import ColumnRange
from herd.checkpoint.packing import KeyValue, pack
from herd.rows import POSITION_BYTES, stamp
from herd.schema import Table

if TYPE_CHECKING:
    import pyarrow

PLACE: Final = "_place"
BEFORE: Final = "_before"
_MISFIT: Final = "a delta does not fit its page"


class Difference(NamedTuple):
    """What leads from a page to the rows of now."""

    rows: list[KeyValue]
    """New and changed ones."""
    places: list[int]
    befores: list[int | None]
    gone: list[bytes]
    gone_before: list[int]

    @property
    def changes(self) -> int:
        """How many rows a delta of it has."""
        return len(self.rows) + len(self.gone)


def changed_places(rows: Sequence[KeyValue], since: Position) -> list[int]:
    """Where the rows stand that were changed after a position."""
    stamped = stamp(since)
    return [place for place, row in enumerate(rows) if row[1][:POSITION_BYTES] > stamped]


def difference(
    rows: Sequence[KeyValue], changed: Sequence[int], keys: Sequence[bytes] | None
) -> Difference | None:
    """What differs from a page with these keys; None: those of the rows, in their order.

    `changed` are the places of rows that changed since. Returns None if the others are not the
    page's: then it is no page of these rows.
    """
    some = [rows[place] for place in changed]
    if keys is None:
        return Difference(some, [*changed], [*changed], [], [])
    known = {key: place for place, key in enumerate(keys)}
    there = {key for key, _ in rows}
    gone = [place for place, key in enumerate(keys) if key not in there]
    befores = [known.get(key) for key, _ in some]
    held = len(keys) - len(gone) - (len(befores) - befores.count(None))
    if held != len(rows) - len(changed):
        return None
    return Difference(some, [*changed], befores, [keys[place] for place in gone], gone)


def encode_delta(table: Table, found: Difference) -> bytes:
    """A delta of a table's rows."""
    import pyarrow as pa

    batch, gone = batch_of(table, found.rows), len(found.gone)
    arrays = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        none = pa.array(found.gone, array.type) if name == KEY else pa.nulls(gone, array.type)
        arrays.append(pa.concat_arrays([array, none]))
    arrays.append(pa.array([*found.places, *[None] * gone], pa.int32()))
    arrays.append(pa.array([*found.befores, *found.gone_before], pa.int32()))
    names = [*batch.schema.names, PLACE, BEFORE]
    return pack(table, pa.RecordBatch.from_arrays(arrays, names=names))


def order_of(rows: int, deltas: Iterable["pyarrow.RecordBatch"]) -> "pyarrow.Array":
    """Which rows of a page and its deltas, one behind the other, are the page's rows of now.

    Raises `CannotRead` for a delta that does not fit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    order, offset = pa.arange(0, rows), rows
    for delta in deltas:
        place, before = delta.column(PLACE), delta.column(BEFORE)
        put = pa.arange(offset, offset + len(place)).filter(place.is_valid())
        offset += len(place)
        if place.equals(before):
            # No key came or went.
            order = pc.replace_with_mask(order, _mask(place, len(order)), put)
            continue
        rest = order.filter(pc.invert(_mask(before.drop_null(), len(order))))
        is_put = _mask(place.drop_null(), len(rest) + len(put))
        order = pc.replace_with_mask(pa.nulls(len(is_put), pa.int64()), is_put, put)
        order = pc.replace_with_mask(order, pc.invert(is_put), rest)
    return order


def _mask(places: "pyarrow.Array", rows: int) -> "pyarrow.Array":
    """Which rows these are. Raises `CannotRead` for one that is not there, or named twice."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows and len(places):
        raise CannotRead(_MISFIT)
    try:
        mask = pc.scatter(places, places, max_index=rows - 1).is_valid()
    except pa.ArrowIndexError as error:
        raise CannotRead(_MISFIT) from error
    if mask.true_count != len(places):
        raise CannotRead(_MISFIT)
    return mask


def widened(
    old: Sequence[ColumnRange], old_rows: int, new: Sequence[ColumnRange], new_rows: int, rows: int
) -> tuple[ColumnRange, ...]:
    """The ranges of a page of `rows` rows: of one that had `old_rows`, and of `new_rows` changes.

    A column of which either has no range has none. Where some values may be NULL and some not, the
    number of NULLs is only told to be neither none nor all.
    """
    news: Mapping[int, ColumnRange] = {one.column: one for one in new}
    found = []
    for one in old:
        other = news.get(one.column)
        if other is not None:
            nulls = _nulls(one.nulls, old_rows, other.nulls, new_rows, rows)
            if nulls is not None:
                ends = [end for end in (one, other) if end.lowest is not None]
                lowest = min((end.lowest for end in ends), default=None)
                highest = max((end.highest for end in ends), default=None)
                found.append(ColumnRange(one.column, lowest, highest, nulls))
    return tuple(found)


def _nulls(old: int, old_rows: int, new: int, new_rows: int, rows: int) -> int | None:
    if old == new == 0:
        return 0
    if old == old_rows and new == new_rows:
        return rows
    # Of a page of one row "some" cannot be told.
    return min(max(old, new, 1), rows - 1) or None

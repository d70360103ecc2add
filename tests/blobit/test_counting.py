"""The counts of a bucket that takes no changes: it was deleted, or is on its way elsewhere."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from blobit.committing import Change, Effect, Found, _Decided, _Pending
from blobit.counting import (
    SHARES,
    BucketMoved,
    BucketShut,
    Counting,
    all_keys,
    count_row,
    divided,
    frozen,
    is_frozen,
    is_shut,
    shut,
)
from blobit.errors import BlobError
from blobit.tables import Row, RowKey

BUCKET = 7


def test_a_deleted_bucket_stays_shut_if_an_earlier_program_divides_its_quota() -> None:
    for objects, size_bytes in ((0, 0), (10**9, 2**60 // (SHARES + 1))):
        counts = [count_row(BUCKET, number, objects, size_bytes) for number in range(SHARES + 1)]
        rows = [shut(BUCKET, row["number"], row) for row in counts]
        # Programs from before counts were shut divide in the same way.
        for _ in range(3):
            rows = divided(rows)
            assert all(map(is_shut, rows))
        assert not any(map(is_shut, counts))


@pytest.mark.parametrize("whole", [(), (BUCKET,)])
@pytest.mark.parametrize("put_first", [True, False])
@pytest.mark.parametrize(
    ("close", "is_closed", "error"),
    [(frozen, is_frozen, BucketMoved), (shut, is_shut, BucketShut)],
)
async def test_a_bucket_that_is_closed_in_one_transaction_with_a_put_is_closed_afterwards(
    close: Callable[[int, int, Row | None], Row],
    is_closed: Callable[[Row | None], bool],
    error: type[BlobError],
    put_first: bool,
    whole: tuple[int, ...],
) -> None:
    loop, shares = asyncio.get_running_loop(), all_keys(BUCKET)[1:]
    name: RowKey = ("objects", (BUCKET, "cow"))
    closing = Change(tuple(shares), lambda found: Effect(closed(found), True), lambda _: None)
    put = Change((name,), lambda _: Effect({name: {"length": 9}}, True), lambda _: None)

    def closed(found: Found) -> dict[RowKey, Row | None]:
        return {key: close(BUCKET, key[1][1], found[key]) for key in shares}

    pending = [_Pending(one, loop.create_future()) for one in (closing, put)]
    batch = pending[::-1] if put_first else pending
    found: dict[RowKey, Any] = {key: count_row(BUCKET, key[1][1], 3, 300) for key in shares}
    found |= {name: None, all_keys(BUCKET)[0]: count_row(BUCKET, 0)}
    decided = _Decided(batch, found, Counting([name], 3, whole))
    assert all(is_closed(decided.writes[key]) for key in shares)
    decided.answer()
    assert pending[0].answered.result()
    if put_first:
        assert pending[1].answered.result()
        assert sum((decided.writes[key] or {})["objects"] for key in shares) == 3 * SHARES + 1
    else:
        with pytest.raises(error):
            await pending[1].answered

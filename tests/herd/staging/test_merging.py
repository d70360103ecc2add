"""Rows of many runs, cut anywhere, in the order of their keys."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from herd.checkpoint.blobs import BlobWriter
from herd.errors import UniqueViolation
from herd.rows import encode_row
from herd.schema import Column, Table
from herd.staging.layout import Block, Job, Pair, Staged, encode_pairs
from herd.staging.merging import StagedRows, among
from herd.staging.registry import Label
from herd.store import AsyncHerd, open_folder
from herd.types import BIGINT

COW = Table(1, "cow", 1, (Column(0, "id", BIGINT, nullable=False),), (0,), next_column=1)
STAGED = Label(tablespace="default", job=Job("nightly")).metadata
NUMBERS = st.lists(st.integers(0, 60), unique=True)


def pair(number: int, *, old: bool = False) -> Pair:
    return COW.encode_primary((number,)), encode_row([number, old])


async def staged(herd: AsyncHerd, runs: Sequence[Sequence[int]], cut: int) -> Staged:
    """Runs in blocks of so many rows."""
    writer = BlobWriter(await herd.client.create_ledger(metadata=STAGED))
    blocks = []
    for run in runs:
        pairs = [pair(number) for number in sorted(run)]
        for start in range(0, len(pairs), cut):
            some = pairs[start : start + cut]
            blocks.append(Block(some[0][0], len(some), await writer.write(encode_pairs(some))))
    await writer.close()
    rows = sum(map(len, runs))
    return Staged(rows, 0, len(runs), tuple(blocks))


async def merged(herd: AsyncHerd, parts: Sequence[Staged]) -> list[Pair]:
    rows = StagedRows(herd.client, herd.workers, "default", COW, parts)
    async with aclosing(rows.lists()) as lists:
        return [one async for some in lists for one in some]


async def test_rows_of_all_runs_come_once_and_in_order(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        runs = [[5, 1, 90, 40], [2, 3, 4], [], list(range(50, 80)), [41]]
        for cut in (1, 3, 100):
            with patch("herd.staging.merging._AT_ONCE", (1, 2)):
                parts = [await staged(herd, runs[:2], cut), await staged(herd, runs[2:], cut)]
                found = await merged(herd, parts)
            assert found == [pair(number) for number in sorted(chain(*runs))]


async def test_a_key_of_two_runs_is_noticed_wherever_their_blocks_end(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as herd:
        for runs in ([[1, 5], [5, 9]], [[5], [5]], [[1, 2, 5, 6], [3, 4, 5]]):
            for cut in (1, 2, 100):
                with (
                    patch("herd.staging.merging._AT_ONCE", (1, 1)),
                    pytest.raises(UniqueViolation, match="primary key 5"),
                ):
                    await merged(herd, [await staged(herd, runs, cut)])


async def lists_of(numbers: Sequence[int], cut: int, *, old: bool) -> AsyncIterator[list[Pair]]:
    pairs = [pair(number, old=old) for number in sorted(numbers)]
    for start in range(0, len(pairs), cut):
        yield pairs[start : start + cut]


@settings(max_examples=200, deadline=None)
@given(NUMBERS, NUMBERS, st.integers(1, 9), st.integers(1, 9))
def test_new_rows_are_laid_over_old_ones(
    old: list[int], new: list[int], old_cut: int, new_cut: int
) -> None:
    async def laid(*, replace: bool) -> list[Pair]:
        below = lists_of(old, old_cut, old=True)
        above = lists_of(new, new_cut, old=False)
        both = among(below, above, COW, replace=replace)
        return [one async for some in both for one in some]

    wanted = [pair(number, old=number not in new) for number in sorted({*old, *new})]
    assert asyncio.run(laid(replace=True)) == wanted
    if set(old) & set(new):
        with pytest.raises(UniqueViolation):
            asyncio.run(laid(replace=False))
    else:
        assert asyncio.run(laid(replace=False)) == wanted

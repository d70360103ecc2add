"""Deltas of pages: which changes become one, and that nobody who reads them sees other rows."""

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import CannotRead, FormatTooNew
from engine.ledger.client import LedgerClient
from engine.log.position import Position
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from herd.arrow import schema_of
from herd.backup import back_up, check_backup, restore
from herd.catalog import rows_of
from herd.checkpoint.blobs import read_page
from herd.checkpoint.deltas import difference, encode_delta, widened
from herd.checkpoint.manifest import (
    ColumnRange,
    Locator,
    Manifest,
    Page,
    decode_manifest,
    encode_manifest,
)
from herd.checkpoint.order import CHAIN_MAX
from herd.checkpoint.packing import KeyValue
from herd.checkpoint.pages import decode_columns, decode_page, encode_page, keys_of, ranges_of
from herd.checkpoint.reading import CheckpointReader
from herd.checkpoint.streaming import KeptTable
from herd.reading import Want
from herd.rows import encode_row, stamp
from herd.schema import Column, Table
from herd.snapshot.conditions import Condition, Operator, condition_on
from herd.types import BIGINT, TEXT, ColumnType, Kind
from tests.herd.checkpoint.built_here import in_this_process
from tests.herd.checkpoint.test_building import Setup, change, opened, read, taken
from tests.herd.test_backup import empty, rows_in

COLUMNS = (
    Column(0, "id", BIGINT, nullable=False),
    Column(1, "name", TEXT),
    Column(2, "uuid", ColumnType(Kind.UUID)),
    Column(3, "tags", ColumnType(Kind.FLOATS)),
    Column(4, "price", ColumnType(Kind.DECIMAL, 9, 2)),
    Column(5, "doc", ColumnType(Kind.JSON)),
)
TABLE = Table(1, "cow", 1, COLUMNS, (0,), next_column=6)
Rows = dict[int, tuple[int, str | None]]
"""Of ids the moments of their changes, and their names."""
OLD = dict.fromkeys(range(0, 192, 2), "old")
"""One page, nearly full, with room between its keys."""


def only(manifest: Manifest) -> Page:
    """The page of a table that has one."""
    ((page,),) = (one.pages for one in manifest.pages)
    return page


class Asked:
    """Builds here, and counts the pages that are asked for."""

    def __init__(self, setup: Setup) -> None:
        self.pages: list[Page] = []
        setup.checkpointer.build = partial(in_this_process, asked=self.pages.append)


@pytest.mark.parametrize(
    ("put", "remove", "changes", "asked"),
    [
        pytest.param({4: "new", 8: "new"}, range(0), 2, 0, id="updates"),
        pytest.param({5: "new", 8: "new"}, range(0), 2, 1, id="a-new-key"),
        pytest.param({8: "new"}, range(100, 104, 2), 3, 1, id="keys-gone"),
        pytest.param({}, range(1), 1, 1, id="the-first-key-gone"),
        pytest.param({}, range(190, 191), 1, 1, id="the-last-key-gone"),
        pytest.param({-5: "new", 333: "new"}, range(0), 2, 1, id="at-both-ends"),
        pytest.param({51: "new"}, range(50, 51), 2, 1, id="one-for-another"),
    ],
)
async def test_few_changes_of_a_page_become_a_delta_behind_it(
    tmp_path: Path, put: dict[int, str], remove: range, changes: int, asked: int
) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, OLD)
        before = only(await taken(setup))
        counting = Asked(setup)
        await change(setup, put, remove=remove)
        manifest = await taken(setup)
        after = only(manifest)
        assert after.locator == before.locator
        assert [delta.changes for delta in after.deltas] == [changes]
        assert len(counting.pages) == asked
        assert await read(setup, manifest) == {
            key: name for key, name in (OLD | put).items() if key not in remove
        }


async def test_much_that_changed_and_a_long_chain_are_written_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, OLD)
        first = only(await taken(setup))
        await change(setup, dict.fromkeys(range(0, 26, 2), "13 of 96"))
        much = only(await taken(setup))
        assert much.locator != first.locator and much.deltas == ()
        for turn in range(CHAIN_MAX):
            await change(setup, {turn * 2: f"{turn}"})
            chained = only(await taken(setup))
            assert len(chained.deltas) == turn + 1 and chained.locator == much.locator
        await change(setup, {100: "one more"})
        assert only(await taken(setup)).deltas == ()


async def test_all_deltas_of_a_page_together_stay_few(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, OLD)
        await taken(setup)
        await change(setup, dict.fromkeys(range(0, 14, 2), "seven"))
        assert len(only(await taken(setup)).deltas) == 1
        await change(setup, dict.fromkeys(range(100, 112, 2), "six"))
        assert only(await taken(setup)).deltas == ()


async def test_a_page_that_cannot_be_read_is_written_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, OLD)
        await taken(setup)
        await change(setup, {5: "new"})

        async def lost(client: LedgerClient, page: Page) -> list[bytes]:
            raise CannotRead("it is lost")

        with patch("herd.checkpoint.taking.read_page", lost):
            manifest = await taken(setup)
        assert only(manifest).deltas == ()
        assert await read(setup, manifest) == OLD | {5: "new"}


async def test_a_page_whose_deltas_do_not_fit_it_is_written_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        Asked(setup)
        await change(setup, OLD)
        await taken(setup)
        await change(setup, {5: "new"})

        async def twice(client: LedgerClient, page: Page) -> list[bytes]:
            # What is to come behind a page is a delta, and no page.
            return 2 * await read_page(client, page)

        with patch("herd.checkpoint.taking.read_page", twice):
            manifest = await taken(setup)
        assert only(manifest).deltas == ()
        assert await read(setup, manifest) == OLD | {5: "new"}


async def test_a_page_of_other_rows_gets_no_delta(tmp_path: Path) -> None:
    keys = [b"%d" % number for number in range(10)]
    rows = [(key, stamp(Position(1, 1))) for key in keys]
    assert difference(rows, [], keys) is not None
    assert difference(rows, [], keys[1:]) is None
    assert difference(rows, [], [*keys[1:], b"x"]) is None


async def test_ledgers_of_a_few_deltas_are_no_reason_to_write_pages_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, dict.fromkeys(range(3_000), "a manifest of more bytes than a delta"))
        page = (await taken(setup)).pages[0].pages[0].locator
        for turn in range(CHAIN_MAX):
            await change(setup, {0: f"{turn}"})
            manifest = await taken(setup)
            assert manifest.pages[0].pages[0].locator == page
        assert sum(manifest.written.values()) == sum(manifest.ledgers.values())
        assert set(manifest.written) == set(manifest.ledgers)


async def test_ledgers_stay_as_long_as_a_delta_in_them_is_named(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        logs = set(await setup.client.list_ledgers())
        await change(setup, OLD)
        for turn in range(3 * CHAIN_MAX):
            await change(setup, {0: f"{turn}", 2 * turn + 1: "new"})
            manifest = await taken(setup)
            assert (await read(setup, manifest))[0] == f"{turn}"
            named: set[int] = set()
            for record in (await setup.checkpointer.list.get()).kept:
                ledgers = (await setup.checkpointer.manifest(record)).ledgers
                named |= {record.locator.ledger_id, *ledgers}
            assert set(await setup.client.list_ledgers()) - logs == named


async def test_a_ledger_whose_deltas_are_mostly_unused_is_given_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        rows = dict.fromkeys(range(1_000), "old")
        await change(setup, rows)
        await taken(setup)
        await change(setup, dict.fromkeys(range(0, 1000, 20), "new" * 20))
        ledger_id = max((await taken(setup)).ledgers)
        # Seven of its ten deltas are of pages that are written whole now.
        await change(setup, dict.fromkeys(range(700), "much"))
        assert ledger_id in (await taken(setup)).ledgers
        last = await taken(setup)
        assert ledger_id not in last.ledgers
        assert all(page.deltas == () for page in last.pages[0].pages)


@pytest.mark.parametrize("seed", range(4))
async def test_whoever_reads_finds_the_rows_whatever_changed_between_checkpoints(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    rows = {3 * number: "first" for number in range(rng.randint(150, 500))}
    seen = 0
    async with opened(tmp_path) as setup:
        workers = ThreadWorkers(asyncio.get_running_loop())
        reader = CheckpointReader(setup.client, setup.checkpointer, workers)
        await change(setup, rows)
        await taken(setup)
        for turn in range(10):
            put = {
                rng.randrange(-20, 1_600): f"{turn}" for _ in range(rng.choice((1, 4, 12, 12, 300)))
            }
            await change(setup, put)
            rows |= put
            for key in rng.sample(sorted(rows), min(len(rows), rng.choice((0, 2, 6, 200)))):
                await change(setup, {}, remove=range(key, key + 1))
                del rows[key]
            manifest = await taken(setup)
            wanted = dict(sorted(rows.items()))
            assert list((await read(setup, manifest)).items()) == list(wanted.items())
            batches = await reader.table(setup.table, 0)
            assert [id for batch in batches for id in batch.column("id").to_pylist()] == [*wanted]
            await _check_stream(setup, reader, workers, wanted)
            seen += sum(len(page.deltas) for page in manifest.pages[0].pages)
        await workers.close()
    assert seen > 10


async def _check_stream(
    setup: Setup, reader: CheckpointReader, workers: ThreadWorkers, rows: dict[int, str]
) -> None:
    """Names alone, without the keys that deltas are of; and whole keys behind them."""
    opened_one = await reader.open(0)
    kept, names = opened_one.table(setup.table), setup.table.columns[1:]
    for hidden in (False, True):
        want = Want(names, hidden, *rows_of(setup.table))
        batches = await workers.run(partial(_all, kept, want))
        found = [name for batch in batches for name in batch.column("name").to_pylist()]
        assert found == [*rows.values()]
        if hidden:
            plan = setup.space.catalog.plan(setup.table)
            keys = [key for batch in batches for key in batch.column("_key").to_pylist()]
            assert keys == [plan.key_of([id, None]) for id in rows]
    await opened_one.close()


def _all(kept: KeptTable, want: Want) -> list[pa.RecordBatch]:
    return list(kept.batches(want))


async def test_a_backup_has_the_deltas_and_restores_the_rows_of_now(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        setup.space.checkpointer = setup.checkpointer
        workers = ThreadWorkers(asyncio.get_running_loop())
        await change(setup, dict.fromkeys(range(500), "old"))
        await taken(setup)
        await change(setup, {5: "new", 222: "new", 777: "new"}, remove=range(450, 452))
        manifest = await back_up(
            setup.space, setup.client, workers, SystemDisk(tmp_path), "farm.backup"
        )
        assert sum(len(page.deltas) for page in manifest.pages[0].pages) == 3
        assert check_backup(tmp_path / "farm.backup") == manifest
        async with empty(setup, "copy") as copy:
            await restore(copy, workers, tmp_path / "farm.backup")
            assert rows_in(copy) == rows_in(setup.space)
        await workers.close()


async def test_a_damaged_delta_is_an_error_and_never_fewer_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, dict.fromkeys(range(200), "old"))
        await taken(setup)
        await change(setup, {5: "new", 300: "new"}, remove=range(120, 121))
        one, other = (await taken(setup)).pages[0].pages
        at = one.deltas[0].locator
        wrong = msgspec.structs.replace(at, checksum=at.checksum ^ 1)
        flawed = msgspec.structs.replace(one.deltas[0], locator=wrong)
        with pytest.raises(CannotRead, match="checksum"):
            await read_page(setup.client, msgspec.structs.replace(one, deltas=(flawed,)))
        blobs = await read_page(setup.client, other)
        assert decode_page(setup.table, *blobs).num_rows == other.rows == 100


@pytest.mark.parametrize("ids", [[1], [1, 2, 3]])
def test_a_delta_of_another_page_does_not_fit(ids: list[int]) -> None:
    old: tuple[int, str | None] = (0, "a")
    long = dict.fromkeys(range(9), old)
    gone = difference(stored(dict([*long.items()][:-1])), [], [key for key, _ in stored(long)])
    last = difference(stored(long | {8: (1, "b")}), [8], None)
    page = encode_page(TABLE, stored(dict.fromkeys(ids, old)))
    for found in (gone, last):
        assert found is not None
        with pytest.raises(CannotRead, match="does not fit"):
            decode_page(TABLE, page, encode_delta(TABLE, found))


# Rows, pages and deltas alone


def stored(rows: Rows) -> list[KeyValue]:
    """Rows as the state has them."""
    return [
        (
            (id + 2**31).to_bytes(4),
            stamp(Position(1, moment))
            + encode_row([id, name, b"%016d" % id, [id / 2], id, None if id % 3 else f"[{id}]"]),
        )
        for id, (moment, name) in sorted(rows.items())
    ]


NAMES = st.none() | st.text(max_size=70)
CHANGES = st.dictionaries(st.integers(-9, 9), st.sampled_from((False, True)) | NAMES, max_size=9)


@given(st.dictionaries(st.integers(-9, 9), NAMES, min_size=1), st.lists(CHANGES, max_size=4))
def test_a_page_and_its_deltas_are_the_rows_whatever_came_and_went(
    base: dict[int, str | None], turns: list[dict[int, bool | str | None]]
) -> None:
    rows: Rows = {id: (0, name) for id, name in base.items()}
    blobs = [encode_page(TABLE, stored(rows))]
    ranges = ranges_of(TABLE, stored(rows))
    for moment, changes in enumerate(turns, 1):
        keys, before = keys_of(blobs), len(rows)
        for id, name in changes.items():
            if isinstance(name, bool):
                rows.pop(id, None)
            else:
                rows[id] = (moment, name)
        now = stored(rows)
        changed = [place for place, row in enumerate(sorted(rows)) if rows[row][0] == moment]
        found = difference(now, changed, keys)
        assert found is not None
        if not rows or not found.changes:
            return
        blobs.append(encode_delta(TABLE, found))
        ranges = widened(ranges, before, ranges_of(TABLE, found.rows), len(found.rows), len(rows))
        whole = [encode_page(TABLE, now)]
        assert decode_page(TABLE, *blobs).equals(decode_page(TABLE, *whole))
        for column in COLUMNS:
            schema = schema_of([column])
            assert decode_columns([column], schema, blobs).equals(
                decode_columns([column], schema, whole)
            )
        assert keys_of(blobs) == [key for key, _ in now]
        _check_pruning(ranges, {id: name for id, (_, name) in rows.items()})


def _check_pruning(ranges: Sequence[ColumnRange], rows: dict[int, str | None]) -> None:
    """Whatever some row meets, the page may have."""
    page = Page(b"", b"", len(rows), 0, Position(1, 1), tuple(ranges), Locator(1, 0, 1, 0))
    id, name = COLUMNS[0], COLUMNS[1]
    asked: list[Condition | None] = [condition_on(id, Operator.EQUAL, (one,)) for one in rows]
    if None in rows.values():
        asked.append(condition_on(name, Operator.NULL))
    if any(one is not None for one in rows.values()):
        asked.append(condition_on(name, Operator.NULL, negated=True))
    asked += [condition_on(name, Operator.EQUAL, (one,)) for one in rows.values() if one]
    for condition in asked:
        assert condition is not None and condition.may_match(page)


def test_a_column_that_came_between_a_page_and_its_delta_is_filled_where_it_was_not() -> None:
    page = encode_page(TABLE, stored({1: (0, "a"), 2: (0, "b")}))
    late = Column(6, "late", BIGINT, fill=7)
    wider = msgspec.structs.replace(TABLE, columns=(*COLUMNS, late), next_column=7)
    [(key, value)] = stored({2: (1, "c")})
    found = difference([*stored({1: (0, "a")}), (key, value[:-1] + value[-1:])], [1], None)
    assert found is not None
    batch = decode_page(wider, page, encode_delta(wider, found))
    assert batch.column("late").to_pylist() == [7, 7]
    assert batch.column("name").to_pylist() == ["a", "c"]


async def test_a_manifest_with_deltas_is_closed_to_who_knows_none(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        await change(setup, OLD)
        plain = await taken(setup)
        await change(setup, {4: "new"})
        manifest = await taken(setup)
        assert encode_manifest(plain)[:2] == b"\x01\x01"
        blob = encode_manifest(manifest)
        assert blob[:2] == b"\x02\x00" and decode_manifest(blob) == manifest
        with pytest.raises(FormatTooNew):
            decode_manifest(b"\x03" + blob[1:])
        assert decode_manifest(_as_before(plain)).pages[0].pages[0].deltas == ()


def _as_before(manifest: Manifest) -> bytes:
    """A manifest as it was written before there were deltas."""
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(manifest))
    del told["written"]
    for table in told["pages"]:
        table[2] = [page[:7] for page in table[2]]
    return b"\x01\x00" + msgspec.msgpack.encode(told)

"""A process that ends at any step leaves every transaction whole, or not there."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from engine.log.position import Position
from herd.catalog import erasing, stores_to_erase
from herd.checkpoint.blobs import read_page
from herd.checkpoint.manifest import Manifest
from herd.checkpoint.pages import decode_page
from herd.checkpoint.taking import Checkpointer
from herd.keys import DATA
from herd.restoring import fill, pages_in
from herd.schema import Building, Index, Table
from herd.sql import indexing
from herd.tablespace import Tablespace
from tests.herd.checkpoint.built_here import in_this_process
from tests.herd.crashing import Machine, MemoryCopy, at_every_step, until
from tests.herd.spaces import delete, index_is_right, insert, made, rows_of, update
from tests.herd.test_restoring import shown
from tests.simulation.virtual import elapse

EVERY = int(os.environ.get("HERDBOOK_CRASH_EVERY", "3"))
"""1: no step is left out."""
Moment = tuple[Any, Any]
INDEXES = (Index(1, "by_b", (1,)), Index(2, "by_c", (2,), unique=True))


def row(number: int, text: str = "") -> list[Any]:
    """A row of `spaces.PLAIN`."""
    return [number, number % 7, text or f"row {number}"]


# Transactions


class History:
    """A fixed series of transactions, and how everything is after each of them."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.answered = 0

    async def live(self, machine: Machine, space: Tablespace) -> None:
        """All of it, once."""
        machine.count()
        self.answered = 0
        for work in (self._make, self._fill, self._change, self._two, self._truncate, self._drop):
            await work(space)
            self.answered += 1
            # Meanwhile the state is written.
            await elapse(0.02)
            if len(self.moments) < self.answered:
                self.moments.append(shown(space))

    async def _make(self, space: Tablespace) -> None:
        await made(space, "cows", indexes=INDEXES)

    async def _fill(self, space: Tablespace) -> None:
        transaction = space.begin()
        cows = transaction.catalog.table("cows")
        await insert(transaction, cows, *[row(number) for number in range(20)])
        await transaction.commit()

    async def _change(self, space: Tablespace) -> None:
        transaction = space.begin()
        cows = transaction.catalog.table("cows")
        await update(transaction, cows, (3, row(3, "new")), (4, row(104)))
        await delete(transaction, cows, 5, 6)
        await transaction.commit()

    async def _two(self, space: Tablespace) -> None:
        transaction = space.begin()
        catalog, [number] = transaction.catalog.new_ids(1)
        cows = catalog.table("cows")
        bulls = msgspec.structs.replace(cows, id=number, name="bulls", store=number, indexes=())
        transaction.set_catalog(*catalog.with_table(bulls))
        await insert(transaction, bulls, row(1))
        await insert(transaction, cows, row(200))
        await transaction.commit()

    async def _truncate(self, space: Tablespace) -> None:
        transaction = space.begin()
        catalog, [number] = transaction.catalog.new_ids(1)
        cows = catalog.table("cows")
        catalog, changes = catalog.with_table(msgspec.structs.replace(cows, store=number))
        transaction.set_catalog(catalog, [*changes, erasing(cows.store)])
        await insert(transaction, catalog.table("cows"), row(7))
        await transaction.commit()

    async def _drop(self, space: Tablespace) -> None:
        transaction = space.begin()
        bulls = transaction.catalog.table("bulls")
        transaction.set_catalog(*transaction.catalog.without_table(bulls))
        await transaction.commit()


def test_after_a_crash_at_any_step_each_transaction_is_whole_or_not_there() -> None:
    history = History()

    async def after(machine: Machine, space: Tablespace) -> None:
        empty: Moment = ([], {})
        # While the first run goes on, later moments are not known yet.
        moments = [empty, *history.moments][history.answered : history.answered + 2]
        assert shown(space) in moments, "an answered transaction is lost, or one is half there"
        for table in space.catalog.tables.values():
            index_is_right(space, table)
        await settled(space)

    async def whole(machine: Machine, space: Tablespace) -> None:
        assert shown(space) == history.moments[-1]

    assert at_every_step(None, reference(history), whole, every=10_000) == 1
    assert len(history.moments) == 6
    assert at_every_step(None, history.live, after, every=EVERY) > 30


def reference(history: History) -> Callable[[Machine, Tablespace], Any]:
    """A life in which nothing counts."""

    async def live(machine: Machine, space: Tablespace) -> None:
        with patch.object(machine, "count", lambda: None):
            await history.live(machine, space)

    return live


async def settled(space: Tablespace) -> None:
    """Wait until nothing is left to erase: then no row is anybody's but a table's."""
    space._erase()
    await until(lambda: not space.stale_read(stores_to_erase)[0])
    owned = shown(space)[1]
    found, _ = space.stale_read(lambda rows: rows.scan(DATA, None, 100_000))
    assert len(found) == len(owned)


# Checkpoints


@pytest.fixture
def copies() -> Iterator[None]:
    """Checkpoints are built of simulated storages."""
    with patch("herd.checkpoint.building.RocksCopy", MemoryCopy):
        yield


def checkpointer(machine: Machine, space: Tablespace, folder: Any) -> Checkpointer:
    """With pages of a few rows."""
    state: Any = space.replica._state
    return Checkpointer(
        machine.client, "farm", state, machine.workers, folder, page_rows=8, build=in_this_process
    )


async def put(space: Tablespace, numbers: range, text: str) -> None:
    """Rows in place of those with their keys."""
    transaction = space.begin()
    cows = transaction.catalog.table("cows")
    for number in numbers:
        if transaction.get(cows.prefix + cows.encode_primary((number,))) is None:
            await insert(transaction, cows, row(number, f"{text} {number}"))
        else:
            await update(transaction, cows, (number, row(number, f"{text} {number}")))
    await transaction.commit()


async def texts_in(machine: Machine, manifest: Manifest) -> list[str]:
    """The texts of all rows of a checkpoint, in order."""
    found: list[str] = []
    for table, pages in zip(manifest.tables, manifest.pages, strict=True):
        for page in pages.pages:
            batch = decode_page(table, *await read_page(machine.client, page))
            found += batch.column("c").to_pylist()
    return found


class _Taking:
    """Checkpoints, and what each of them has to hold, by its position."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder
        self._turn = 0
        self._wanted: dict[Position, list[str]] = {}

    def _checkpointer(self, machine: Machine, space: Tablespace) -> Checkpointer:
        self._turn += 1
        return checkpointer(machine, space, self._folder / f"{self._turn}")

    async def _take(self, checkpoints: Checkpointer, space: Tablespace) -> None:
        table = space.catalog.table("cows")
        self._wanted[space.replica.position] = [str(one[2]) for one in rows_of(space, table)]
        await checkpoints.take(space.term)

    async def before(self, machine: Machine, space: Tablespace) -> None:
        """One is there already."""
        self._wanted.clear()
        await made(space, "cows", indexes=INDEXES)
        await put(space, range(40), "first")
        await self._take(self._checkpointer(machine, space), space)

    async def doomed(self, machine: Machine, space: Tablespace) -> None:
        """A sweep, a pin, and so many of them that old ones go."""
        await put(space, range(10, 15), "second")
        checkpoints = self._checkpointer(machine, space)
        machine.count()
        await checkpoints.sweep(space.term)
        await checkpoints.list.pin("spark", None, 10**9)
        await self._take(checkpoints, space)
        await put(space, range(5), "third")
        await self._take(checkpoints, space)
        await checkpoints.list.unpin("spark")
        await self._take(checkpoints, space)

    async def after(self, machine: Machine, space: Tablespace) -> None:
        """The next leader reads what is kept, takes others, and leaves no ledger behind."""
        checkpoints = self._checkpointer(machine, space)
        assert await self._check_kept(machine, checkpoints), "there was one already"
        await checkpoints.sweep(space.term)
        await put(space, range(38, 45), "last")
        await self._take(checkpoints, space)
        await checkpoints.list.unpin("spark")
        await self._take(checkpoints, space)
        named = await self._check_kept(machine, checkpoints)
        log = (await space.replica.log.list()).ledgers
        left = set(await machine.client.list_ledgers()) - set(log)
        assert left == named, "a ledger that nobody names stays for ever"

    async def _check_kept(self, machine: Machine, checkpoints: Checkpointer) -> set[int]:
        """Read all that are kept; returns the ledgers that they name."""
        named: set[int] = set()
        for record in (await checkpoints.list.get()).kept:
            manifest = await checkpoints.manifest(record)
            assert await texts_in(machine, manifest) == self._wanted[manifest.position]
            named |= {record.locator.ledger_id, *manifest.ledgers}
        return named


@pytest.mark.usefixtures("copies")
def test_a_crash_at_any_step_of_a_checkpoint_leaves_the_old_or_the_new_one(tmp_path: Any) -> None:
    taking = _Taking(tmp_path)
    assert at_every_step(taking.before, taking.doomed, taking.after, every=EVERY) > 50


# Indexes


def test_an_index_whose_build_ends_at_any_step_is_finished_by_the_next_leader() -> None:
    async def before(machine: Machine, space: Tablespace) -> None:
        await made(space, "cows", indexes=INDEXES[:1])
        await put(space, range(23), "first")

    async def doomed(machine: Machine, space: Tablespace) -> None:
        transaction = space.begin()
        cows = transaction.catalog.table("cows")
        index = Index(2, "by_c", (2,), unique=True, state=Building.BUILDING)
        cows = msgspec.structs.replace(cows, indexes=(*cows.indexes, index), next_index=3)
        transaction.set_catalog(*transaction.catalog.with_table(cows))
        machine.count()
        await transaction.commit()
        building = asyncio.ensure_future(indexing.build(space, cows.id, 2))
        await put(space, range(3, 8), "second")
        await building

    async def after(machine: Machine, space: Tablespace) -> None:
        indexing.builds_of(space)
        await until(lambda: all(one.state is Building.READY for one in indexes_of(space)))
        index_is_right(space, space.catalog.table("cows"))
        await put(space, range(20, 30), "third")
        index_is_right(space, space.catalog.table("cows"))

    with patch.object(indexing, "PAGE_ROWS", 5):
        assert at_every_step(before, doomed, after) > 8


def indexes_of(space: Tablespace) -> tuple[Index, ...]:
    """Those of the table of cows."""
    found: Table = space.catalog.table("cows")
    return found.indexes


# Restorations


@pytest.mark.usefixtures("copies")
def test_a_restoration_that_ends_at_any_step_is_whole_or_leaves_nothing(tmp_path: Any) -> None:
    manifests: list[Manifest] = []
    wanted: list[Moment] = []

    async def before(machine: Machine, space: Tablespace) -> None:
        manifests.clear()
        wanted.clear()
        await made(space, "cows", indexes=INDEXES)
        await put(space, range(40), "first")
        checkpoints = checkpointer(machine, space, tmp_path / "taking")
        manifests.append(await checkpoints.manifest(await checkpoints.take(space.term)))
        wanted.append(shown(space))
        # From here on the tablespace plays the empty one that is restored into.
        transaction = space.begin()
        cows = transaction.catalog.table("cows")
        transaction.set_catalog(*transaction.catalog.without_table(cows))
        await transaction.commit()
        await settled(space)

    async def restore(machine: Machine, space: Tablespace) -> None:
        (manifest,) = manifests
        await fill(space, machine.workers, manifest, pages_in(machine.client, manifest))

    async def doomed(machine: Machine, space: Tablespace) -> None:
        machine.count()
        await restore(machine, space)

    async def after(machine: Machine, space: Tablespace) -> None:
        if space.catalog.names:
            assert shown(space) == wanted[0]
        else:
            await settled(space)
            await restore(machine, space)
            assert shown(space) == wanted[0]
        await settled(space)
        index_is_right(space, space.catalog.table("cows"))
        assert (await made(space, "bulls")).id > space.catalog.table("cows").id

    with patch("herd.restoring._WRITE_BYTES", 200):
        assert at_every_step(before, doomed, after) > 10

"""Upkeep of a running bookie: deleted ledgers' space comes back, beside reads and appends."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.bookie.compaction import CompactionSettings
from engine.bookie.garbage import GarbageSettings
from engine.bookie.index_memory import MemoryIndex
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.bookie.upkeep import Upkeep, UpkeepSettings, start_upkeep
from engine.errors import BookieUnavailable, InvalidRequest
from engine.ledger.keys import key_hash, key_of
from engine.limits import MIB
from engine.metadata.garbage_asks import GarbageAsk, GarbageAsks
from engine.metadata.memory import MemoryStore, MemoryTree
from engine.ports.disk import Space
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.run import Run
from engine.transport.contract import AppendReply, LedgerFacts, ReadReply, ReadRequest, Status
from tests.engine.bookie.yard import body_of, run_of

KEY = key_of(b"")
ALIVE, GONE = 7, 8
ENTRIES = 60
HOUR_S = 3_600.0


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 1_000


class MeteredDisk(SystemDisk):
    """A disk that says how full it is as the test wants."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.free_bytes = 1 << 40

    def space(self) -> Space:
        return Space(1 << 40, self.free_bytes)


class Barn:
    """One bookie with two ledgers, of which the metadata store knows only one."""

    def __init__(
        self, service: BookieService, upkeep: Upkeep, clock: HandClock, disk: MeteredDisk
    ) -> None:
        self.disk = disk
        self.service = service
        self.upkeep = upkeep
        self.clock = clock

    async def append(self, ledger_id: int, run: Run, *, recovery: bool = False) -> Status:
        replied: asyncio.Future[AppendReply] = asyncio.get_running_loop().create_future()
        facts = LedgerFacts(
            ledger_id, 1, 1, 1, 256, key_hash(KEY), 0, {}, 0, (self.service.bookie_id,)
        )
        self.service.append([run], replied.set_result, key=KEY, facts=facts, recovery=recovery)
        return (await replied).status

    async def read(self, ledger_id: int, first: int = 0) -> ReadReply:
        return await self.service.read(ReadRequest(ledger_id, first, ENTRIES * 6, 1 * MIB))

    async def held(self, ledger_id: int) -> list[int]:
        ids: list[int] = []
        while (reply := await self.read(ledger_id, len(ids))).runs:
            assert reply.status is Status.OK
            for run in reply.runs:
                for entry in run.entries():
                    assert entry.body == body_of(ledger_id, entry.entry_id)
                    ids.append(entry.entry_id)
        return ids

    async def collect(self) -> tuple[int, ...]:
        """Two rounds an interval apart, long after the last write."""
        self.clock.now_s += HOUR_S
        assert (await self.upkeep.collect()).buried == ()
        self.clock.now_s += HOUR_S
        return (await self.upkeep.collect()).buried


@asynccontextmanager
async def barn(
    root: Path, index: MemoryIndex, tree: MemoryTree, *, fill: bool = True
) -> AsyncIterator[Barn]:
    workers = ThreadWorkers(asyncio.get_running_loop())
    clock, disk, store = HandClock(), MeteredDisk(root), tree.session()
    service = await BookieService.start(
        disk=disk,
        open_index=lambda: index,
        workers=workers,
        clock=clock,
        rng=random.Random(1),
        store=store,
        settings=BookieSettings(
            segment_bytes=8_192, recent_runs_bytes_max=0, space_check_ms=1, space_known_ms=0
        ),
    )
    settings = UpkeepSettings(GarbageSettings(), CompactionSettings(free_bytes_min=0))
    upkeep = start_upkeep(
        service, disk=disk, workers=workers, clock=clock, store=store, settings=settings
    )
    made = Barn(service, upkeep, clock, disk)
    try:
        if fill:
            await store.create(f"/ledgers/{ALIVE}", b"cow")
            for number in range(ENTRIES):
                assert await made.append(ALIVE, run_of(ALIVE, number, 1)) is Status.OK
                assert await made.append(GONE, run_of(GONE, 6 * number, 6)) is Status.OK
        yield made
    finally:
        await upkeep.close()
        await service.close()
        await store.close()


def segments(root: Path) -> list[str]:
    return sorted(one.name for one in (root / "journal").glob("*.segment"))


async def test_space_of_a_deleted_ledger_comes_back_and_stays_back(tmp_path: Path) -> None:
    index, tree = MemoryIndex(), MemoryTree("meadow")
    async with barn(tmp_path, index, tree) as one:
        before = len(segments(tmp_path))
        assert await one.collect() == (GONE,)
        done = await one.upkeep.compact(major=True)
        assert done.removed and done.kept == () and len(segments(tmp_path)) < before // 2
        assert await one.held(ALIVE) == list(range(ENTRIES))
        assert (await one.read(GONE)).status is Status.DELETED
        assert await one.append(GONE, run_of(GONE, 999, 1)) is Status.DELETED
    async with barn(tmp_path, index, tree, fill=False) as one:
        assert await one.held(ALIVE) == list(range(ENTRIES))
        assert (await one.read(GONE)).status is Status.DELETED
    index = MemoryIndex()
    async with barn(tmp_path, index, tree, fill=False) as one:
        assert not one.service.damaged
        assert await one.held(ALIVE) == list(range(ENTRIES))
        assert (await one.read(GONE)).status is Status.DELETED
        assert await one.append(GONE, run_of(GONE, 999, 1), recovery=True) is Status.DELETED


async def test_a_fence_survives_the_segment_it_was_written_in(tmp_path: Path) -> None:
    index, tree = MemoryIndex(), MemoryTree("meadow")
    async with barn(tmp_path, index, tree) as one:
        assert (await one.service.fence(ALIVE, KEY)).status is Status.OK
        for number in range(ENTRIES, 2 * ENTRIES):
            assert await one.append(GONE, run_of(GONE, 6 * number, 6)) is Status.OK
        assert await one.collect() == (GONE,)
        assert (await one.upkeep.compact(major=True)).removed
    async with barn(tmp_path, MemoryIndex(), tree, fill=False) as one:
        assert await one.append(ALIVE, run_of(ALIVE, ENTRIES, 1)) is Status.FENCED
        assert await one.held(ALIVE) == list(range(ENTRIES))


async def test_reads_and_appends_go_on_while_segments_go(tmp_path: Path) -> None:
    async with barn(tmp_path, MemoryIndex(), MemoryTree("meadow")) as one:
        assert await one.collect() == (GONE,)
        compaction = asyncio.ensure_future(one.upkeep.compact(major=True))
        rounds = 0
        while not compaction.done():
            first = ENTRIES + rounds
            assert await one.append(ALIVE, run_of(ALIVE, first, 1)) is Status.OK
            assert await one.held(ALIVE) == list(range(first + 1))
            rounds += 1
        assert (await compaction).removed and rounds > 2
        assert await one.held(ALIVE) == list(range(ENTRIES + rounds))


async def test_a_full_read_only_bookie_compacts_and_comes_back(tmp_path: Path) -> None:
    async with barn(tmp_path, MemoryIndex(), MemoryTree("meadow")) as one:
        # Less than the reserve that entries may never touch; moves may.
        one.disk.free_bytes = 1 * MIB
        one.clock.now_s += HOUR_S
        assert await one.append(ALIVE, run_of(ALIVE, ENTRIES, 1)) is Status.READ_ONLY
        assert await one.collect() == (GONE,)
        assert (await one.upkeep.compact(major=True)).removed
        assert await one.held(ALIVE) == list(range(ENTRIES))
        one.disk.free_bytes = 1 << 40
        one.clock.now_s += HOUR_S
        while not one.service.writable:
            await one.upkeep.compact()
        assert await one.append(ALIVE, run_of(ALIVE, ENTRIES, 1)) is Status.OK


async def test_too_much_garbage_at_once_waits_for_a_confirmation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = MemoryTree("meadow")
    async with barn(tmp_path, MemoryIndex(), tree) as one:
        await tree.session().delete(f"/ledgers/{ALIVE}")
        assert await one.collect() == ()
        assert one.upkeep.last_garbage is not None and one.upkeep.last_garbage.asks
        assert await one.held(ALIVE) == list(range(ENTRIES))
        name, asks = one.service.bookie_id, GarbageAsks(tree.session())
        assert await asks.all() == {name: GarbageAsk(doomed=2, held=2)}
        assert f"herdbook bookie gc {name} --confirm" in caplog.text
        assert (await one.upkeep.collect()).asks
        assert caplog.text.count("too many to be forgotten") == 1
        assert (await asks.confirm(name)).doomed == 2
        assert (await one.upkeep.collect()).buried == (ALIVE, GONE)
        assert (await one.read(ALIVE)).status is Status.DELETED
        assert await asks.all() == {}
        with pytest.raises(InvalidRequest, match="asks nothing"):
            await asks.confirm(name)


async def test_a_confirmation_outlives_a_restart_before_the_next_round(tmp_path: Path) -> None:
    tree, index = MemoryTree("meadow"), MemoryIndex()
    async with barn(tmp_path, index, tree) as one:
        await tree.session().delete(f"/ledgers/{ALIVE}")
        assert await one.collect() == ()
        await GarbageAsks(tree.session()).confirm(one.service.bookie_id)
    async with barn(tmp_path, index, tree, fill=False) as one:
        # In its first hour, and at the first denial, it knows of nothing that might go.
        assert await one.collect() == (ALIVE, GONE)


async def test_a_question_that_cannot_be_read_is_asked_anew(tmp_path: Path) -> None:
    tree = MemoryTree("meadow")
    async with barn(tmp_path, MemoryIndex(), tree) as one:
        await tree.session().create(f"/garbage/{one.service.bookie_id}", b"moo")
        await tree.session().delete(f"/ledgers/{ALIVE}")
        assert await one.collect() == ()
        asked = await GarbageAsks(tree.session()).all()
        assert asked == {one.service.bookie_id: GarbageAsk(doomed=2, held=2)}


async def test_rounds_come_by_themselves(tmp_path: Path) -> None:
    index, tree = MemoryIndex(), MemoryTree("meadow")
    async with barn(tmp_path, index, tree) as one:
        settings = UpkeepSettings(GarbageSettings(interval_ms=1, quiet_ms=0))
        upkeep = start_upkeep(
            one.service,
            disk=SystemDisk(tmp_path),
            workers=ThreadWorkers(asyncio.get_running_loop()),
            clock=one.clock,
            store=tree.session(),
            settings=settings,
        )
        while upkeep.last_compaction is None:
            one.clock.now_s += 1
            await asyncio.sleep(0)
        await upkeep.close()
        assert (await one.read(GONE)).status is Status.DELETED
        assert upkeep.last_error is None and await one.held(ALIVE) == list(range(ENTRIES))


async def test_upkeep_goes_on_after_an_error_that_nobody_thought_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index, tree = MemoryIndex(), MemoryTree("meadow")
    async with barn(tmp_path, index, tree) as one:
        # RocksDB's errors are plain ones.
        store = FailingStore(tree, Exception("Corruption: block checksum mismatch"))
        settings = UpkeepSettings(GarbageSettings(interval_ms=1, quiet_ms=0))
        upkeep = start_upkeep(
            one.service,
            disk=SystemDisk(tmp_path),
            workers=ThreadWorkers(asyncio.get_running_loop()),
            clock=one.clock,
            store=store,
            settings=settings,
        )
        async with asyncio.timeout(20):
            while upkeep.last_garbage is None or not upkeep.last_garbage.buried:
                one.clock.now_s += 1
                await asyncio.sleep(0)
        await upkeep.close()
        assert store.failed and upkeep.last_garbage.buried == (GONE,)
        assert "garbage collection failed and goes on" in caplog.text
        assert "Corruption" in caplog.text and one.service.failure is None


class FailingStore(MemoryStore):
    """A store of which one call raises what no store raises."""

    def __init__(self, tree: MemoryTree, error: Exception) -> None:
        super().__init__(tree, 99)
        self.failed = False
        self._error = error

    async def sync(self) -> None:
        await super().sync()
        if not self.failed:
            self.failed = True
            raise self._error


async def test_an_index_that_upkeep_cannot_read_stops_the_bookie(tmp_path: Path) -> None:
    index = MemoryIndex()
    async with barn(tmp_path, index, MemoryTree("meadow")) as one:
        broken = Exception("Corruption: block checksum mismatch")

        def fail(above: int, limit: int) -> list[int]:
            raise broken

        index.ledgers = fail  # type: ignore[method-assign]
        with pytest.raises(BookieUnavailable):
            await one.upkeep.collect()
        assert one.service.failure is broken and not one.service.writable
        del index.ledgers

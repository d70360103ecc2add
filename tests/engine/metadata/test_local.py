"""The store in a folder: the contract, and what it keeps over a restart."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.errors import (
    FolderDamaged,
    FolderMismatch,
    FormatTooNew,
    KeyExists,
    MetadataUnavailable,
    VersionConflict,
)
from engine.metadata import facts_format, facts_log
from engine.metadata.contract import MetadataStore
from engine.metadata.local import LocalStore
from engine.metadata.session import AbandonedWrites, TreeSession
from engine.metadata.tree import Put
from engine.ports.disk import AppendFile, Disk
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from tests.engine.metadata.store_contract import Scenario, StoreContract


@asynccontextmanager
async def opened(disk: Disk, seed: int = 1) -> AsyncIterator[LocalStore]:
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        store = await LocalStore.open(disk, workers, random.Random(seed))
        try:
            yield store
        finally:
            await store.close()
    finally:
        await workers.close()


class TestLocalStore(StoreContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.disk = SystemDisk(tmp_path / "metadata")

    def run_with_sessions(self, scenario: Scenario) -> None:
        async def run() -> None:
            async with asyncio.timeout(60), opened(self.disk) as store:

                async def open_session() -> MetadataStore:
                    return store.session()

                await scenario(open_session)

        asyncio.run(run())

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, TreeSession)
        store.expire()


class StuckDisk(SystemDisk):
    """A disk whose syncs wait, once `free` is cleared, until it is set again."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.free = threading.Event()
        self.free.set()

    def open_append(self, name: str, *, create: bool) -> AppendFile:  # type: ignore[override]
        file = super().open_append(name, create=create)
        sync = file.sync

        def wait_and_sync() -> None:
            self.free.wait()
            sync()

        return _Replaced(file, wait_and_sync)


class _Replaced:
    def __init__(self, file: AppendFile, sync: Callable[[], None]) -> None:
        self.write, self.trim, self.close = file.write, file.trim, file.close
        self.begin_sync, self.sync = file.begin_sync, sync


class CountingDisk(SystemDisk):
    """Counts syncs and rewrites; fails those it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.syncs = 0
        self.rewrites = 0
        self.fail_sync = False
        self.full = False

    def open_append(self, name: str, *, create: bool) -> AppendFile:  # type: ignore[override]
        return _CountingFile(self, super().open_append(name, create=create))

    def replace(self, name: str, data: bytes) -> None:
        if self.full:
            raise OSError(28, "no space left on device")
        self.rewrites += 1
        super().replace(name, data)


class _CountingFile:
    def __init__(self, disk: CountingDisk, file: AppendFile) -> None:
        self._disk = disk
        self._file = file

    def write(self, parts: Sequence[bytes], ahead_bytes: int = 0) -> int:
        if self._disk.full:
            self._file.write([b"".join(parts)[:40]])
            raise OSError(28, "no space left on device")
        return self._file.write(parts, ahead_bytes)

    def trim(self) -> None:
        self._file.trim()

    def begin_sync(self) -> None:
        self._file.begin_sync()

    def sync(self) -> None:
        self._disk.syncs += 1
        if self._disk.fail_sync:
            raise OSError(5, "input/output error")
        self._file.sync()

    def close(self) -> None:
        self._file.close()


async def test_all_but_ephemeral_keys_survives_a_restart(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    async with opened(disk, seed=1) as store:
        cluster_id = store.cluster_id
        await store.create("/cows/berta", b"calf")
        await store.set("/cows/berta", b"cow", 0)
        await store.create("/cows/alma", b"sold")
        await store.delete("/cows/alma")
        await store.create("/bookies/a", b"", ephemeral=True)
        number = await store.next_id("/ids/ledger")
    async with opened(disk, seed=2) as store:
        assert store.cluster_id == cluster_id
        assert await store.get("/cows/berta") == (b"cow", 1)
        assert await store.children("/cows") == ["berta"]
        assert await store.children("/bookies") == []
        assert await store.next_id("/ids/ledger") > number
        assert await store.set("/cows/berta", b"old cow", 1) == 2


async def test_two_folders_are_two_clusters(tmp_path: Path) -> None:
    async with (
        opened(SystemDisk(tmp_path / "a"), seed=1) as first,
        opened(SystemDisk(tmp_path / "b"), seed=2) as second,
    ):
        assert first.cluster_id != second.cluster_id


async def test_an_opened_and_closed_store_writes_nothing(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    async with opened(disk) as store:
        await store.create("/cow", b"")
    before = disk.read(facts_log.FILE, 0, 10**6)
    disk.full = True
    async with opened(disk) as store:
        assert await store.get("/cow") == (b"", 0)
    assert disk.read(facts_log.FILE, 0, 10**6) == before


async def test_many_writes_at_once_share_syncs(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    async with opened(disk) as store:
        await store.create("/first", b"")
        disk.syncs = 0
        await asyncio.gather(*(store.create(f"/cows/{n}", b"") for n in range(1_000)))
        # How many gather while the first ones are in the disk is the machine's affair.
        assert disk.syncs <= 250
        disk.syncs = 0
        numbers = await asyncio.gather(*(store.next_id("/ids/ledger") for _ in range(1_000)))
        assert sorted(numbers) == list(range(1, 1_001))
        assert disk.syncs <= 250


async def test_a_value_is_not_seen_before_it_is_durable(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    async with opened(disk) as store:
        await store.create("/cow", b"calf")
        other = store.session()
        setting = asyncio.ensure_future(store.set("/cow", b"cow", 0))
        losing = asyncio.ensure_future(other.set("/cow", b"bull", 0))
        await asyncio.sleep(0)
        assert await other.get("/cow") == (b"calf", 0)
        assert await setting == 1
        with pytest.raises(VersionConflict):
            await losing
        assert await other.get("/cow") == (b"cow", 1)


async def test_a_failed_sync_stops_the_writes_for_good_and_is_not_retried(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    async with opened(disk) as store:
        await store.create("/cow", b"durable")
        disk.fail_sync = True
        disk.syncs = 0
        writes = [store.set("/cow", b"lost", 0), store.create("/bull", b""), store.next_id("/n")]
        for outcome in await asyncio.gather(*writes, return_exceptions=True):
            assert isinstance(outcome, MetadataUnavailable)
        disk.fail_sync = False
        for _ in range(3):
            with pytest.raises(MetadataUnavailable):
                await store.create("/calf", b"")
        with pytest.raises(MetadataUnavailable):
            await store.sync()
        assert await store.get("/cow") == (b"durable", 0)
        assert await store.get("/bull") is None
        assert disk.syncs == 1


async def test_a_full_disk_refuses_writes_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    async with opened(disk) as store:
        await store.create("/cow", b"")
        disk.full = True
        for _ in range(3):
            with pytest.raises(MetadataUnavailable):
                await store.create("/bull", b"")
            assert await store.get("/cow") == (b"", 0)
        disk.full = False
        assert await store.create("/bull", b"later") == 0
    async with opened(disk) as store:
        assert await store.children("") == ["bull", "cow"]


async def test_the_log_is_bounded_by_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_log, "REWRITE_BYTES_MIN", 4_000)
    disk = CountingDisk(tmp_path)
    async with opened(disk) as store:
        await store.create("/kept", b"k" * 1_000)
        await store.create("/cow", b"")
        for version in range(300):
            await store.set("/cow", b"v" * 100, version)
        assert disk.size(facts_log.FILE) < 6_000
        assert 5 < disk.rewrites < 50
    async with opened(disk) as store:
        assert await store.get("/cow") == (b"v" * 100, 300)
        assert await store.get("/kept") == (b"k" * 1_000, 0)


async def test_writes_that_come_during_a_rewrite_are_kept_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_log, "REWRITE_BYTES_MIN", 1_000)
    disk = CountingDisk(tmp_path)

    async def count(store: MetadataStore, key: str) -> None:
        await store.create(key, b"")
        for version in range(40):
            await store.set(key, b"v" * 50, version)

    async with opened(disk) as store:
        await asyncio.gather(*(count(store.session(), f"/cows/{n}") for n in range(20)))
        assert disk.rewrites > 2
    async with opened(disk) as store:
        for n in range(20):
            assert await store.get(f"/cows/{n}") == (b"v" * 50, 40)


async def test_a_cancelled_write_is_abandoned_not_undone(tmp_path: Path) -> None:
    async with opened(SystemDisk(tmp_path)) as store:
        await store.create("/first", b"")
        writing = asyncio.ensure_future(store.create("/cow", b""))
        beside = asyncio.ensure_future(store.create("/bull", b""))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await beside == 0
        with pytest.raises(KeyExists):
            await store.create("/cow", b"")


async def test_a_stuck_cancelled_write_holds_only_reads_of_its_key_in_its_session(
    tmp_path: Path,
) -> None:
    disk = StuckDisk(tmp_path)
    async with opened(disk) as store:
        writer, other = store.session(), store.session()
        await writer.create("/cows/alma", b"")
        disk.free.clear()
        try:
            writing = asyncio.ensure_future(writer.create("/cows/berta", b""))
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            free = [
                asyncio.ensure_future(read)
                for read in (
                    other.get("/cows/berta"),
                    other.children("/cows"),
                    writer.get("/cows/alma"),
                    writer.children("/bulls"),
                )
            ]
            held = [
                asyncio.ensure_future(read)
                for read in (writer.get("/cows/berta"), writer.children("/cows"))
            ]
            for _ in range(10):
                await asyncio.sleep(0)
            assert all(read.done() for read in free)
            assert not any(read.done() for read in held)
        finally:
            disk.free.set()
        assert await asyncio.gather(*free) == [None, ["alma"], (b"", 0), []]
        assert await asyncio.gather(*held) == [(b"", 0), ["alma", "berta"]]


async def test_a_read_does_not_wait_for_a_cancelled_write_longer_than_its_timeout() -> None:
    abandoned = AbandonedWrites[None]()
    writing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    abandoned.add("/cow", writing)
    with pytest.raises(MetadataUnavailable, match="/cow was cancelled"):
        await abandoned.settled("/cow", timeout_s=0)
    writing.set_exception(MetadataUnavailable("lost"))
    await abandoned.settled("/cow")


async def test_close_finishes_the_writes_on_their_way_and_ends_every_session(
    tmp_path: Path,
) -> None:
    disk = SystemDisk(tmp_path)
    async with opened(disk) as store:
        session = store.session()
        writes = [asyncio.ensure_future(session.create(f"/cows/{n}", b"")) for n in range(10)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*writes)
        with pytest.raises(MetadataUnavailable):
            await session.get("/cows/1")
        with pytest.raises(MetadataUnavailable):
            await session.create("/cows/10", b"")
    async with opened(disk) as store:
        assert len(await store.children("/cows")) == 10


async def test_a_queue_that_is_full_makes_writers_wait(tmp_path: Path) -> None:
    async with opened(SystemDisk(tmp_path)) as store:
        value = bytes(2**20)
        await asyncio.gather(*(store.create(f"/big/{n}", value) for n in range(40)))
        assert len(await store.children("/big")) == 40


async def _log_of_three_batches(disk: Disk) -> list[int]:
    """Write a log; returns the offsets of its batches behind the rewritten beginning."""
    offsets = []
    async with opened(disk) as store:
        await store.create("/cows/0", b"0" * 50)
        for n in (1, 2, 3):
            offsets.append(disk.size(facts_log.FILE))
            await store.create(f"/cows/{n}", b"%d" % n * 50)
        offsets.append(disk.size(facts_log.FILE))
    return offsets


async def _assert_refused(disk: Disk, data: bytes, expected: type[Exception]) -> None:
    disk.replace(facts_log.FILE, data)
    with pytest.raises(expected):
        async with opened(disk):
            pass
    assert disk.read(facts_log.FILE, 0, 10**6) == data
    assert disk.names("") == [facts_log.FILE]


async def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    offsets = await _log_of_three_batches(disk)
    whole = disk.read(facts_log.FILE, 0, 10**6)
    for length in range(offsets[2], offsets[3]):
        for tail in (b"", b"\xff" * 64):
            disk.replace(facts_log.FILE, whole[:length] + tail)
            async with opened(disk) as store:
                assert await store.children("/cows") == ["0", "1", "2"]


async def test_a_flipped_bit_in_any_synced_byte_is_damage_and_changes_nothing(
    tmp_path: Path,
) -> None:
    disk = SystemDisk(tmp_path)
    offsets = await _log_of_three_batches(disk)
    whole = disk.read(facts_log.FILE, 0, 10**6)
    for position in range(len(facts_format.MAGIC), offsets[3]):
        if position % 3 and position > 20:
            continue
        data = bytearray(whole)
        data[position] ^= 1 << (position % 8)
        await _assert_refused(disk, bytes(data), FolderDamaged)
    assert offsets[3] < len(whole), "a closed log ends with a mark"


async def test_a_flipped_bit_in_a_log_that_was_just_rewritten_is_damage(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    changes = [Put(f"/cows/{n}", b"moo" * 10, n) for n in range(3)]
    whole, _ = facts_format.encode_file("cluster", changes)
    assert whole.rfind(facts_format.BATCH_MAGIC) > whole.rfind(b"moo"), "a mark is at the end"
    for position in range(len(facts_format.MAGIC), whole.rfind(facts_format.BATCH_MAGIC), 3):
        data = bytearray(whole)
        data[position] ^= 1 << (position % 8)
        await _assert_refused(disk, bytes(data), FolderDamaged)


def test_nothing_is_written_behind_a_sync_that_failed(tmp_path: Path) -> None:
    """Batches that were queued when the sync failed come to the log all the same."""
    disk = CountingDisk(tmp_path)
    log, _ = facts_log.open_log(disk, "cluster")
    log.rewrite([])
    disk.fail_sync = True
    with pytest.raises(OSError):
        log.append([Put("/cow", b"", 0)])
    disk.fail_sync = False
    size, rewrites = disk.size(facts_log.FILE), disk.rewrites
    with pytest.raises(MetadataUnavailable):
        log.append([Put("/bull", b"", 0)])
    with pytest.raises(MetadataUnavailable):
        log.rewrite([])
    assert (disk.syncs, disk.size(facts_log.FILE), disk.rewrites) == (1, size, rewrites)
    log.close()


async def test_an_idle_log_gets_a_mark_so_that_its_last_batch_is_known_to_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.metadata.local._IDLE_MARK_S", 0.0)
    disk = SystemDisk(tmp_path)
    async with opened(disk) as store:
        await store.create("/first", b"")
        await store.create("/second", b"")
        for _ in range(100_000):
            await asyncio.sleep(0)
            if facts_format.decode_file(disk.read(facts_log.FILE, 0, 10**6)).ends_with_mark:
                return
    raise AssertionError("an idle log got no mark")


async def test_a_newer_format_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SystemDisk(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(facts_format, "FORMAT_MAJOR", 2)
        newer, _ = facts_format.encode_file("cluster", [])
    await _assert_refused(disk, newer, FormatTooNew)


async def test_a_newer_minor_format_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SystemDisk(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(facts_format, "FORMAT_MINOR", 7)
        newer, _ = facts_format.encode_file("cluster", [])
    disk.replace(facts_log.FILE, newer)
    async with opened(disk) as store:
        assert store.cluster_id == "cluster"


@pytest.mark.parametrize("data", [b"", b"HERD", b"PNG" * 100])
async def test_another_kind_of_file_is_refused_and_changes_nothing(
    tmp_path: Path, data: bytes
) -> None:
    await _assert_refused(SystemDisk(tmp_path), data, FolderMismatch)


async def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MetadataUnavailable):
        async with opened(SystemDisk(tmp_path / "file" / "metadata")):
            pass

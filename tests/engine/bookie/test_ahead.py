"""Zeros ahead of a segment's end: written where batches are small, and never mistaken."""

import errno
import random
from pathlib import Path

import pytest

from engine.bookie.index import Position
from engine.bookie.scan import Flaw, Found, JournalScan, SegmentScan
from engine.bookie.segment import name_of
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.bookie.tools_check import check_folder
from engine.bookie.tools_folder import BookieFolder
from engine.run import Run
from engine.transport.contract import Status
from tests.engine.bookie.stable import KEY, Stable, append, ask, read, read_all, run_of, turns
from tests.simulation.disk import SimAppendFile

AHEAD_BYTES = 8_000
SETTINGS = BookieSettings(
    index_delay_ms=0, synced_mark_ms=60_000, reserve_bytes=0, ahead_bytes=AHEAD_BYTES
)
SMALL = BookieSettings(
    index_delay_ms=0,
    synced_mark_ms=60_000,
    segment_bytes=2_000,
    reserve_bytes=0,
    ahead_bytes=4_000,
)


async def started(
    settings: BookieSettings = SETTINGS, seed: int = 1
) -> tuple[Stable, BookieService]:
    """A bookie that has just begun, and where it stands."""
    yard = Stable(seed, settings)
    return yard, await yard.start()


async def sealed_at(service: BookieService) -> int:
    """Where the first segment ends, once there is another."""
    entry_id = 0
    while service.storage.journal.active_segment < 2:
        end = service.storage.journal.end.offset
        await append(service, run_of(7, entry_id, entry_id))
        entry_id += 1
    return end


async def test_a_segment_grows_once_for_many_small_batches() -> None:
    yard, service = await started()
    sizes = []
    for entry_id in range(40):
        await append(service, run_of(7, entry_id, entry_id))
        sizes.append(yard.disk.size(name_of(1)))
    end = service.storage.journal.end.offset
    assert sizes[0] > AHEAD_BYTES and len(set(sizes)) == 1 + end // AHEAD_BYTES
    assert sizes[-1] > end


async def test_behind_a_big_batch_nothing_stands_ahead() -> None:
    yard, service = await started()
    await append(service, run_of(7, 0, 0, size=AHEAD_BYTES))
    assert yard.disk.size(name_of(1)) == service.storage.journal.end.offset


async def test_a_segment_that_is_sealed_or_closed_ends_where_its_last_batch_does() -> None:
    yard, service = await started(SMALL)
    sealed = await sealed_at(service)
    assert yard.disk.size(name_of(1)) == sealed
    assert yard.disk.size(name_of(2)) == 2_000
    await service.close()
    assert yard.disk.size(name_of(2)) == service.storage.journal.end.offset


async def test_no_zeros_are_written_on_a_disk_that_is_nearly_full() -> None:
    yard = Stable(settings=SETTINGS)
    yard.disk.total_bytes = 63 * AHEAD_BYTES
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    assert yard.disk.size(name_of(1)) == service.storage.journal.end.offset


async def test_a_disk_that_was_full_gets_no_zeros_any_more() -> None:
    _, service = await started()
    await append(service, run_of(7, 0, 0))
    writer = service.storage.journal._writer
    assert writer._ahead(100, 1_000) == AHEAD_BYTES
    writer._undo(writer.position, True)
    assert writer._ahead(100, 1_000) == 0


@pytest.mark.parametrize("power", [False, True])
async def test_a_journal_goes_on_behind_what_was_written_and_not_behind_the_zeros(
    power: bool,
) -> None:
    yard, service = await started()
    for entry_id in range(5):
        await append(service, run_of(7, entry_id, entry_id))
    assert yard.disk.size(name_of(1)) > AHEAD_BYTES
    service = await yard.crash(power=power)
    assert await read_all(service, 7, 0, 4) == [0, 1, 2, 3, 4]
    await append(service, run_of(7, 5, 5))
    service = await yard.crash(power=power)
    assert await read_all(service, 7, 0, 5) == [0, 1, 2, 3, 4, 5]
    assert not service.damaged
    assert (await read(service, 7, 6, 6)).missing == (6, 6)


async def test_a_last_batch_that_is_torn_amid_zeros_is_cut() -> None:
    yard, service = await started()
    await append(service, run_of(7, 0, 3))
    await append(service, run_of(7, 4, 7))
    end = service.storage.journal.end.offset
    inode = yard.disk._names[name_of(1)]
    inode.data[end - 60 : end] = bytes(60)
    service = await yard.crash()
    assert not service.damaged
    assert await read_all(service, 7, 0, 3) == [0, 1, 2, 3]
    assert (await read(service, 7, 4, 7)).missing == (4, 7)


async def test_a_batch_that_ends_in_zeros_is_whole() -> None:
    yard, service = await started()
    run = Run.pack(7, 0, [bytes(100), bytes(100)], lac=-1, length_before=0)
    await append(service, run)
    service = await yard.crash()
    found = await read(service, 7, 0, 1)
    assert [entry.body for run in found.runs for entry in run.entries()] == [bytes(100)] * 2
    assert not service.damaged


async def test_whatever_a_power_loss_leaves_nothing_acknowledged_is_lost() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        yard, service = await started(seed=seed)
        entries = 0
        for _ in range(4):
            for _ in range(rng.randint(1, 12)):
                last = entries + rng.randint(0, 2)
                size = rng.choice([1, 40, 40, 3_000])
                await append(service, run_of(7, entries, last, size=size))
                entries = last + 1
            service = await yard.crash(power=rng.random() < 0.8)
            assert not service.damaged, seed
        found = await read(service, 7, 0, entries - 1)
        held = sum(run.count for run in found.runs)
        assert held == entries, seed


async def test_behind_a_seal_no_zeros_come_back() -> None:
    for seed in range(20):
        yard, service = await started(SMALL, seed)
        sealed = await sealed_at(service)
        await yard.crash()
        assert yard.disk.size(name_of(1)) == sealed, seed


async def test_a_segment_that_is_sealed_before_a_doubtful_batch_keeps_no_zeros() -> None:
    yard, service = await started()
    await append(service, run_of(7, 0, 0))
    await append(service, run_of(7, 1, 1))
    end = service.storage.journal.end.offset
    service = await yard.crash(power=False)
    # Nothing shows that the last batch was synced: it is written again, in another segment.
    assert service.storage.journal.active_segment == 2
    assert yard.disk.size(name_of(1)) == end
    assert await read_all(service, 7, 0, 1) == [0, 1]


async def test_a_roll_that_cannot_cut_the_zeros_off_goes_back_to_the_very_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard, service = await started(SMALL)
    await append(service, run_of(7, 0, 0))
    end = service.storage.journal.end

    def full(file: SimAppendFile) -> None:
        raise OSError(errno.ENOSPC, "simulated: a copy-on-write disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SimAppendFile, "trim", full)
        refused = await append(service, run_of(7, 1, 2, size=1_000))
        assert refused.status is Status.READ_ONLY
    assert service.storage.journal.end == end and yard.disk.size(name_of(1)) == end.offset
    assert yard.segments() == [name_of(1).rpartition("/")[2]]
    assert (await service.fence(7, KEY)).status is Status.OK
    service = await yard.crash()
    assert await read_all(service, 7, 0, 0) == [0]
    assert not service.damaged


async def test_zeros_at_the_end_of_a_sealed_segment_are_damage() -> None:
    yard, service = await started(SMALL)
    sealed = await sealed_at(service)
    whole = SegmentScan(yard.disk, 1, service.identity.salt)
    assert all(isinstance(found, Found) for found in whole.records())
    yard.disk._names[name_of(1)].data[whole.marked :] = bytes(sealed - whole.marked)
    scan = SegmentScan(yard.disk, 1, service.identity.salt)
    flaws = [found for found in scan.records() if isinstance(found, Flaw)]
    assert flaws and flaws[-1].offset + flaws[-1].size_bytes == sealed


async def test_a_torn_batch_amid_zeros_is_told_as_torn_and_not_as_a_problem() -> None:
    torn = 0
    for seed in range(40):
        yard, service = await started(seed=seed)
        await append(service, run_of(7, 0, 3))
        yard.disk.lose_power_after = 1
        ask(service, run_of(7, 4, 7, size=600))
        await turns()
        yard.disk.lose_power()
        folder = BookieFolder(Path("nowhere"), yard.disk, service.identity, "")
        report = check_folder(folder)
        assert not report.problems, seed
        torn += any("torn tail" in note for note in report.notes)
    assert torn > 5


async def test_a_look_at_a_journal_takes_the_zeros_for_no_damage() -> None:
    yard, service = await started()
    for entry_id in range(3):
        await append(service, run_of(7, entry_id, entry_id))
    end = service.storage.journal.end
    scan = JournalScan(yard.disk, end)
    assert not [found for found in scan.records() if isinstance(found, Flaw)]
    assert not scan.torn and scan.size_bytes == {1: end.offset}


async def test_a_look_at_a_journal_misses_what_became_zeros() -> None:
    yard, service = await started()
    for entry_id in range(3):
        await append(service, run_of(7, entry_id, entry_id))
    end = service.storage.journal.end
    inode = yard.disk._names[name_of(1)]
    inode.data[200:] = bytes(len(inode.data) - 200)
    scan = JournalScan(yard.disk, Position(1, end.offset))
    assert [found for found in scan.records() if isinstance(found, Flaw)]

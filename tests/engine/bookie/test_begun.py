"""Batches that are begun, so that several disks work beside each other, and synced in order."""

import errno
import random

import pytest

from engine.bookie.index import Position
from engine.bookie.job import Job
from engine.bookie.segment import FOLDER, RECORD_HEADER_BYTES, name_of
from engine.bookie.segment_writer import SegmentWriter, Tail
from engine.bookie.settings import BookieSettings
from engine.ports.disk import Space
from tests.engine.bookie.stable import StillClock, run_of
from tests.simulation.disk import SimDisk

SETTINGS = BookieSettings(segment_bytes=2_000, reserve_bytes=0, ahead_bytes=0)


class Desk:
    """A disk, and a writer that has written one batch."""

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self.disk = SimDisk(random.Random(1), total_bytes=total_bytes)
        self.disk.make_folder(FOLDER)
        tail = Tail(0, 0, roll=False)
        self.writer = SegmentWriter(self.disk, StillClock(), SETTINGS, "b" * 32, 7, tail)
        self.entry_id = 0
        self.writer.work([self.job()])

    def job(self, size: int = 100) -> Job:
        """A job of one run that follows the last one."""
        job = Job(lambda job: None, [run_of(7, self.entry_id, self.entry_id, size=size)])
        self.entry_id += 1
        return job

    @property
    def size_bytes(self) -> int:
        return self.disk.size(name_of(1))


def test_a_batch_that_was_begun_is_written_once_and_counts_after_its_sync() -> None:
    desk, before = Desk(), Desk().writer.position
    job = desk.job()
    desk.writer.begin([job])
    assert desk.writer.position == before and desk.size_bytes > before.offset
    size_bytes, operations = desk.size_bytes, desk.disk.operations
    outcome = desk.writer.work([job])
    assert outcome.end == desk.writer.position == Position(1, size_bytes)
    assert desk.disk.operations == operations + 1, "one sync, and nothing else"
    assert job.offsets == [before.offset + RECORD_HEADER_BYTES] and not outcome.refused
    assert len(outcome.syncs_s) == 1


def test_what_comes_after_a_begun_batch_stands_behind_it() -> None:
    desk = Desk()
    first, second = desk.job(), desk.job()
    desk.writer.begin([first])
    desk.writer.work([first])
    desk.writer.work([second])
    assert second.offsets[0] > first.offsets[0]
    assert desk.writer.position.offset == desk.size_bytes


def test_a_sync_of_a_begun_batch_that_fails_ends_the_writer_for_good() -> None:
    desk = Desk()
    job = desk.job()
    desk.writer.begin([job])
    desk.disk.fail_after = 0
    with pytest.raises(OSError, match="sync failed"):
        desk.writer.work([job])
    operations = desk.disk.operations
    desk.writer.begin([desk.job()])
    with pytest.raises(OSError, match="sync failed"):
        desk.writer.work([desk.job()])
    assert desk.disk.operations == operations


def test_a_write_that_fails_when_it_is_begun_is_told_by_the_work_and_not_tried_again() -> None:
    desk = Desk()
    job = desk.job()
    desk.disk.fail_after = 0
    desk.writer.begin([job])
    operations = desk.disk.operations
    with pytest.raises(OSError, match="write failed"):
        desk.writer.work([job])
    assert desk.disk.operations == operations


def test_a_batch_that_meets_a_full_disk_when_it_is_begun_is_cut_off_and_refused() -> None:
    desk = Desk(total_bytes=1 << 40)
    before, operations = desk.writer.position, desk.disk.operations
    # There was much room, so nobody has looked since: the disk is found full in the middle.
    desk.disk.total_bytes = desk.size_bytes + 50
    job = desk.job()
    desk.writer.begin([job])
    assert desk.size_bytes == before.offset and desk.disk.operations > operations
    assert desk.writer.work([job]).refused and job.refused
    assert desk.size_bytes == before.offset and desk.writer.position == before
    desk.disk.total_bytes = 1 << 40
    again = desk.job()
    again.epoch = 1
    desk.writer.begin([again])
    assert not desk.writer.work([again]).refused and len(again.offsets) == 1


def test_a_roll_a_mark_and_the_first_batch_are_left_to_the_work() -> None:
    desk = Desk()
    operations = desk.disk.operations
    mark = Job(lambda job: None)
    mark.mark = True
    desk.writer.begin([mark])
    desk.writer.begin([desk.job(1_900)])
    assert desk.disk.operations == operations
    fresh = SegmentWriter(desk.disk, StillClock(), SETTINGS, "b" * 32, 7, Tail(1, 0, roll=True))
    fresh.begin([desk.job()])
    assert desk.disk.operations == operations


def test_a_disk_that_cannot_tell_its_room_when_a_batch_begins_ends_the_writer() -> None:
    desk = Desk()
    job = desk.job()

    def unreadable() -> Space:
        raise OSError(errno.EIO, "simulated: statvfs failed")

    desk.disk.space = unreadable  # type: ignore[method-assign]
    desk.writer.begin([job])
    with pytest.raises(OSError, match="statvfs failed"):
        desk.writer.work([job])


def test_a_job_that_came_behind_a_begun_batch_is_written_too() -> None:
    desk = Desk()
    first, second = desk.job(), desk.job()
    desk.writer.begin([first])
    outcome = desk.writer.work([first, second])
    assert second.offsets[0] > first.offsets[0]
    assert outcome.end.offset == desk.size_bytes and len(outcome.syncs_s) == 2

"""Writing segments: what the journal's thread does with a batch.

Invariants:
- A batch is one write and one sync; offsets are noted in its jobs before either.
- What was begun is synced by the call of `work` that follows, before anything else is written.
- What was refused for want of room was never synced and is cut off; what was queued behind it, and
  stood on it, is refused too.
- Zeros that stand ahead of the newest segment's end say nothing: they are written where batches
  are small, so that the next ones only fill what the file system has already given. Before a
  segment is sealed they are gone, durably. Where the disk is nearly full, or was once, there are
  none.
"""

import errno
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from engine.bookie.index import Position
from engine.bookie.job import Job
from engine.bookie.segment import (
    FOLDER,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_batch,
    encode_record,
    encode_run,
    encode_segment_header,
    name_of,
    seed_of,
    synced_record,
)
from engine.bookie.settings import BookieSettings
from engine.limits import MIB
from engine.ports.clock import Clock
from engine.ports.disk import AppendFile, Disk, Space

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_SPACE_NEAR_BYTES: Final = 4 * 1024 * MIB
"""With less than this above the reserve, every batch looks at the disk."""
_BIG_SHARE: Final = 8
_SPARE_SHARE: Final = 64
"""Zeros go ahead of batches of up to an eighth of them, while the disk has room for 64 times."""


class Tail(NamedTuple):
    """Where the journal goes on: `segment` 0 means a new folder, `roll` a new segment at once."""

    segment: int
    offset: int
    roll: bool


class _DiskFull(Exception):
    """No room for a batch, and nothing of it was synced."""


def _full_or(error: OSError) -> Exception:
    return _DiskFull() if error.errno in _FULL else error


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What the loop hears of a batch; `space` if the disk was asked, `syncs_s` what each took."""

    end: Position
    space: Space | None
    refused: bool
    syncs_s: list[float]


class _Begun(msgspec.Struct, frozen=True, gc=False):
    """A batch of so many jobs that is written and not synced."""

    jobs: int
    number: int
    end: int
    rolled: bool


class SegmentWriter:
    """The thread's side: files, offsets, rolls. Nothing of it is touched by the loop meanwhile."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        settings: BookieSettings,
        bookie_id: str,
        salt: int,
        tail: Tail,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._settings = settings
        self._bookie_id = bookie_id
        self._salt = salt
        self._segment, self._offset, self._must_roll = tail
        self._batch = 0
        self._seed = seed_of(salt, self._segment)
        self._file: AppendFile | None = None
        self._refused_epoch = -1
        self._refused = False
        self._asked: Space | None = None
        self._asked_at_s = 0.0
        self._left_bytes = 0
        self._ahead_bytes = settings.ahead_bytes
        self._failure: BaseException | None = None
        self._begun: _Begun | None = None
        self._syncs_s: list[float] = []

    @property
    def position(self) -> Position:
        """The end of all that is durable."""
        return Position(self._segment, self._offset)

    def begin(self, jobs: list[Job]) -> None:
        """Write jobs and let the disk begin with them; `work` on the same jobs is to follow.

        Whatever is out of the ordinary is left to `work` from the start, which also raises what
        failed here.
        """
        if self._failure is not None:
            return
        assert self._begun is None
        before = self.position
        self._asked = None
        try:
            size_bytes = sum(job.size_bytes for job in jobs)
            if self._is_ordinary(jobs, size_bytes):
                self._begun = self._put(jobs, size_bytes)
                assert self._file is not None
                self._file.begin_sync()
        except _DiskFull:
            self._give_back(before)
        except BaseException as error:
            self._failure = error

    def _give_back(self, before: Position) -> None:
        try:
            self._undo(before, must_roll=False)
        except BaseException as error:
            self._failure = error

    def _is_ordinary(self, jobs: list[Job], size_bytes: int) -> bool:
        total = RECORD_HEADER_BYTES + size_bytes
        return (
            0 < size_bytes <= self._settings.journal_batch_bytes_max
            and self._file is not None
            and not self._must_roll
            and self._offset + total <= self._settings.segment_bytes
            and not any(job.epoch <= self._refused_epoch and not _alone(job) for job in jobs)
            and self._free_bytes(size_bytes) >= self._settings.reserve_bytes
        )

    def work(self, jobs: list[Job]) -> Outcome:
        """Write jobs, sync, and note in each where it lies. Raises the first failure for ever."""
        if self._failure is not None:
            raise self._failure
        self._refused = False
        if self._begun is None:
            self._asked = None
        try:
            if self._begun is not None:
                begun, self._begun = self._begun, None
                self._sync(begun)
                jobs = jobs[begun.jobs :]
            self._write_all(jobs)
        except BaseException as error:
            self._failure = error
            raise
        syncs_s, self._syncs_s = self._syncs_s, []
        end = Position(self._segment, self._offset)
        return Outcome(end, self._asked, self._refused, syncs_s)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            if self._failure is None:
                # Of the newest segment zeros that stay say nothing; the next start cuts them off.
                with suppress(OSError):
                    self._file.trim()
            self._file.close()
            self._file = None

    def _write_all(self, jobs: list[Job]) -> None:
        batch: list[Job] = []
        size_bytes = 0
        for job in jobs:
            if job.epoch <= self._refused_epoch and not _alone(job):
                job.refused = self._refused = True
                continue
            if batch and size_bytes + job.size_bytes > self._settings.journal_batch_bytes_max:
                self._write_or_refuse(batch, size_bytes)
                batch, size_bytes = [], 0
                if job.epoch <= self._refused_epoch and not _alone(job):
                    job.refused = self._refused = True
                    continue
            batch.append(job)
            size_bytes += job.size_bytes
        if batch:
            self._write_or_refuse(batch, size_bytes)

    def _write_or_refuse(self, batch: list[Job], size_bytes: int) -> None:
        if not size_bytes and (self._must_roll or not any(job.mark for job in batch)):
            # A segment that began with a mark would seal off what is still to be written again.
            return
        full = self._free_bytes(size_bytes) < self._settings.reserve_bytes
        if full and any(job.runs for job in batch):
            batch = self._refuse_entries(batch)
            size_bytes = sum(job.size_bytes for job in batch)
            if not size_bytes:
                return
        segment, offset, must_roll = self._segment, self._offset, self._must_roll
        try:
            self._sync(self._put(batch, size_bytes))
        except _DiskFull:
            self._undo(Position(segment, offset), must_roll)
            records = self._refuse_entries(batch) if any(job.runs for job in batch) else []
            if records:
                self._write_or_refuse(records, sum(job.size_bytes for job in records))
            else:
                self._refuse(batch)

    def _free_bytes(self, size_bytes: int) -> int:
        """What is left on the disk after so many bytes more.

        The disk is asked only when it may matter: a question costs a batch two changes of the
        interpreter's lock.
        """
        now_s = self._clock.monotonic()
        left_bytes = self._left_bytes - size_bytes
        known_s = self._settings.space_known_ms / 1000
        near = left_bytes < self._settings.reserve_bytes + _SPACE_NEAR_BYTES
        if near or now_s - self._asked_at_s >= known_s:
            self._asked = self._disk.space()
            self._asked_at_s = now_s
            left_bytes = self._asked.free_bytes - size_bytes
        self._left_bytes = left_bytes
        return left_bytes

    def _refuse(self, batch: list[Job]) -> None:
        self._refused_epoch = max(job.epoch for job in batch)
        self._refused = True
        for job in batch:
            job.refused = True

    def _refuse_entries(self, batch: list[Job]) -> list[Job]:
        """Refuse jobs with entries; returns the others, for which the reserve is kept.

        A record tells of its ledger as it is, and stands on no entry: no fence or fact says less
        because a run before it was turned down. An empty job that waits for those before it would.
        """
        self._refuse([job for job in batch if not job.records or job.runs])
        return [job for job in batch if not job.refused]

    def _undo(self, before: Position, must_roll: bool) -> None:
        """After a write met a full disk, and before any sync: cut off what it left."""
        self._ahead_bytes = 0
        self.close()
        if self._segment != before.segment:
            self._disk.remove(name_of(self._segment))
            self._disk.sync_folder(FOLDER)
        elif before.segment and not must_roll:
            # What is to be rolled away from has a batch behind its end that is nowhere else yet.
            self._disk.truncate(name_of(before.segment), before.offset)
        # What was to be rolled away from still is; a roll for want of room is only tried again.
        self._must_roll = must_roll
        self._segment, self._offset = before
        self._seed = seed_of(self._salt, self._segment)

    def _put(self, batch: list[Job], size_bytes: int) -> _Begun:
        total = RECORD_HEADER_BYTES + size_bytes
        parts: list[bytes] = []
        fits = self._offset + total <= self._settings.segment_bytes
        goes_on = fits and self._file is not None and not self._must_roll
        rolled = not goes_on and self._roll(total, parts)
        wall_ms = self._clock.wall_ms()
        start = SEGMENT_HEADER_BYTES if rolled else self._offset
        # In a new segment nothing is synced yet, its header included.
        synced = 0 if rolled else start
        number = self._batch + 1
        if size_bytes:
            count = 0
            for job in batch:
                count += len(job.runs) + len(job.records)
            parts.append(encode_batch(number, synced, wall_ms, total, count, self._seed, start))
        else:
            parts.append(encode_record(synced_record(number, synced, wall_ms), self._seed, start))
        end = self._encode(batch, parts, start + RECORD_HEADER_BYTES)
        assert end == start + total
        assert self._file is not None
        try:
            self._file.write(parts, self._ahead(total, end))
        except OSError as error:
            raise _full_or(error) from error
        return _Begun(len(batch), number, end, rolled)

    def _sync(self, begun: _Begun) -> None:
        """Whatever a sync says, "full" included, it leaves the file in a state nobody knows."""
        assert self._file is not None
        begun_s = self._clock.monotonic()
        self._file.sync()
        if begun.rolled:
            self._disk.sync_folder(FOLDER)
        self._syncs_s.append(self._clock.monotonic() - begun_s)
        self._batch, self._offset = begun.number, begun.end

    def _trim(self, file: AppendFile) -> None:
        try:
            file.trim()
        except OSError as error:
            raise _full_or(error) from error

    def _ahead(self, total: int, end: int) -> int:
        """How many zeros go ahead if the segment has to grow; beside a big batch they are dear."""
        ahead_bytes = self._ahead_bytes
        spare_bytes = self._left_bytes - self._settings.reserve_bytes
        if total > ahead_bytes // _BIG_SHARE or spare_bytes < _SPARE_SHARE * ahead_bytes:
            return 0
        return max(0, min(ahead_bytes, self._settings.segment_bytes - end))

    def _encode(self, batch: list[Job], parts: list[bytes], offset: int) -> int:
        seed, segment, put = self._seed, self._segment, parts.append
        for job in batch:
            job.segment = segment
            # What an attempt that met a full disk noted is void.
            job.offsets.clear()
            note = job.offsets.append
            for record in job.records:
                note(offset)
                put(encode_record(record, seed, offset))
                put(record.head)
                put(record.body)
                offset += RECORD_HEADER_BYTES + len(record.head) + len(record.body)
            for run in job.runs:
                note(offset)
                table, body = run.table, run.body
                put(encode_run(run, seed, offset))
                put(table)
                put(body)
                offset += RECORD_HEADER_BYTES + len(table) + len(body)
        return offset

    def _roll(self, total: int, parts: list[bytes]) -> bool:
        """Open the file to write to; tell whether it is a new one, whose header is now in parts."""
        fits = self._offset + total <= self._settings.segment_bytes
        if self._segment and fits and not self._must_roll:
            if self._file is None:
                name = name_of(self._segment)
                assert self._disk.size(name) == self._offset
                self._file = self._disk.open_append(name, create=False)
            return False
        header = SegmentHeader(
            self._bookie_id, self._salt, self._segment + 1, self._segment, self._offset
        )
        if self._file is not None:
            # Durable before the header that seals it: behind a seal nothing stands ahead.
            self._trim(self._file)
        self.close()
        self._segment += 1
        self._seed = seed_of(self._salt, self._segment)
        try:
            self._file = self._disk.open_append(name_of(self._segment), create=True)
        except OSError as error:
            self._segment -= 1
            self._seed = seed_of(self._salt, self._segment)
            raise _full_or(error) from error
        parts.append(encode_segment_header(header))
        self._must_roll = False
        return True


def _alone(job: Job) -> bool:
    """Records alone stand on nothing that was queued before them."""
    return bool(job.records) and not job.runs

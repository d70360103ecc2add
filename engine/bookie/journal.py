"""The journal: the one place where a bookie's data is written.

Jobs queue on the event loop; one thread writes all that is queued at once, syncs once, and the loop
hears of the whole batch at once. While the thread is in the disk, the next batch gathers.

Invariants:
- A job is settled without an error only when all its records are durable, and in the order put.
- A failed write or sync ends the journal for good; nothing is tried again, nothing acknowledged.
- A disk found full before anything was lost is no failure: jobs with entries are turned down, and
  with them all entries that were queued behind them, so that nobody stands on what was not written.
  Records alone, fences above all, are still written while the disk takes them.
- A new segment's name is durable before its first record is acknowledged.
- While anything is to be written again, no mark opens a segment: it would seal that off.
- The queue is bounded in bytes: who puts more is told beforehand by `has_room`.
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from engine.bookie.index import Position
from engine.bookie.measures import BookieMeasures
from engine.bookie.segment import (
    FOLDER,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentHeader,
    batch_record,
    encode_record,
    encode_run,
    encode_segment_header,
    name_of,
    seed_of,
    synced_record,
)
from engine.bookie.settings import BookieSettings
from engine.errors import BookieUnavailable, Overloaded
from engine.limits import MIB
from engine.ports.clock import Clock
from engine.ports.disk import AppendFile, Disk, Space
from engine.ports.workers import Workers
from engine.run import Run

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_JOB_BYTES: Final = 512
"""What a job costs in memory beside its bytes, so that empty ones are bounded too."""
_URGENT_SHARE: Final = 8
_SPACE_NEAR_BYTES: Final = 4 * 1024 * MIB
"""With less than this above the reserve, every batch looks at the disk."""


class Tail(NamedTuple):
    """Where the journal goes on: `segment` 0 means a new folder, `roll` a new segment at once."""

    segment: int
    offset: int
    roll: bool


class Job:
    """Runs of one request, or other records, on their way to the disk.

    Settled: `error` is None and `segment` and `offsets` say where each record and, behind those,
    each run begins; or
    `refused` says that the disk is full; or `error` says why nothing more will be written.
    """

    __slots__ = (
        "epoch",
        "error",
        "mark",
        "offsets",
        "records",
        "refused",
        "runs",
        "segment",
        "settle",
        "size_bytes",
    )

    def __init__(
        self,
        settle: "Callable[[Job], None]",
        runs: Sequence[Run] = (),
        records: Sequence[Record] = (),
    ) -> None:
        self.settle = settle
        self.runs = runs
        self.records = records
        self.segment = 0
        self.offsets: list[int] = []
        self.refused = False
        self.error: BaseException | None = None
        self.epoch = 0
        self.mark = False
        size_bytes = 0
        for run in runs:
            size_bytes += RECORD_HEADER_BYTES + len(run.table) + len(run.body)
        for record in records:
            size_bytes += record.size_bytes
        self.size_bytes = size_bytes


class Journal:
    """The loop's side.

    `on_records` hears of each job with records that became durable, just before it is settled, so
    that the index never covers a position without what is before it; `on_batch` hears of each
    batch after its jobs are settled; `on_failure` of the first failure before its jobs are.
    """

    def __init__(
        self,
        writer: "SegmentWriter",
        workers: Workers,
        settings: BookieSettings,
        on_records: Callable[[Job], None],
        on_batch: Callable[[Position, Space | None], None],
        on_failure: Callable[[BaseException], None],
        measures: BookieMeasures,
    ) -> None:
        self.queued_bytes = 0
        self.failure: BaseException | None = None
        self.end = writer.position
        self._writer = writer
        self._settings = settings
        self._on_records = on_records
        self._on_batch = on_batch
        self._on_failure = on_failure
        self._measures = measures
        self._epoch = 0
        self._loop = asyncio.get_running_loop()
        self._idle: asyncio.TimerHandle | None = None
        self._marked = True
        self._closing = False
        lone_ms = settings.lone_sync_ms
        self._batcher = workers.batcher("journal", writer.work, self._done, lone_ms=lone_ms)

    @property
    def active_segment(self) -> int:
        """The segment that is written now; never to be removed."""
        return self.end.segment

    def has_room(self, size_bytes: int, *, urgent: bool = False) -> bool:
        """Whether so many bytes may be put now; the last eighth of the room is for urgent ones."""
        room = self._settings.journal_queue_bytes_max
        room -= 0 if urgent else room // _URGENT_SHARE
        # A quiet journal takes any request.
        return not self.queued_bytes or self.queued_bytes + size_bytes <= room

    def put(self, job: Job) -> None:
        """Queue a job; `job.settle(job)` is called on the loop when its fate is known."""
        assert self.failure is None and not self._closing
        job.epoch = self._epoch
        self.queued_bytes += job.size_bytes + _JOB_BYTES
        self._batcher.put(job)

    async def append_records(self, records: Sequence[Record]) -> list[Position]:
        """Make records durable; returns where each begins.

        They go past the bound of the queue, which is for entries: only small records belong here.
        Raises `BookieUnavailable`, and `Overloaded` if the disk is full.
        """
        if self.failure is not None or self._closing:
            raise BookieUnavailable("the bookie has stopped") from self.failure
        settled: asyncio.Future[None] = self._loop.create_future()
        job = Job(_wake(settled), records=records)
        self.put(job)
        await settled
        if job.error is not None:
            raise BookieUnavailable("the bookie has stopped") from job.error
        if job.refused:
            raise Overloaded("the bookie's disk is full")
        return [Position(job.segment, offset) for offset in job.offsets]

    async def barrier(self) -> None:
        """Wait until all that is queued now is durable. Raises `BookieUnavailable`."""
        try:
            await self.append_records(())
        except Overloaded:
            # What was queued before was turned down, so it is nowhere: that is settled too.
            return

    async def close(self) -> None:
        """Write what is queued and a synced mark, then end the thread."""
        if self.failure is None and not self._closing and self.queued_bytes:
            # In one batch with other records a mark would say nothing: it has to follow them.
            try:
                await self.barrier()
            except BookieUnavailable:
                pass
        if self._idle is not None:
            self._idle.cancel()
        if not self._closing:
            if self.failure is None and not self._marked:
                self._put_mark()
            self._closing = True
        await self._batcher.close()
        self._writer.close()

    def _done(self, jobs: list[Job], result: "Outcome | None", error: BaseException | None) -> None:
        written = size_bytes = 0
        for job in jobs:
            size_bytes += job.size_bytes
            self.queued_bytes -= job.size_bytes + _JOB_BYTES
            written += not job.mark
        assert self.queued_bytes >= 0
        if error is not None:
            if self.failure is None:
                self.failure = error
                self._on_failure(error)
            for job in jobs:
                job.error = error
        elif result is not None:
            if result.refused:
                # Only what is put from now on may be written: all before stood on these jobs.
                self._epoch += 1
            self.end = result.end
            if written:
                self._marked = False
                self._rest()
        for job in jobs:
            if job.records and job.error is None and not job.refused:
                self._on_records(job)
            job.settle(job)
        if result is not None:
            self._measures.written(len(jobs), size_bytes, result.syncs_s)
            self._on_batch(result.end, result.space)

    def _rest(self) -> None:
        """Say in the journal, once it has been quiet for a while, that all of it is synced."""
        if self._idle is None and not self._closing:
            delay_s = self._settings.synced_mark_ms / 1000
            self._idle = self._loop.call_later(delay_s, self._mark)

    def _mark(self) -> None:
        self._idle = None
        if self.failure is not None or self._closing:
            return
        if self.queued_bytes:
            self._rest()
        elif not self._marked:
            self._put_mark()

    def _put_mark(self) -> None:
        job = Job(_ignore)
        job.mark = True
        self._marked = True
        self.put(job)


def _wake(settled: "asyncio.Future[None]") -> Callable[[Job], None]:
    def wake(job: Job) -> None:
        if not settled.done():
            settled.set_result(None)

    return wake


def _ignore(job: Job) -> None:
    """A synced mark has nobody who waits for it."""


class _DiskFull(Exception):
    """No room for a batch, and nothing of it was synced."""


def _full_or(error: OSError) -> Exception:
    return _DiskFull() if error.errno in _FULL else error


class Outcome(NamedTuple):
    """What the loop hears of a batch; `space` if the disk was asked, `syncs_s` what each took."""

    end: Position
    space: Space | None
    refused: bool
    syncs_s: list[float]


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
        self._asked: Space | None = None
        self._asked_at_s = 0.0
        self._left_bytes = 0
        self._failure: BaseException | None = None
        self._syncs_s: list[float] = []

    @property
    def position(self) -> Position:
        """The end of all that is durable."""
        return Position(self._segment, self._offset)

    def work(self, jobs: list[Job]) -> Outcome:
        """Write jobs, sync, and note in each where it lies. Raises the first failure for ever."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._work(jobs)
        except BaseException as error:
            self._failure = error
            raise

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _work(self, jobs: list[Job]) -> Outcome:
        batch: list[Job] = []
        size_bytes = 0
        refused = False
        self._asked = None
        for job in jobs:
            if self._stands_on_refused(job):
                job.refused = refused = True
                continue
            if batch and size_bytes + job.size_bytes > self._settings.journal_batch_bytes_max:
                self._write_or_refuse(batch, size_bytes)
                batch, size_bytes = [], 0
                if self._stands_on_refused(job):
                    job.refused = refused = True
                    continue
            batch.append(job)
            size_bytes += job.size_bytes
        if batch:
            self._write_or_refuse(batch, size_bytes)
        refused = refused or any(job.refused for job in jobs)
        syncs_s, self._syncs_s = self._syncs_s, []
        return Outcome(self.position, self._asked, refused, syncs_s)

    def _stands_on_refused(self, job: Job) -> bool:
        """Records alone stand on nothing that was queued before them."""
        alone = job.records and not job.runs
        return job.epoch <= self._refused_epoch and not alone

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
        before, must_roll = self.position, self._must_roll
        try:
            self._write(batch, size_bytes)
        except _DiskFull:
            self._undo(before, must_roll)
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
        self.close()
        self._file = None
        if self._segment != before.segment:
            self._disk.remove(name_of(self._segment))
            self._disk.sync_folder(FOLDER)
        elif before.segment:
            self._disk.truncate(name_of(before.segment), before.offset)
        # What was to be rolled away from still is; a roll for want of room is only tried again.
        self._must_roll = must_roll
        self._segment, self._offset = before
        self._seed = seed_of(self._salt, self._segment)

    def _write(self, batch: list[Job], size_bytes: int) -> None:
        total = RECORD_HEADER_BYTES + size_bytes
        parts: list[bytes] = []
        rolled = self._roll(total, parts)
        wall_ms = self._clock.wall_ms()
        start = SEGMENT_HEADER_BYTES if rolled else self._offset
        # In a new segment nothing is synced yet, its header included.
        synced = 0 if rolled else start
        number = self._batch + 1
        if size_bytes:
            count = sum(len(job.runs) + len(job.records) for job in batch)
            header = batch_record(number, synced, wall_ms, total, count)
        else:
            header = synced_record(number, synced, wall_ms)
        parts.append(encode_record(header, self._seed, start))
        end = self._encode(batch, parts, start + RECORD_HEADER_BYTES)
        assert end == start + total
        assert self._file is not None
        try:
            self._file.write(parts)
        except OSError as error:
            raise _full_or(error) from error
        # Whatever a sync says, "full" included, it leaves the file in a state nobody knows.
        begun_s = self._clock.monotonic()
        self._file.sync()
        if rolled:
            self._disk.sync_folder(FOLDER)
        self._syncs_s.append(self._clock.monotonic() - begun_s)
        self._offset = end
        self._batch = number

    def _encode(self, batch: list[Job], parts: list[bytes], offset: int) -> int:
        seed, segment, put = self._seed, self._segment, parts.append
        for job in batch:
            job.segment = segment
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
                self._file = self._disk.open_append(name_of(self._segment), create=False)
            return False
        header = SegmentHeader(
            self._bookie_id, self._salt, self._segment + 1, self._segment, self._offset
        )
        self.close()
        self._file = None
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

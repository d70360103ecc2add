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
from collections.abc import Callable, Sequence
from typing import Final

from engine.bookie.index import Position
from engine.bookie.job import Job
from engine.bookie.measures import BookieMeasures
from engine.bookie.segment import Record
from engine.bookie.segment_writer import Outcome, SegmentWriter
from engine.bookie.settings import BookieSettings
from engine.errors import BookieUnavailable, Overloaded
from engine.ports.disk import Space
from engine.ports.workers import Workers

_JOB_BYTES: Final = 512
"""What a job costs in memory beside its bytes, so that empty ones are bounded too."""
_URGENT_SHARE: Final = 8


class Journal:
    """The loop's side.

    `on_records` hears of each job with records that became durable, just before it is settled, so
    that the index never covers a position without what is before it; `on_batch` hears of each
    batch after its jobs are settled; `on_failure` of the first failure before its jobs are.
    """

    def __init__(
        self,
        writer: SegmentWriter,
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
        self._batcher = workers.batcher(
            "journal", writer.work, self._done, lone_ms=settings.lone_sync_ms, begin=writer.begin
        )

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

    def _done(self, jobs: list[Job], result: Outcome | None, error: BaseException | None) -> None:
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
            self.end = result.end
            if written:
                self._marked = False
                if self._idle is None:
                    self._rest()
        try:
            for job in jobs:
                if job.records and job.error is None and not job.refused:
                    self._on_records(job)
                job.settle(job)
        finally:
            if result is not None and result.refused:
                # Write only jobs that are put from now on. All earlier ones depend on the refused
                # ones, including jobs that the answer to a refused one caused.
                self._epoch += 1
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

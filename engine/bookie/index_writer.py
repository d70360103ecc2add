"""What is durable in the journal on its way into the index.

Invariants:
- Items reach the index in the journal's order, with a position that covers them and nothing more.
- RocksDB is written in a thread of its own, many records at a time; until then the window answers.
- A failed write ends the bookie: an index behind its window would forget at the next start.
- After a failed write nothing is written any more: a later batch would carry the position past what
  was lost, and no replay would look there again.
- A disk without room for a flush is no failure: RocksDB, which would not come back from one, is not
  asked. What waits stays in the window and is tried again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from engine.bookie.index import Index, Place, Position
from engine.bookie.indexing import LAC, Fact, Item, Overlay, apply_items, fact_key, pack_number
from engine.bookie.segment import SEGMENT_HEADER_BYTES
from engine.bookie.settings import BookieSettings
from engine.bookie.window import Window
from engine.errors import BookieUnavailable, Overloaded
from engine.limits import KIB
from engine.ports.disk import Space
from engine.ports.workers import Workers

_SLACK_BYTES: Final = 256 * KIB
"""What a flush takes beside its rows."""
_ITEM_BYTES: Final = 128


class IndexJob(NamedTuple):
    """Items and the position they end at.

    `durable` tells after a flush that they are, or that they are not, for want of room or for ever.
    """

    items: list[Item]
    places: list[Place]
    position: Position
    durable: "asyncio.Future[bool] | None"


class IndexWriter:
    """The loop's side of writing the index."""

    def __init__(
        self,
        index: Index,
        workers: Workers,
        settings: BookieSettings,
        space: Callable[[], Space],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.window = Window()
        self.sequence = 1
        self.applied = 0
        self.pending = 0
        self._index = index
        self._settings = settings
        self._space = space
        self._on_failure = on_failure
        self._position = index.position()
        self._checkpoint = self._position
        self._items: list[Item] = []
        self._places: list[Place] = []
        self._lacs: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._thread_failure: BaseException | None = None
        self._unwritten: list[IndexJob] = []
        self._appliers: list[tuple[int, asyncio.Future[None]]] = []
        """Each future resolves when this many jobs are applied."""
        self._closing = False
        self._batcher = workers.batcher("index", self._work, self._done)

    def has_room(self) -> bool:
        """Whether the records on their way are still few enough to stay in memory."""
        return self.pending < self._settings.index_queue_records_max

    def add_places(self, ledger_id: int, places: Sequence[Place], overlay: bool) -> None:
        """Take durable places of one ledger; `overlay` if they may replace damaged ones."""
        self.window.add(ledger_id, places)
        self._places += places
        if overlay:
            self._items += [Overlay(place) for place in places]
        else:
            self._items += places
        self.pending += len(places)

    def add(self, item: Item) -> None:
        """Take any other item."""
        self._items.append(item)
        self.pending += 1

    def note_lac(self, ledger_id: int, lac: int) -> None:
        """Let the next batch carry a ledger's LAC."""
        self._lacs[ledger_id] = lac
        self._schedule()

    def forget(self, ledger_id: int) -> None:
        """A ledger is buried: nothing of it may follow."""
        self.window.drop(ledger_id)
        self._lacs.pop(ledger_id, None)

    def reached(self, position: Position) -> None:
        """All records before `position` were added.

        The start of a segment claims nothing of it: its header may be on no disk yet.
        """
        if position.offset > SEGMENT_HEADER_BYTES:
            self._position = position
        if len(self._items) >= self._settings.index_batch_records:
            self._send(None)
        elif self._items:
            self._schedule()

    async def flush(self) -> None:
        """Wait until all that was added is durable in the index.

        Raises `BookieUnavailable` once a write has failed, `Overloaded` while the disk is full; it
        becomes durable later then.
        """
        if self._failure is None:
            durable: asyncio.Future[bool] = self._loop.create_future()
            self._send(durable)
            if await durable:
                return
        if self._failure is not None:
            raise BookieUnavailable("the bookie has stopped") from self._failure
        raise Overloaded("the bookie's disk has no room for its index")

    async def applied_all(self) -> None:
        """Wait until reads of the index see all that was added. Raises `BookieUnavailable`.

        While the disk has no room for the index, this waits.
        """
        if self._failure is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._appliers.append((self.sequence, waiter))
            self._send(None)
            await waiter
        if self._failure is not None:
            raise BookieUnavailable("the bookie has stopped") from self._failure

    async def close(self) -> None:
        """Write and flush what is left, then end the thread."""
        if not self._closing and self._failure is None:
            self._send(self._loop.create_future())
        self._closing = True
        self._end_timer()
        await self._batcher.close()

    def _schedule(self) -> None:
        if self._timer is None and not self._closing and self._failure is None:
            delay_s = self._settings.index_delay_ms / 1000
            self._timer = self._loop.call_later(delay_s, self._send, None)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self, durable: "asyncio.Future[bool] | None") -> None:
        self._end_timer()
        if self._failure is not None:
            return
        items = self._items
        items += [
            Fact(fact_key(LAC, ledger_id), pack_number(lac))
            for ledger_id, lac in self._lacs.items()
        ]
        job = IndexJob(items, self._places, self._position, durable)
        self._items, self._places = [], []
        # LAC facts are not counted as pending: they are as many as the ledgers of this batch.
        self.pending += len(self._lacs)
        self._lacs = {}
        self.sequence += 1
        self._batcher.put(job)

    def _work(self, jobs: list[IndexJob]) -> list[IndexJob]:
        """In the thread: write all that waits, if there is room; returns what was written.

        Raises the first failure for ever.
        """
        if self._thread_failure is not None:
            raise self._thread_failure
        self._unwritten += jobs
        try:
            if not self._has_room_on_disk():
                return []
            self._write(self._unwritten)
        except BaseException as error:
            self._thread_failure = error
            raise
        written, self._unwritten = self._unwritten, []
        return written

    def _has_room_on_disk(self) -> bool:
        items = sum(len(job.items) for job in self._unwritten)
        needed_bytes = self._index.unflushed_bytes() + items * _ITEM_BYTES + _SLACK_BYTES
        try:
            return self._space().free_bytes >= needed_bytes
        except OSError:
            # No reading is no reason to wait.
            return True

    def _write(self, jobs: list[IndexJob]) -> None:
        flush = False
        for job in jobs:
            apply_items(self._index, job.items, job.position)
            flush |= job.durable is not None or self._is_due(job.position)
        if flush:
            self._index.flush()
            self._checkpoint = jobs[-1].position

    def _is_due(self, position: Position) -> bool:
        segment, offset = self._checkpoint
        far = position.offset - offset >= self._settings.checkpoint_bytes
        return position.segment != segment or far

    def _done(
        self, jobs: list[IndexJob], written: list[IndexJob] | None, error: BaseException | None
    ) -> None:
        if error is not None and self._failure is None:
            self._failure = error
            self._end_timer()
            self._on_failure(error)
        for job in written or ():
            self.applied += 1
            self.pending -= len(job.items)
            self.window.retire(job.places)
        for job in jobs:
            if job.durable is not None and not job.durable.done():
                job.durable.set_result(bool(written))
        for number, waiter in self._appliers:
            if not waiter.done() and (self.applied >= number or self._failure is not None):
                waiter.set_result(None)
        self._appliers = [one for one in self._appliers if not one[1].done()]
        if not written:
            self._schedule()
        assert self.pending >= 0

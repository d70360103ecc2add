"""A bookie: stores runs durably, answers for them, fences.

Invariants:
- No reply, a negative one too, leaves before what it claims is durable.
- A fence takes effect on the loop at once, and stands in the journal behind every append that was
  accepted before it.
- What damage hides is UNKNOWN, never missing.
- After a failed write or sync of the journal or the index nothing is answered but UNAVAILABLE.
- If two run on copies of one folder, the older start stops as soon as it sees the newer one.
- What no ledger can be is refused before anything is looked up: it never passes for a broken disk.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from engine.bookie.appending import Appender, key_matches
from engine.bookie.folder import (
    FolderIdentity,
    make_journal,
    mark_journal,
    start_failure,
    start_folder,
)
from engine.bookie.index import Index, Position
from engine.bookie.indexing import pack_number
from engine.bookie.job import Job
from engine.bookie.ledger_state import LedgerState
from engine.bookie.marking import Marker
from engine.bookie.measures import BookieMeasures
from engine.bookie.publishing import Publisher
from engine.bookie.replay import replay
from engine.bookie.segment import (
    Record,
    facts_record,
    fence_record,
    tombstone_record,
)
from engine.bookie.settings import BookieSettings
from engine.bookie.storage import Storage
from engine.errors import BookieUnavailable
from engine.limits import ENTRY_BYTES_MAX, ENTRY_ID_MAX, METADATA_TIMEOUT_MS
from engine.metadata.bookies import Bookies
from engine.metadata.contract import MetadataStore
from engine.metadata.deadline import DeadlineStore
from engine.metadata.ledgers import Ledgers
from engine.ports.clock import Clock
from engine.ports.disk import Disk
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.workers import Workers
from engine.run import NO_ENTRY, Run
from engine.transport.contract import (
    AppendReply,
    BookieInfo,
    LacReply,
    LedgerFacts,
    ReadReply,
    ReadRequest,
    Status,
)
from engine.transport.repair_key import key_hash_of
from engine.transport.soundness import are_sound, is_ledger_id

_FENCES_TRIED = 3
_LOG = logging.getLogger("engine.bookie")


class BookieService:
    """Implements `transport.contract.Bookie` over one folder. Made by `start`."""

    def __init__(
        self,
        storage: Callable[["BookieService"], Storage],
        publisher: Publisher,
        marker: Marker,
        identity: FolderIdentity,
        clock: Clock,
    ) -> None:
        self.identity = identity
        self.failure: BaseException | None = None
        self._id = identity.bookie_id
        self._boot = identity.boot
        self._clock = clock
        self._publisher = publisher
        self._marker = marker
        self._gate = publisher.gate
        publisher.on_superseded = marker.on_superseded = publisher.on_vanished = self._fail
        self._failed = asyncio.Event()
        self._retiring: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Future[bool]] = set()
        self._began = self._closed = False
        self.storage = storage(self)
        self._show(self.storage.measures)
        self._appender = Appender(
            self.storage,
            self._gate,
            clock,
            self._id,
            self._boot,
            publisher.refused,
            self._fail,
        )

    @staticmethod
    async def start(
        *,
        disk: Disk,
        open_index: Callable[[], Index],
        workers: Workers,
        clock: Clock,
        rng: random.Random,
        store: MetadataStore,
        settings: BookieSettings | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> "BookieService":
        """Open or make the folder, replay its journal, register.

        A failure closes the index again. Raises any `FolderError`, `MetadataUnavailable`,
        `OSError`, `BookieUnavailable` if the journal failed, `Overloaded` if the disk is full.
        """
        settings, store = settings or BookieSettings(), DeadlineStore(store, METADATA_TIMEOUT_MS)
        identity, index = await _started(disk, workers, Bookies(store), rng, open_index)
        publisher = Publisher(Bookies(store), identity, settings, disk, workers)
        marker = Marker(disk, workers, Bookies(store), identity, settings.mark_interval_ms)
        service: BookieService | None = None
        try:
            replay_all = partial(replay, disk, index, identity.bookie_id, identity.salt)
            replayed = await workers.run(replay_all)

            def make_storage(service: BookieService) -> Storage:
                return Storage(
                    disk=disk,
                    workers=workers,
                    clock=clock,
                    settings=settings,
                    identity=identity,
                    index=index,
                    tail=replayed.tail,
                    on_space=publisher.note,
                    on_failure=service._fail,
                    measures=BookieMeasures(metrics, identity.bookie_id),
                )

            service = BookieService(make_storage, publisher, marker, identity, clock)
            await service._begin(replayed.again, Ledgers(store, rng))
        except (Exception, asyncio.CancelledError) as error:
            # Whoever tries again opens the same index: nothing may hold it.
            with contextlib.suppress(Exception):
                await (service.close() if service else workers.run(index.close))
            failure = start_failure(identity, error)
            raise failure from failure.__cause__
        return service

    async def _begin(self, again: Sequence[Record], ledgers: Ledgers) -> None:
        """What must be durable and known before the bookie may be asked; then register."""
        if again:
            await self.write(again)
            await self.storage.writer.flush()
        if self.storage.is_doubtful(2**63 - 1):
            # A ledger made from now on cannot have been named by what is lost.
            newest = await ledgers.new_id()
            while held := self.storage.ledgers(newest, 1_024):
                newest = held[-1]
            await self.storage.set_doubt(pack_number(newest))
        await self._publisher.start()
        self._marker.start()
        self._began = True

    def _show(self, measures: BookieMeasures) -> None:
        """What is to be seen whenever somebody looks."""
        storage, space = self.storage, self._publisher
        shown: dict[str, tuple[str, Callable[[], float]]] = {
            "queue_bytes": (
                "Bytes that wait for the journal.",
                lambda: storage.journal.queued_bytes,
            ),
            "index_lag_records": (
                "Durable records that the index does not hold yet.",
                lambda: storage.writer.pending,
            ),
            "writable": ("1 while normal appends are taken.", lambda: float(self.writable)),
            "damaged": (
                "1 while damage keeps the bookie from telling what it lacks.",
                lambda: float(self.damaged),
            ),
            "disk_free_bytes": ("Free on the bookie's disk.", lambda: space.space.free_bytes),
            "disk_total_bytes": ("Size of the bookie's disk.", lambda: space.space.total_bytes),
        }
        for name, (says, read) in shown.items():
            measures.watch(f"herdbook_bookie_{name}", says, read)

    # Identity

    @property
    def bookie_id(self) -> str:
        """The random id of the bookie's folder."""
        return self._id

    @property
    def boot(self) -> int:
        """How often the folder was started."""
        return self._boot

    @property
    def writable(self) -> bool:
        """Whether normal appends are taken."""
        return not (self._gate.full or self._gate.leaving or self._gate.stopped)

    async def info(self) -> BookieInfo:
        """Identity and space. Raises `BookieUnavailable`."""
        if self._gate.stopped:
            raise BookieUnavailable(f"bookie {self._id} has stopped") from self.failure
        space, taken = self._publisher.space, self.storage.measures.taken
        who = (self._id, self._boot, self.identity.cluster_id)
        return BookieInfo(*who, self.writable, space.total_bytes, space.free_bytes, *taken)

    # Appending

    def append(
        self,
        runs: Sequence[Run],
        reply: Callable[[AppendReply], None],
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        """Store runs of one ledger; see `transport.contract.Bookie.append`."""
        self._appender.append(runs, reply, key=key, facts=facts, recovery=recovery)

    # Facts and LAC

    def confirm(self, ledger_id: int, lac: int) -> None:
        """Take the writer's LAC."""
        if self._gate.stopped or not is_ledger_id(ledger_id) or lac > ENTRY_ID_MAX:
            return
        state = self._state(ledger_id)
        if state.known and not state.deleted and lac > state.lac:
            state.learn_lac(lac)
            state.sequence = self.storage.writer.sequence
            self.storage.writer.note_lac(ledger_id, lac)

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        """Store sound facts if the key is right: newer ones, and those of older fragments."""
        if not are_sound(facts):
            return
        state = self._state(facts.ledger_id)
        right = state.accepts(key) and key_matches(key, facts.key_hash)
        if self._gate.stopped or state.deleted or not right:
            return
        # The journal also keeps facts of older fragments that moved here, to rebuild metadata.
        if not (state.outdated_by(facts) or state.older(facts)):
            return
        state.key_hash = facts.key_hash
        self.storage.journal.put(Job(_settled, records=(facts_record(facts),)))

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        """Answer when there is something to tell; see `transport.contract.Bookie.wait_lac`."""
        if not is_ledger_id(ledger_id):
            return self._lac_reply(Status.INVALID, NO_ENTRY)
        loop = asyncio.get_running_loop()
        deadline_s = self._clock.monotonic() + timeout_ms / 1000
        while True:
            state = self._state(ledger_id)
            if self._gate.stopped:
                return self._lac_reply(Status.UNAVAILABLE, NO_ENTRY)
            status = self._lac_status(state)
            over = state.lac > above or state.fence_durable or state.closed_last is not None
            left_s = deadline_s - self._clock.monotonic()
            if over or state.deleted or status is Status.UNKNOWN or left_s <= 0:
                return self._lac_reply(status, state.lac)
            woken: asyncio.Future[None] = loop.create_future()
            waiter = partial(_wake, woken)
            state.waiters[waiter] = None
            timer = loop.call_later(left_s, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()
                state.waiters.pop(waiter, None)

    def _lac_status(self, state: LedgerState) -> Status:
        if state.deleted:
            return Status.DELETED
        if self.storage.is_doubtful(state.ledger_id):
            return Status.UNKNOWN
        if not state.known:
            return Status.NO_SUCH_LEDGER
        return Status.FENCED if state.fence_durable or state.closed_last is not None else Status.OK

    # Fencing and reading

    def custom_of(self, ledger_id: int) -> Mapping[str, bytes] | None:
        """A ledger's custom metadata, None if no facts of it are known here."""
        facts = self._state(ledger_id).facts if is_ledger_id(ledger_id) else None
        return None if facts is None else facts.custom

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        """Refuse normal appends for ever from now on; answers when that is durable."""
        if not is_ledger_id(ledger_id):
            return self._lac_reply(Status.INVALID, NO_ENTRY)
        state = self._state(ledger_id)
        state.pins += 1
        try:
            status = await self._fence(state, key)
        finally:
            state.pins -= 1
        return self._lac_reply(status, state.lac if status is Status.OK else NO_ENTRY)

    async def _fence(self, state: LedgerState, key: bytes) -> Status:
        for _ in range(_FENCES_TRIED):
            if self._gate.stopped:
                return Status.UNAVAILABLE
            if state.deleted:
                return Status.DELETED
            if not state.accepts(key):
                return Status.UNAUTHORIZED
            if state.fence_durable:
                return Status.OK
            if state.key_hash is None:
                state.key_hash = key_hash_of(key)
            state.fenced = True
            if state.fencing is None:
                state.fencing = asyncio.get_running_loop().create_future()
                records = (fence_record(state.ledger_id, state.key_hash),)
                self.storage.journal.put(Job(partial(_fence_settled, state), records=records))
            if await asyncio.shield(state.fencing):
                return Status.OK
        return Status.UNAVAILABLE

    async def read(self, request: ReadRequest) -> ReadReply:
        """Read entries; see `transport.contract.Bookie.read`."""
        sound = 0 <= request.first <= request.last <= ENTRY_ID_MAX
        if not sound or not is_ledger_id(request.ledger_id):
            return self._read_reply(Status.INVALID)
        state = self._state(request.ledger_id)
        state.pins += 1
        try:
            if request.fence_key is not None:
                status = await self._fence(state, request.fence_key)
                if status is not Status.OK:
                    return self._read_reply(status)
                if state.in_flight or state.backlog is not None:
                    # A negative about an id that is on its way would be false a moment later.
                    await self.storage.journal.barrier()
            return await self._read(state, request)
        except BookieUnavailable:
            return self._read_reply(Status.UNAVAILABLE)
        finally:
            state.pins -= 1

    async def _read(self, state: LedgerState, request: ReadRequest) -> ReadReply:
        doubtful = self.storage.is_doubtful(state.ledger_id)
        if self._gate.stopped or state.withheld:
            return self._read_reply(Status.UNAVAILABLE)
        if state.deleted:
            return self._read_reply(Status.DELETED)
        if not state.known:
            return self._read_reply(Status.UNKNOWN if doubtful else Status.NO_SUCH_LEDGER)
        max_bytes = min(max(request.max_bytes, 1), ENTRY_BYTES_MAX)
        try:
            found = await self.storage.find(state, request.first, request.last, max_bytes)
        except Exception as error:
            # The index itself cannot be read: this bookie knows nothing any more.
            self._fail(error)
            return self._read_reply(Status.UNAVAILABLE)
        if self.failure is not None:
            return self._read_reply(Status.UNAVAILABLE)
        missing, unknown = found.missing, found.unknown
        if missing is not None and doubtful:
            missing, unknown = None, missing
        runs = tuple(found.runs)
        self.storage.measures.read(sum(len(run.body) for run in runs))
        return ReadReply(Status.OK, runs, missing, unknown, state.lac, self._id, self._boot)

    def _state(self, ledger_id: int) -> LedgerState:
        try:
            return self.storage.states.get(ledger_id)
        except Exception as error:
            # Without its index the bookie knows nothing; every caller now meets a closed gate.
            self._fail(error)
            return LedgerState(ledger_id)

    def _read_reply(self, status: Status) -> ReadReply:
        return ReadReply(status, (), None, None, NO_ENTRY, self._id, self._boot)

    def _lac_reply(self, status: Status, lac: int) -> LacReply:
        return LacReply(status, lac, self._id, self._boot)

    # Upkeep

    @property
    def cluster_id(self) -> str:
        """The cluster that the folder belongs to."""
        return self.identity.cluster_id

    async def write(self, records: Sequence[Record]) -> list[Position]:
        """Make records durable and known to the index, behind all that was queued before.

        Raises `BookieUnavailable`, `Overloaded` if the disk is full.
        """
        self._check_running()
        return await self.storage.journal.append_records(records)

    async def bury(self, ledger_ids: Sequence[int]) -> None:
        """Write tombstones durably, then remove the ledgers from the index."""
        await self.write([tombstone_record(ledger_id) for ledger_id in ledger_ids])
        await self.storage.writer.flush()

    async def ledgers(self, above: int, limit: int) -> list[int]:
        """Ids of ledgers of which anything but a tombstone is held, over `above`, in order.

        Raises `BookieUnavailable`.
        """
        self._check_running()
        try:
            return self.storage.ledgers(above, limit)
        except Exception as error:
            self._fail(error)
            raise BookieUnavailable(f"bookie {self._id} cannot read its index") from error

    def written_s(self, ledger_id: int) -> float:
        """The monotonic second of the newest write, or a later one if it is not remembered."""
        return self.storage.states.written_s(ledger_id)

    def facts_of(self, ledger_id: int) -> LedgerFacts | None:
        """The newest facts that are remembered of a ledger."""
        return self._state(ledger_id).facts

    async def held(self, ledger_id: int, ids: tuple[int, int]) -> list[tuple[int, int]]:
        """The ranges of these ids that are held, in order. Raises `BookieUnavailable`."""
        self._check_running()
        try:
            return await self.storage.held(ledger_id, *ids)
        except Exception as error:
            self._fail(error)
            raise BookieUnavailable(f"bookie {self._id} cannot read its index") from error

    async def release(
        self,
        ledger_id: int,
        ranges: Sequence[tuple[int, int]],
        unwritten_since_s: float,
        agreed: Callable[[], Awaitable[bool]],
    ) -> bool:
        """Withhold the ledger, and remove entries if `agreed` returns True.

        While it is withheld, appends wait, and reads are answered as if the bookie were away.
        Returns False if nothing was removed: the ledger is in use, was written since
        `unwritten_since_s`, or the disk is full. If the caller is cancelled, the removal goes on.
        Raises `BookieUnavailable`.
        """
        self._check_running()
        state = self._state(ledger_id)
        if self._gate.full:
            # The index could not be written, and the ledger would be withheld until there is room.
            return False
        used = state.in_flight or state.pins or state.fencing or state.backlog is not None
        fresh = self.storage.writer.window.find(ledger_id, 0, ENTRY_ID_MAX)
        if used or fresh or state.deleted or self.written_s(ledger_id) > unwritten_since_s:
            return False
        state.pins += 1
        state.withheld = True
        self._appender.hold_back(state)
        releasing = asyncio.ensure_future(self._release(state, ranges, agreed))
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)
        return await asyncio.shield(releasing)

    async def _release(
        self,
        state: LedgerState,
        ranges: Sequence[tuple[int, int]],
        agreed: Callable[[], Awaitable[bool]],
    ) -> bool:
        try:
            if not await agreed():
                return False
            await self.storage.release(state.ledger_id, ranges)
            return True
        finally:
            state.withheld = False
            state.pins -= 1
            self._appender.go_on(state)

    @property
    def damaged(self) -> bool:
        """Whether negatives of some ledgers are unknown since a header could not be read."""
        return self.storage.has_damage

    async def clear_damage(self) -> None:
        """Repair has stored again all that may be lost here: trust negatives from now on.

        Fences cannot be stored again: normal appends to the ledgers in doubt stay refused.
        """
        self._check_running()
        await self.storage.clear_doubt()

    # The end

    async def failed(self) -> None:
        """Wait until the bookie has stopped by itself; `failure` says why.

        Either its disk failed, or another copy of its folder was started (`FolderRolledBack`).
        """
        await self._failed.wait()

    async def leave(self) -> None:
        """Take no normal append any more, and no registration, so that writers move away.

        What was taken is finished, durable and answered when this returns; recoveries and readers
        are served until `close`.
        """
        self._gate.leaving = True
        await self._publisher.stop(unregister=True)
        if not self._gate.stopped:
            with contextlib.suppress(BookieUnavailable):
                await self.storage.journal.barrier()

    async def close(self) -> None:
        """Finish what is queued, say so in the journal, let go of the folder. Twice is harmless."""
        if self._closed:
            return
        self._closed = True
        await self._marker.stop()
        await self._publisher.stop(unregister=True)
        self._stop()
        for releasing in [*self._releasing]:
            releasing.cancel()
        await asyncio.gather(*self._releasing, return_exceptions=True)
        await self._appender.close()
        if self._retiring is not None:
            await self._retiring
        await self.storage.close()
        if self._began and self.failure is None and self._publisher.reached:
            await self._marker.mark()

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            _LOG.warning("bookie %s stops: %s", self._id, error)
            self._failed.set()
            self._stop()
            if not self._closed:
                self._retiring = asyncio.ensure_future(self._publisher.stop(unregister=True))

    def _stop(self) -> None:
        self._gate.stopped = True
        for state in self.storage.states.loaded():
            state.wake()

    def _check_running(self) -> None:
        if self._gate.stopped:
            raise BookieUnavailable(f"bookie {self._id} has stopped") from self.failure


async def _started(
    disk: Disk,
    workers: Workers,
    bookies: Bookies,
    rng: random.Random,
    open_index: Callable[[], Index],
) -> tuple[FolderIdentity, Index]:
    """The identity of a folder that counts one more start, and has its journal; its index.

    What a newer version wrote is refused before the start is counted. A new folder has an identity
    before it has anything else.
    """
    is_new = await workers.run(partial(make_journal, disk)) is None
    index = None if is_new else await workers.run(open_index)
    try:
        identity = await start_folder(disk, bookies, rng)
        identity = await workers.run(partial(mark_journal, disk, identity))
    except BaseException:
        if index is not None:
            await workers.run(index.close)
        raise
    if index is None:
        index = await workers.run(open_index)
    return identity, index


def _settled(job: Job) -> None:
    """Facts have nobody who waits for them."""


def _fence_settled(state: LedgerState, job: Job) -> None:
    fencing, state.fencing = state.fencing, None
    assert fencing is not None
    fencing.set_result(job.error is None and not job.refused)


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)

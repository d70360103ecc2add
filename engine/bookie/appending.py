"""Taking appends: what is refused, what is queued, what waits for a look-up.

Invariants:
- On the usual path, ids above all that is held or queued, an append costs no look-up, no task and
  nothing per entry.
- From an arriving run only ids are stored that are not held intact; other bytes for a held id are
  a conflict.
- Appends of one ledger are decided in the order in which they came, also behind a look-up; and a
  fence that comes during a look-up counts for what was looked up.
- An acknowledgement leaves after the sync of all that it names, whoever wrote it.
"""

import asyncio
import hmac
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.bookie.job import Job
from engine.bookie.ledger_state import LedgerState
from engine.bookie.overlap import Conflict, not_held
from engine.bookie.segment import Record, facts_record
from engine.bookie.storage import Storage
from engine.errors import BookieUnavailable
from engine.limits import ENTRY_ID_MAX, LEDGER_ID_MAX
from engine.ports.clock import Clock
from engine.run import NO_ENTRY, Run
from engine.transport.contract import AppendReply, LedgerFacts, Status, uses_reserve
from engine.transport.repair_key import is_repair_key, key_hash_of
from engine.transport.soundness import are_sound

Reply = Callable[[AppendReply], None]


class AppendJob(Job):
    """One append request on its way to the disk."""

    __slots__ = ("first", "last", "overlay", "reply", "state")

    state: LedgerState
    reply: Reply
    first: int
    last: int
    overlay: bool


class Request(NamedTuple):
    """An append that waits for an earlier one of its ledger to be looked up."""

    runs: Sequence[Run]
    reply: Reply
    key: bytes
    facts: LedgerFacts | None
    recovery: bool


class Gate:
    """Whether a bookie takes appends at all. One that is leaving finishes what it has taken."""

    def __init__(self) -> None:
        self.stopped = False
        self.full = False
        self.leaving = False


class Appender:
    """The append side of one bookie."""

    def __init__(
        self,
        storage: Storage,
        gate: Gate,
        clock: Clock,
        bookie_id: str,
        boot: int,
        on_refused: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._storage = storage
        self._gate = gate
        self._clock = clock
        self._id = bookie_id
        self._boot = boot
        self._on_refused = on_refused
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def append(
        self,
        runs: Sequence[Run],
        reply: Reply,
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        """Store runs of one ledger; see `transport.contract.Bookie.append`."""
        if not _well_formed(runs, facts):
            self._storage.measures.refused(Status.INVALID)
            ledger_id, first, last = runs[0].ledger_id, runs[0].first, runs[-1].last
            reply(AppendReply(Status.INVALID, ledger_id, first, last, self._id, self._boot))
            return
        try:
            state = self._storage.states.get(runs[0].ledger_id)
        except Exception as error:
            # Without its index the bookie knows nothing.
            self._on_failure(error)
            state = LedgerState(runs[0].ledger_id)
        if state.backlog is not None:
            state.backlog.append(Request(runs, reply, key, facts, recovery))
            return
        first, last = runs[0].first, runs[-1].first + runs[-1].count - 1
        status = self._refusal(state, key, facts, recovery)
        if status is not None:
            self._refuse(state, status, first, last, reply)
            return
        if first > state.highest:
            self._queue(state, runs, reply, facts, first, last, overlay=False, urgent=recovery)
            return
        request = Request(runs, reply, key, facts, recovery)
        state.backlog = deque([request])
        self.go_on(state)

    def hold_back(self, state: LedgerState) -> None:
        """Make all appends of a ledger wait until `go_on`. None may be in flight now."""
        assert state.backlog is None and not state.in_flight
        state.backlog = deque()

    def go_on(self, state: LedgerState) -> None:
        """Process the appends of a ledger that have waited."""
        task = self._loop.create_task(self._work_off(state))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _queue(
        self,
        state: LedgerState,
        runs: Sequence[Run],
        reply: Reply,
        facts: LedgerFacts | None,
        first: int,
        last: int,
        *,
        overlay: bool,
        urgent: bool,
    ) -> None:
        records: tuple[Record, ...] = ()
        if facts is not None and state.outdated_by(facts):
            records = (facts_record(facts),)
            state.key_hash = facts.key_hash
            state.from_reserve = uses_reserve(facts.custom)
        job = AppendJob(self._appended, runs, records)
        storage = self._storage
        journal = storage.journal
        room = not journal.queued_bytes or journal.has_room(job.size_bytes, urgent=urgent)
        if not room or not storage.writer.has_room():
            storage.measures.refused(Status.OVERLOADED)
            reply(self._reply(state, Status.OVERLOADED, first, last))
            return
        job.state = state
        job.reply = reply
        job.first = first
        job.last = last
        job.overlay = overlay
        if last > state.highest:
            state.highest = last
        state.in_flight += 1
        state.known = True
        if runs and runs[-1].lac > state.lac:
            state.learn_lac(runs[-1].lac)
        storage.measures.taken_entries += last - first + 1
        journal.put(job)
        state.highest_epoch = job.epoch

    def _appended(self, job: Job) -> None:
        assert isinstance(job, AppendJob)
        state = job.state
        state.in_flight -= 1
        if job.error is not None:
            job.reply(self._reply(state, Status.UNAVAILABLE, job.first, job.last))
            return
        if job.refused:
            self._on_refused()
            self._storage.measures.refused(Status.READ_ONLY)
            if state.highest_epoch <= job.epoch:
                # Appends queued behind it are refused too: the durable end is the end again.
                state.highest = state.stored
                held = state.facts is not None or state.fence_durable
                state.known = held or state.stored > NO_ENTRY
            # Later, so that a writer's answer to it does not meet half of this batch unsettled.
            answer = self._reply(state, Status.READ_ONLY, job.first, job.last)
            self._loop.call_soon(job.reply, answer)
            return
        if state.deleted:
            job.reply(self._reply(state, Status.DELETED, job.first, job.last))
            return
        try:
            # First of all: whoever asks for what it acknowledges is heard after this.
            job.reply(
                AppendReply(Status.OK, state.ledger_id, job.first, job.last, self._id, self._boot)
            )
        finally:
            self._place(state, job)

    def _place(self, state: LedgerState, job: AppendJob) -> None:
        """Note where a durable request lies."""
        storage = self._storage
        if job.runs:
            storage.place_runs(state.ledger_id, job, overlay=job.overlay)
            storage.writer.note_lac(state.ledger_id, state.lac)
            state.sequence = storage.writer.sequence
            if job.last > state.stored:
                state.stored = job.last
            assert state.stored <= state.highest, (state.stored, state.highest)
        state.written_s = self._clock.monotonic()

    async def _work_off(self, state: LedgerState) -> None:
        """Appends that touch ids held or queued, one after the other, and all that came behind."""
        backlog = state.backlog
        assert backlog is not None
        try:
            while backlog:
                await self._append_overlapping(state, backlog[0])
                backlog.popleft()
        except Exception as error:
            self._on_failure(error)
        finally:
            state.backlog = None
            for request in backlog:
                answer = self._reply(
                    state, Status.UNAVAILABLE, request.runs[0].first, request.runs[-1].last
                )
                request.reply(answer)

    async def _append_overlapping(self, state: LedgerState, request: Request) -> None:
        runs, reply, key, facts, recovery = request
        first, last = runs[0].first, runs[-1].last
        status = self._refusal(state, key, facts, recovery)
        wanted: list[Run] = []
        if status is None:
            try:
                if first <= state.highest:
                    # What is only queued is no copy yet: wait until it is, or is not.
                    await self._storage.journal.barrier()
                    wanted = await not_held(self._storage, state, runs)
                else:
                    wanted = list(runs)
                status = self._refusal(state, key, facts, recovery)
            except Conflict:
                status = Status.CONFLICT
            except BookieUnavailable:
                status = Status.UNAVAILABLE
        if status is not None:
            self._refuse(state, status, first, last, reply)
        else:
            self._queue(state, wanted, reply, facts, first, last, overlay=True, urgent=recovery)

    def _refusal(
        self, state: LedgerState, key: bytes, facts: LedgerFacts | None, recovery: bool
    ) -> Status | None:
        """Why an append is not taken, or None."""
        if self._gate.stopped:
            return Status.UNAVAILABLE
        if state.deleted:
            return Status.DELETED
        # The key that was good before, which is never one of repair's.
        usual = state.good_key is not None and hmac.compare_digest(key, state.good_key)
        accepted = usual or state.accepts(key)
        if not accepted or (facts is not None and not _fits(state, facts, key)):
            return Status.UNAUTHORIZED
        if facts is None and not state.known:
            doubtful = self._storage.is_doubtful(state.ledger_id)
            return Status.UNKNOWN if doubtful else Status.NO_SUCH_LEDGER
        if recovery:
            return None
        if not usual and is_repair_key(key):
            return Status.UNAUTHORIZED
        if state.fenced:
            return Status.FENCED
        if state.ledger_id <= self._storage.fences_unsure_to:
            # The fence may have been among what is unreadable.
            return Status.UNKNOWN
        if self._gate.leaving:
            return Status.READ_ONLY
        if not self._gate.full or state.from_reserve:
            return None
        from_reserve = facts is not None and uses_reserve(facts.custom)
        return None if from_reserve else Status.READ_ONLY

    def _refuse(
        self,
        state: LedgerState,
        status: Status,
        first: int,
        last: int,
        reply: Reply,
    ) -> None:
        self._storage.measures.refused(status)
        if status is Status.FENCED and state.fencing is not None:
            # "Fenced" is a claim, too: it waits until the fence is durable.
            state.fencing.add_done_callback(
                lambda done: reply(
                    self._reply(
                        state, Status.FENCED if done.result() else Status.UNAVAILABLE, first, last
                    )
                )
            )
        else:
            reply(self._reply(state, status, first, last))

    def _reply(self, state: LedgerState, status: Status, first: int, last: int) -> AppendReply:
        return AppendReply(status, state.ledger_id, first, last, self._id, self._boot)

    async def close(self) -> None:
        """Give up look-ups; their appends are answered UNAVAILABLE."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def key_matches(key: bytes, key_hash: bytes) -> bool:
    """Whether a key is the one of a hash, in constant time."""
    return hmac.compare_digest(key_hash_of(key), key_hash)


def _fits(state: LedgerState, facts: LedgerFacts, key: bytes) -> bool:
    """Whether facts name the key that the ledger has here, or the one that was shown."""
    if state.key_hash is not None:
        return facts.key_hash == state.key_hash
    return key_matches(key, facts.key_hash)


def _well_formed(runs: Sequence[Run], facts: LedgerFacts | None) -> bool:
    ledger_id, following = runs[0].ledger_id, runs[0].first
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        return False
    if facts is not None and (facts.ledger_id != ledger_id or not are_sound(facts)):
        return False
    for run in runs:
        if run.first != following or run.ledger_id != ledger_id:
            return False
        if len(run.table) != 8 * run.count or run.count < 1:
            return False
        if not NO_ENTRY <= run.lac < run.first <= ENTRY_ID_MAX - run.count:
            return False
        following += run.count
    return True

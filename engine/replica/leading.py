"""A leader's term: proposals in, entries in the log, results out.

Invariants:
- A proposal is answered only when its entry is durable and applied here.
- Entries are applied in the order of the log, which is the order of the calls.
- What was proposed and is not answered when the term ends has an unknown outcome, and is told so.
- If its lease has expired and its ledger was taken over, a term ends by itself in bounded time,
  even if nothing is proposed and the metadata store does not answer.
- Proposals that are in flight hold at most `pending_bytes_max` bytes.
- No entry is given to a log that has no space: its refusal would end the term, and reads with it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from engine.errors import (
    Deposed,
    EngineError,
    InvalidRequest,
    NotLeader,
    Overloaded,
    ReplicaFailed,
    RequestForgotten,
    SessionFull,
)
from engine.limits import ENTRY_BYTES_MAX
from engine.log.log_writer import LogWriter
from engine.log.position import Span
from engine.ports.clock import Clock
from engine.replica.applier import Applier
from engine.replica.confirmed_reads import note_write
from engine.replica.election import Holding
from engine.replica.entries import COMMAND, Request, encode_command, encode_hash, encode_level
from engine.replica.measures import ReplicaMeasures
from engine.replica.sessions import FULL, RESULTS_MAX, Forgotten, Outcome
from engine.replica.settings import ReplicaSettings
from engine.state.contract import State

_FULL_PAUSE_S: Final = 0.005


class Waiter(Protocol):
    """Who hears what became of a command: a future, or what acts at once."""

    def done(self) -> bool:
        """Whether it need not hear any more."""
        ...

    def set_result(self, result: bytes, /) -> None:
        """The command is applied, and this is what came of it."""
        ...

    def set_exception(self, error: EngineError, /) -> None:
        """It failed, or its outcome is unknown."""
        ...


_Waiter = Waiter | None
"""Nobody waits for a part of a command but the last."""


class Leading:
    """One term of one leader. Made and ended by the replica."""

    def __init__(
        self,
        *,
        writer: LogWriter,
        holding: Holding,
        applier: Applier,
        state: State,
        settings: ReplicaSettings,
        clock: Clock,
        measures: ReplicaMeasures,
        applied: Callable[[], None],
        check_log: Callable[[], None],
    ) -> None:
        self.writer = writer
        self.holding = holding
        self.lease_ms = holding.lease_ms
        self.next_batch = 1
        """The number of the batch that the next proposal goes with."""
        self.taken_batch = 0
        """The number of the last batch that the log took."""
        self.failure: ReplicaFailed | None = None
        self._applier = applier
        self._state = state
        self._settings = settings
        self._applied = applied
        self._check_log = check_log
        self._clock = clock
        self._measures = measures
        self._loop = asyncio.get_running_loop()
        self._bodies: list[bytes] = []
        self._waiters: list[_Waiter] = []
        self._scheduled = False
        self._pending_bytes = 0
        self._sent_s: deque[float] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended: EngineError | None = None
        self._draining = False
        self._confirmation: asyncio.Future[bytes] | None = None
        """Of the entry that confirms the term and is not sent yet."""
        self.over = asyncio.Event()
        """Set when this term can take no more proposals."""

    def propose(self, command: bytes, level: int, request: Request | None) -> asyncio.Future[bytes]:
        """See `Replica.propose`."""
        self._check_taking()
        if level > self._applier.summary.level:
            raise self._too_new(level)
        entries = encode_command(command, level, request)
        return self._queue(entries)

    def propose_for(self, command: bytes, waiter: Waiter, level: int) -> None:
        """See `Replica.propose_for`."""
        self._check_taking()
        if level > self._applier.summary.level:
            raise self._too_new(level)
        whole = bytes((COMMAND, level)) + command
        entries = [whole] if len(whole) <= ENTRY_BYTES_MAX else encode_command(command, level, None)
        self._put(entries, waiter)

    def say(self, word: bytes) -> asyncio.Future[bytes]:
        """Put an entry of the replica's own into the log. Nobody has to hear what became of it."""
        self._check_open()
        future = self._queue([word], bounded=False)
        future.add_done_callback(_heard)
        return future

    async def ask_the_log(self) -> None:
        """While the lease is expired, ask the log whether the term is over; return when it is.

        An idle leader that lost only the metadata store would never learn of its successor. The
        bookies show it: they refuse its appends to a ledger that the successor has closed. If
        nobody has taken over, the term continues and accepts proposals.
        """
        while True:
            await self.holding.lapsed.wait()
            if self.writer.fenced:
                self.end(Deposed("the lease expired, and another client took over the last ledger"))
                return
            if not self._sent_s:
                self._confirm()
            await asyncio.sleep(self.holding.lease_ms / 1000)

    async def confirm(self) -> None:
        """Return when the log has taken an entry that was sent after this call.

        So no other replica led when this was called, without any lease: whoever takes the log over
        makes the bookies refuse this leader's entries first. All who ask in one turn of the loop
        share an entry. Raises what `propose` raises, and an `OutcomeUnknown` when the term ends
        meanwhile.
        """
        self._check_open()
        if not self._scheduled:
            self._check_log()
        await asyncio.shield(self._confirm())

    def _confirm(self) -> asyncio.Future[bytes]:
        confirmation = self._confirmation
        if confirmation is None or confirmation.done():
            # This level is already allowed, so the entry changes nothing.
            confirmation = self.say(encode_level(self._applier.summary.level))
            self._confirmation = confirmation
        return confirmation

    @property
    def stalled(self) -> bool:
        """Whether the oldest append has been under way for too long."""
        if not self._sent_s:
            return False
        return self._clock.monotonic() - self._sent_s[0] > self._settings.stall_ms / 1000

    @property
    def pending_bytes(self) -> int:
        """The bytes of proposals that are under way."""
        return self._pending_bytes

    async def drain(self, timeout_ms: int) -> None:
        """Take no more proposals; wait until all are answered, or the time is over.

        If the caller is cancelled, proposals are taken again.
        """
        self._draining = True
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self._ended is None and (self._bodies or self._sent_s):
                    sent = bool(self._sent_s)
                    await (self._idle.wait() if sent else asyncio.sleep(_FULL_PAUSE_S))
        except TimeoutError:
            return
        except BaseException:
            self._draining = False
            raise

    def end(self, error: EngineError) -> None:
        """Take no more proposals, because of `error`; those not yet sent were not stored."""
        if self._ended is None:
            self._ended = error
            self.over.set()
            waiters, self._waiters = self._waiters, []
            self._pending_bytes -= sum(map(len, self._bodies))
            self._bodies = []
            _fail(waiters, NotLeader(f"the term ended before this was sent: {error}"))

    async def ended(self) -> None:
        """Wait until what was sent is applied or has failed."""
        await self._idle.wait()

    def _check_taking(self) -> None:
        if self._ended is not None or self._draining:
            self._check_open()
            raise NotLeader("this replica gives way to another one")
        if not self._scheduled:
            # Once per turn of the loop: at 100,000 proposals a second each call counts.
            self._check_log()

    def _too_new(self, level: int) -> InvalidRequest:
        return InvalidRequest(
            f"commands of level {level} wait until every replica knows them; "
            f"the log is at level {self._applier.summary.level}"
        )

    def _check_open(self) -> None:
        if self._ended is not None:
            raise NotLeader(f"this replica's term is over: {self._ended}")

    def _queue(self, entries: list[bytes], *, bounded: bool = True) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._put(entries, future, bounded=bounded)
        return future

    def _put(self, entries: list[bytes], waiter: Waiter, *, bounded: bool = True) -> None:
        note_write()
        size_bytes = len(entries[0]) if len(entries) == 1 else sum(map(len, entries))
        wanted_bytes = self._pending_bytes + size_bytes
        if bounded and self._pending_bytes and wanted_bytes > self._settings.pending_bytes_max:
            raise Overloaded(f"{self._pending_bytes} bytes of proposals are under way already")
        self._pending_bytes = wanted_bytes
        self._bodies += entries
        if len(entries) > 1:
            self._waiters += [None] * (len(entries) - 1)
        self._waiters.append(waiter)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send all that was proposed in this turn of the loop, in batches."""
        self._scheduled = False
        if self._ended is not None or not self._bodies:
            return
        if self._state.unwritten_bytes > self._settings.unwritten_bytes_max:
            try:
                self._state.check()
            except EngineError as error:
                self._fail_for_good(error)
            else:
                self._flush_later()
            return
        self._confirmation = None
        bodies, self._bodies = self._bodies, []
        waiters, self._waiters = self._waiters, []
        step = self._settings.batch_commands_max
        for start in range(0, len(bodies), step):
            batch, waiting = bodies[start : start + step], waiters[start : start + step]
            try:
                future = self.writer.append_many(batch)
            except Overloaded:
                self._bodies, self._waiters = bodies[start:], waiters[start:]
                self._flush_later()
                return
            except EngineError as error:
                self._bodies, self._waiters = bodies[start:], waiters[start:]
                self.end(error)
                return
            self._idle.clear()
            self._measures.batches.add()
            self._measures.commands.add(len(batch))
            self._sent_s.append(self._clock.monotonic())
            future.add_done_callback(partial(self._appended, self.next_batch, batch, waiting))
            self.next_batch += 1

    def _flush_later(self) -> None:
        self._scheduled = True
        self._loop.call_later(_FULL_PAUSE_S, self._flush)

    def _appended(
        self,
        number: int,
        bodies: list[bytes],
        waiters: list[_Waiter],
        future: asyncio.Future[tuple[Span, ...]],
    ) -> None:
        """A batch is durable, or it is not known whether it is."""
        self._pending_bytes -= sum(map(len, bodies))
        sent_s = self._sent_s.popleft()
        if not self._sent_s:
            self._idle.set()
        failed = future.cancelled() or future.exception() is not None
        if not failed:
            self.taken_batch = number
            self._measures.commit_seconds.observe(self._clock.monotonic() - sent_s)
            self._apply(bodies, waiters, future.result())
            return
        error: BaseException | None = None if future.cancelled() else future.exception()
        if not isinstance(error, EngineError):
            error = Deposed(f"the log's writer failed: {error!r}")
        _fail(waiters, error)
        self.end(error)

    def _apply(self, bodies: list[bytes], waiters: list[_Waiter], spans: Sequence[Span]) -> None:
        start = 0
        for span in spans:
            end = start + span.entries
            if self.failure is None:
                try:
                    outcomes = self._applier.apply(span, bodies[start:end])
                except Exception as error:
                    # Whatever it is, who waits is told, and the term is over.
                    self._fail_for_good(error)
            if self.failure is not None:
                _fail(waiters[start:end], self.failure)
            else:
                _answer(waiters[start:end], outcomes)
            start = end
        if self.failure is not None:
            return
        self._applied()
        if self._applier.hash_due is not None and self._ended is None:
            due, self._applier.hash_due = self._applier.hash_due, None
            self.say(encode_hash(due))

    def _fail_for_good(self, error: Exception) -> None:
        if not isinstance(error, ReplicaFailed):
            failure = ReplicaFailed(str(error) if isinstance(error, EngineError) else repr(error))
            failure.__cause__ = error
            error = failure
        self.failure = error
        self.end(error)


async def end_writer(writer: LogWriter, name: str, timeout_ms: int, *, lost: bool) -> None:
    """Close the log's writer; what it leaves open the next leader recovers."""
    if lost:
        writer.abandon(Deposed(f"log {name}: another replica was elected"))
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await writer.close()
    except EngineError:
        return
    except TimeoutError:
        writer.abandon(Deposed(f"log {name}: its end took too long"))


def _answer(waiters: list[_Waiter], outcomes: list[Outcome]) -> None:
    for waiter, outcome in zip(waiters, outcomes, strict=True):
        if waiter is None or waiter.done():
            continue
        if type(outcome) is bytes:
            waiter.set_result(outcome)
        elif outcome is FULL:
            waiter.set_exception(
                SessionFull(f"{RESULTS_MAX:,} results wait in this session: raise `floor`")
            )
        elif isinstance(outcome, Forgotten):
            waiter.set_exception(
                RequestForgotten("the request's session, or its answer, is no longer remembered")
            )
        else:
            waiter.set_result(bytes(outcome))


def _fail(waiters: Sequence[_Waiter], error: EngineError) -> None:
    for waiter in waiters:
        if waiter is not None and not waiter.done():
            waiter.set_exception(type(error)(*error.args))


def _heard(future: asyncio.Future[bytes]) -> None:
    """What became of it is no news: the term's end is told by others."""
    if not future.cancelled():
        future.exception()

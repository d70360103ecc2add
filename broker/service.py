"""The broker: one replica of its state machine, and the work of the leader.

    broker = await Broker.open(client, state, elect=False)
    [task_id] = await broker.submit([Spec("resize", payload=b"...")])
    task = await broker.wait(task_id)

Invariants:
- What a call acknowledged is durable in the log and applied here.
- Only the leader serves, once its memory is built from the rows. It answers reads under its
  replica's lease, or inside `ConfirmedReads`. The other replicas answer who leads.
- A bug can make the leader's memory wrong, but not the rows. The leader then rebuilds its memory
  from the rows. To workers and callers this looks like a change of leader.
- A call that raises `NotLeader` or `Overloaded` changed nothing; one that raises `OutcomeUnknown`
  may have.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from random import Random
from typing import Final, TypeVar

import msgspec

from broker import commands, reading
from broker.batching import EncodedSubmit, bounded, encode_specs, is_full, parts_of
from broker.commands import (
    ITEMS_MAX,
    Answer,
    Command,
    Refusal,
    Schedule,
    Spec,
    checked,
    decode_items,
    decode_one,
    encode,
)
from broker.connection import Hello, Refused
from broker.errors import (
    BrokerError,
    CommandUnknown,
    InvalidTask,
    NotLeader,
    Overloaded,
    StoreClosed,
    TooLarge,
    UnknownTransaction,
    WaitTimedOut,
)
from broker.keys import ID_MAX
from broker.leading.checking import differences
from broker.leading.clock import JUMP_ALARM_MS, PASSED_OVER_MS, BrokerTime, Start, judge, suspicious
from broker.leading.cron import check_cron, check_zone
from broker.leading.firing import next_due_ms
from broker.leading.link import LocalLink
from broker.leading.measures import TermMeasures
from broker.leading.proposing import Proposing
from broker.leading.quotas import sent_within
from broker.leading.term import Term
from broker.leading.timers import Later
from broker.machine import BrokerMachine
from broker.replicating import Replicated
from broker.rolling_out import RollingOut
from broker.scheduling import Scheduler, UserMapping
from broker.settings import BrokerSettings, Setting, check_setting, encode_setting
from broker.spec import OWNER_PARTS, TRANSACTIONS_MAX
from broker.task import FINAL_STATES, ClockFacts, Task
from broker.translating import translating
from engine.access.shares import part_of
from engine.errors import EngineError
from engine.ledger.capacity import Capacity
from engine.ledger.client import LedgerClient
from engine.log.settings import LogSettings
from engine.metadata.deadline import DeadlineStore
from engine.ports.clock import Clock
from engine.ports.metrics import NO_METRICS, Metrics
from engine.replica import ReadRows, Replica, ReplicaSettings
from engine.state.contract import State

T = TypeVar("T")
LOG: Final = "broker"
_CLOSED: Final = "the store is closed"
_RETRY_PAUSE_S: Final = 0.05
_MEND_PAUSE_S_MAX: Final = 5.0
_logger = logging.getLogger(__name__)


class Broker(RollingOut):
    """One replica of a broker. Made by `open`; all methods on the event loop."""

    def __init__(
        self,
        clock: Clock,
        rng: Random,
        machine: BrokerMachine,
        settings: BrokerSettings,
        mapping: UserMapping | None = None,
        metrics: Metrics = NO_METRICS,
        later: Later | None = None,
        server_ms: Callable[[], Awaitable[int | None]] | None = None,
    ) -> None:
        """`later` schedules calls, by default the event loop's `call_later`.

        `server_ms` asks another machine for its wall clock. Without it, no other clock is asked.
        """
        self.settings = settings
        self.replica: Replicated
        self.machine = machine
        self._clock = clock
        self._rng = rng
        self._later = later or asyncio.get_running_loop().call_later
        self._mapping = mapping
        self._metrics = metrics
        self._measures = TermMeasures(metrics, lambda: self._term)
        self._term: Term | None = None
        self._server_ms = server_ms
        self._capacity: Capacity | None = None
        self._serving = asyncio.Condition()
        self._turning = asyncio.Lock()
        """Held while a term begins or ends."""
        self._wrong = asyncio.Event()
        self._mends = 0
        """How often the memory was rebuilt in this term of the replica."""
        machine.on_listener_failure = lambda: self._distrust("a listener of the log failed")
        self._keeping: asyncio.Task[None] | None = None
        self._retiming: asyncio.Task[None] | None = None
        self._beginning: Counter[str] = Counter()
        """How many transactions are being opened, by owner."""
        self._closed = False

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        state: State,
        *,
        name: str = LOG,
        settings: BrokerSettings | None = None,
        mapping: UserMapping | None = None,
        address: str = "",
        elect: bool = False,
        candidate: bool = True,
        replica_settings: ReplicaSettings | None = None,
        log_settings: LogSettings | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> "Broker":
        """Start a replica of a broker. It owns `state` and closes it.

        `elect=False` is for a broker with a single replica: it serves when this returns. `mapping`
        decides where tenants' tasks run. Raises `BrokerUnavailable`, `NotLeader`.
        """
        machine = BrokerMachine()
        settings = settings or BrokerSettings()
        broker = cls(client.clock, client.rng, machine, settings, mapping, metrics)
        broker._capacity = client.capacity
        if isinstance(client.store, DeadlineStore):
            broker._server_ms = client.store.server_ms
        with translating():
            replica = await Replica.open(
                client,
                name,
                machine,
                state,
                address=address,
                elect=elect,
                candidate=candidate,
                settings=replica_settings,
                log_settings=log_settings,
                metrics=metrics,
            )
        broker.start(replica)
        if not elect:
            try:
                await broker._until_begun(replica.settings.stall_ms)
            except BaseException:
                await broker.close()
                raise
        return broker

    def start(self, replica: Replicated) -> None:
        """Serve whenever this replica leads. It is closed with the broker."""
        self.replica = replica
        self._keeping = asyncio.create_task(self._keep(), name=f"broker {replica.name}")

    async def close(self) -> None:
        """Let another replica lead. May be called twice. Raises `BrokerUnavailable`."""
        self._closed = True
        for running in (self._retiming, self._keeping):
            if running is not None:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        await self._end_term(_CLOSED)
        self._measures.end()
        with translating():
            await self.replica.close()

    async def give_way(self, patience_ms: int = 10_000) -> None:
        """Let another replica lead. Assigns no more tasks, and answers the calls under way.

        Workers keep running their tasks and connect to the next leader. Does nothing if this
        replica does not lead. If there is no other replica, this one will lead again.
        """
        term = self._term
        if term is not None:
            term.drain()
            with translating():
                await self.replica.give_way(patience_ms)

    # Terms

    async def _keep(self) -> None:
        """Serve whenever this replica leads."""
        number = 0
        while not self._closed:
            try:
                number = await self._until_news(number)
                if number and self._wrong.is_set():
                    await self._mend()
                    continue
                async with self._turning:
                    await self._end_term("another replica leads")
                    self._mends = 0
                    if number:
                        await self._begin_term()
            except (EngineError, BrokerError) as error:
                await self._end_term(str(error))
                if self.replica.failure is not None or self._closed:
                    return
                _logger.info("broker %s: %s", self.replica.name, error)
                # If the replica still leads, try again to begin the term.
                number = 0
                await asyncio.sleep(_RETRY_PAUSE_S)
            except Exception:
                # A bug. A leader that cannot serve must let another replica lead.
                _logger.exception("broker %s cannot serve", self.replica.name)
                await self._end_term("it cannot serve")
                await self.replica.give_way(0)
                # What fails at once, again and again, must not keep the event loop from the rest.
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _until_news(self, number: int) -> int:
        """Wait for another term, or until the memory is known to be wrong; the term's number."""
        other = asyncio.create_task(self.replica.until_other_term(number))
        wrong = asyncio.create_task(self._wrong.wait())
        try:
            await asyncio.wait((other, wrong), return_when=asyncio.FIRST_COMPLETED)
            return other.result() if other.done() else self.replica.term
        finally:
            # Do not await anything here: the event loop may be closing.
            other.cancel()
            wrong.cancel()

    def _distrust(self, why: str) -> None:
        """Note that the leader's memory may not match the rows, and must be rebuilt."""
        if self._term is not None and not self._wrong.is_set():
            _logger.error("broker %s rebuilds its memory: %s", self.replica.name, why)
            self._measures.mended.add()
            self._wrong.set()

    async def _mend(self) -> None:
        """Rebuild the memory from the rows, as a new leader would."""
        async with self._turning:
            term = self._term
            await self._end_term("the leader rebuilds its memory")
            if term is not None:
                # Commands under way change rows, which must not change while they are read.
                await term.proposing.quiet()
            await asyncio.sleep(min(_RETRY_PAUSE_S * 2**self._mends, _MEND_PAUSE_S_MAX))
            self._mends = min(self._mends + 1, 20)
            if self.replica.term:
                await self._begin_term()

    async def _begin_term(self, *, settled: bool = False) -> None:
        """`settled`: the wall clock has been away from the broker's time for a while."""
        time = await self._term_time(settled)
        rng = self._rng

        def wrong(why: str) -> None:
            # A term that has ended may still get answers when the next one has begun.
            if self._term is term:
                self._distrust(why)

        scheduler = Scheduler(aging_ms=self.settings.aging_ms, mapping=self._mapping)
        term = Term(
            self.replica,
            self._clock,
            self._later,
            lambda: rng.getrandbits(63),
            self.settings,
            scheduler,
            self._measures,
            time,
            self._retime,
            wrong,
            self._lack,
        )
        await term.build()
        if self.replica.term != term.number:
            return
        self.machine.listener = term.changed
        self._term = term
        term.start()
        async with self._serving:
            self._serving.notify_all()

    async def _start_time(self, settled: bool) -> tuple[int, ClockFacts, Start]:
        """The logged time, past changes of it, and the start time of a term that begins now."""
        clock = self._clock
        logged_ms, facts = self.replica.stale_read(reading.time_of)[0]
        if self._term is not None:
            logged_ms = max(logged_ms, self._term.time.now_ms())
        server_ms = None
        asked = settled or suspicious(facts, logged_ms, clock.wall_ms())
        if asked and self._server_ms is not None:
            try:
                server_ms = await self._server_ms()
            except EngineError as error:
                _logger.info("no other clock can be asked for the time: %s", error)
        return logged_ms, facts, judge(facts, logged_ms, clock.wall_ms(), server_ms, settled)

    async def _term_time(self, settled: bool) -> BrokerTime:
        """The time of a term that begins now. Logs first if the time jumps or is set back."""
        logged_ms, facts, start = await self._start_time(settled)
        known = self.replica.command_level >= commands.LEVEL
        if start.back and not known:
            start = Start(logged_ms)
        time = BrokerTime(self._clock, facts.jumped_from_ms or logged_ms, start)
        settles = facts.jumped_from_ms and start.confirmed and not start.doubtful
        if known and (start.back or start.doubtful or settles):
            command = commands.SetTime(start.at_ms, start.doubtful)
            await Proposing(self.replica, time, self._distrust).ask(command)
        if abs(start.at_ms - logged_ms) > PASSED_OVER_MS and (start.back or start.doubtful):
            _logger.warning(
                "the time of broker %s moves by %d s: %s",
                self.replica.name,
                (start.at_ms - logged_ms) // 1000,
                "an earlier leader's clock was ahead"
                if start.back
                else "no other clock confirms that, so deadlines and removals wait for a minute",
            )
        return time

    def _retime(self) -> None:
        """The wall clock has been away from the term's time for long enough to follow it."""
        if self._retiming is None or self._retiming.done():
            self._retiming = asyncio.create_task(self._begin_anew(), name="broker's time")

    async def _begin_anew(self) -> None:
        """Begin the term again with another time, unless other clocks disagree."""
        async with self._turning:
            term = self._term
            if term is None or self.replica.term != term.number:
                return
            try:
                _, _, start = await self._start_time(settled=True)
                away_ms = abs(start.at_ms - term.time.now_ms())
                known = self.replica.command_level >= commands.LEVEL
                if away_ms <= JUMP_ALARM_MS or (start.back and not known):
                    return
                await self._end_term("the broker's time is set again")
                await term.proposing.quiet()
                await self._begin_term(settled=True)
            except (EngineError, BrokerError) as error:
                _logger.warning("the time of broker %s stays: %s", self.replica.name, error)
                if self._term is None:
                    # A leader that does not serve must let another replica lead.
                    await self.replica.give_way(0)

    async def _end_term(self, why: str) -> None:
        term, self._term = self._term, None
        # The wrong memory is gone with the term: a follower has nothing to rebuild.
        self._wrong.clear()
        if term is not None:
            self.machine.listener = None
            kind = StoreClosed if self._closed else NotLeader
            term.end(kind(why, leader=self.replica.leader))
            async with self._serving:
                self._serving.notify_all()

    @property
    def serving(self) -> bool:
        """Whether this replica leads and serves."""
        term = self._term
        return term is not None and self.replica.term == term.number

    @property
    def leader(self) -> str:
        """The leader's address, as far as this replica knows; "" if there is no leader."""
        return self.replica.leader

    @property
    def term(self) -> Term:
        """The leader's memory, to answer a call. Raises `NotLeader`.

        As with rows, that needs a lease, or `ConfirmedReads`: another replica may lead by now.
        """
        term = self.term_without_lease
        self.read(lambda rows: None)
        return term

    @property
    def term_without_lease(self) -> Term:
        """The leader's memory, to propose commands. Raises `NotLeader`, but checks no lease.

        Proposals need no lease: if another replica leads by now, the log refuses them. So they
        are accepted during an outage of the metadata store.
        """
        self._check_open()
        term = self._term
        if term is None or self.replica.term != term.number:
            leader = "" if self.replica.term else self.replica.leader
            text = "this broker does not lead" if not self.replica.term else "it begins to lead"
            raise NotLeader(text, leader=leader)
        return term

    def check_memory(self) -> list[str]:
        """Describe how the leader's memory differs from its rows; empty if it does not.

        For tests: it reads every task that has not ended. It may be called at any time on the event
        loop, whatever is under way. A broker that does not serve has no differences.
        """
        return [] if self._term is None else differences(self._term)

    def read(self, look: Callable[[ReadRows], T]) -> T:
        """See `Answering`."""
        self._check_open()
        return super().read(look)

    def _lack(self) -> str:
        return "" if self._capacity is None else self._capacity.lack

    def _check_room(self) -> None:
        """Raise `DiskFull` if there is no space for new tasks and code."""
        if self._capacity is not None:
            with translating():
                self._capacity.check()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(_CLOSED)

    async def until_serving(self, timeout_ms: int) -> None:
        """Wait until this replica serves. Raises `NotLeader` when the time is over."""
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._serving:
                await self._serving.wait_for(lambda: self.serving)
        except TimeoutError:
            raise NotLeader("it does not lead", leader=self.replica.leader) from None

    async def _until_begun(self, timeout_ms: int) -> None:
        """Wait until the only replica serves, for as long as it takes to read what there is."""
        while True:
            try:
                await self.until_serving(timeout_ms)
                return
            except NotLeader:
                if not self.replica.term:
                    raise

    # Submitting

    async def submit(
        self,
        specs: Sequence[Spec],
        *,
        transaction: int = 0,
        atomic: bool = False,
        owner: str = "",
    ) -> list[int | Refusal]:
        """Submit tasks. Returns for each, in order, its id or why it was refused.

        `atomic`: all or none. `transaction`: the tasks may begin once it is committed; if `owner`
        is given, it must be theirs. A batch of more than a thousand is submitted in parts. Raises
        `InvalidTask` (nothing is submitted), `TooLarge`, `NotLeader`, `Overloaded`, `DiskFull`,
        `OutcomeUnknown`.
        """
        encoded = encode_specs(specs)
        return await self.submit_encoded(
            encoded,
            transaction=transaction,
            atomic=atomic,
            related=any(spec.parents for spec in specs),
            owner=owner,
        )

    async def submit_encoded(
        self,
        specs: Sequence[bytes],
        *,
        transaction: int = 0,
        atomic: bool = False,
        related: bool = False,
        owner: str = "",
    ) -> list[int | Refusal]:
        """Like `submit`, for specs that are already encoded and checked.

        `related`: some tasks have parents, which may be in the same batch.
        """
        if not specs:
            return []
        self._check_room()
        quotas, as_one = self.term_without_lease.quotas, atomic or related

        def send(some: Sequence[bytes]) -> Awaitable[list[int | Refusal]]:
            return self._send(some, transaction, atomic, related, owner)

        return await (sent_within(quotas, specs, as_one, send) if quotas.any else send(specs))

    async def _send(
        self, specs: Sequence[bytes], transaction: int, atomic: bool, related: bool, owner: str
    ) -> list[int | Refusal]:
        proposing = self.term_without_lease.proposing
        if transaction or atomic or related:
            if len(specs) > ITEMS_MAX:
                raise TooLarge(f"too many tasks in one request: {len(specs)} (limit {ITEMS_MAX})")
            if not 0 <= transaction <= ID_MAX:
                raise UnknownTransaction(f"there is no transaction {transaction}")
            raw = [msgspec.Raw(spec) for spec in specs]
            command = EncodedSubmit(
                raw, self.term_without_lease.time.now_ms(), transaction, atomic, owner
            )
            return decode_items(_known(await proposing.ask_encoded(encode(command))))
        if not is_full(specs):
            return await proposing.submit(specs)
        return await proposing.submit_parts(parts_of(specs))

    async def begin(self, owner: str = "", ttl_ms: int | None = None) -> int:
        """Open a transaction for submits. Returns its number.

        Raises `Overloaded` if too many are open, in total or of a named owner.
        """
        term = self.term_without_lease
        now_ms = term.time.now_ms()
        ttl_ms = self.settings.transaction_ttl_ms if ttl_ms is None else ttl_ms
        if owner:
            open_of = Counter(term.owners.values()) + self._beginning
            _check_share(owner, open_of[owner], open_of.total() - open_of[owner] - open_of[""])
        self._beginning[owner] += 1
        try:
            return await self._number(commands.Begin(now_ms + ttl_ms, now_ms, owner))
        finally:
            self._beginning[owner] -= 1
            if not self._beginning[owner]:
                del self._beginning[owner]

    async def commit(self, transaction: int, owner: str = "") -> int:
        """Commit a transaction. Returns how many tasks it has. Raises `UnknownTransaction`.

        All of its tasks become visible at the same moment.
        """
        now_ms = self.term_without_lease.time.now_ms()
        return await self._number(commands.Commit(transaction, now_ms, owner, self._newest))

    async def rollback(self, transaction: int, owner: str = "") -> int:
        """Discard a transaction and its tasks. Returns how many. Raises `UnknownTransaction`."""
        now_ms = self.term_without_lease.time.now_ms()
        return await self._number(commands.Rollback(transaction, now_ms, owner, self._newest))

    @property
    def _newest(self) -> bool:
        """Whether every replica supports the commands of the newest level."""
        return self.replica.command_level >= commands.LEVEL

    # Tasks

    async def wait(self, task_id: int, timeout_ms: int | None = None) -> Task:
        """Wait until a task has ended. Raises `UnknownTask`, `WaitTimedOut`, `NotLeader`."""
        term = self.term
        task = self.get(task_id)
        if task.status in FINAL_STATES:
            return task
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                return await term.waits.until_final(task_id)
        except TimeoutError:
            # Another replica may lead by now, and may have seen the task end.
            task = self.get(task_id)
            if task.status in FINAL_STATES:
                return task
            text = f"task {task_id} has not ended after {timeout_ms} ms"
            raise WaitTimedOut(text, task_id=task_id) from None

    async def cancel(self, task_ids: Sequence[int], by: str = "") -> list[Answer]:
        """Cancel tasks: at once, or by asking their workers. Raises `TooLarge`, `NotLeader`."""
        now_ms = self.term_without_lease.time.now_ms()
        answers = await self._items(commands.Cancel(bounded(task_ids), by, now_ms))
        return [Answer(answer) for answer in answers if isinstance(answer, int)]

    async def retry(self, task_ids: Sequence[int], by: str = "") -> list[Answer | Refusal]:
        """Run ended tasks again, or return why not. Raises `TooLarge`, `NotLeader`."""
        now_ms = self.term_without_lease.time.now_ms()
        answers = await self._items(commands.Retry(bounded(task_ids), by, now_ms))
        return [Answer(answer) if isinstance(answer, int) else answer for answer in answers]

    async def delete(self, task_ids: Sequence[int]) -> list[Answer]:
        """Remove ended tasks and their results now. Raises `TooLarge`."""
        now_ms = self.term_without_lease.time.now_ms()
        answers = await self._items(commands.Delete(bounded(task_ids), now_ms))
        return [Answer(answer) for answer in answers if isinstance(answer, int)]

    # Settings and schedules

    async def set(self, kind: str, name: str, setting: Setting | None, by: str = "") -> bool:
        """Change a setting; None removes it. Takes effect at the next assignment.

        Returns whether it changed. Raises `InvalidSetting`.
        """
        if setting is not None:
            check_setting(kind, name, setting)
        value = None if setting is None else encode_setting(setting)
        command = commands.Set(kind, name, value, by, self.term_without_lease.time.now_ms())
        return bool(await self._number(command))

    async def set_schedule(self, schedule: Schedule, by: str = "") -> None:
        """Add or replace a schedule. Raises `InvalidTask`, `InvalidSetting`, `DiskFull`."""
        self._check_room()
        checked(schedule)
        check_zone(schedule.zone)
        if schedule.cron:
            check_cron(schedule.cron, schedule.zone)
        now_ms = self.term_without_lease.time.now_ms()
        if not schedule.next_due_ms:
            due_ms = next_due_ms(schedule, now_ms) if schedule.cron or schedule.interval_ms else 0
            schedule = msgspec.structs.replace(schedule, next_due_ms=due_ms)
        await self._number(commands.ScheduleSet(schedule, by, now_ms, count_due=self._newest))

    async def delete_schedule(self, name: str) -> None:
        """Remove a schedule. Raises `UnknownSchedule`."""
        await self._number(commands.ScheduleDelete(name, self.term_without_lease.time.now_ms()))

    async def pause_schedule(self, name: str, *, paused: bool = True, by: str = "") -> None:
        """Pause or resume a schedule. Its `catch_up` decides about the times that it missed.

        Resuming a schedule that is not paused changes nothing. Raises `UnknownSchedule`.
        """
        now_ms = self.term_without_lease.time.now_ms()
        if self._newest:
            await self._number(commands.SchedulePause(name, paused, 0, by, now_ms, keep_due=True))
            return
        # Some replicas know only the older command, which sets the due time.
        known = self.term_without_lease.firing.schedules.get(name)
        if known is not None and known.paused is paused:
            return
        due_ms = 0 if known is None else known.next_due_ms
        if known is not None and paused and due_ms <= now_ms:
            # It may be firing at this moment, and must not fire for that time again.
            due_ms = next_due_ms(known, now_ms)
        await self._number(commands.SchedulePause(name, paused, due_ms, by, now_ms))

    # Code

    async def put_code(
        self, name: str, archive: bytes, ttl_ms: int | None = None, by: str = ""
    ) -> None:
        """See `Calls`."""
        self._check_room()
        size_bytes = commands.POOL_PART_BYTES_MAX
        starts = range(0, max(1, len(archive)), size_bytes)
        if len(starts) > commands.POOL_PARTS_MAX:
            raise TooLarge(
                f"the code has {len(archive)} bytes (limit {commands.POOL_PARTS_MAX} MiB)"
            )
        now_ms = self.term_without_lease.time.now_ms()
        digest = sha256(archive).digest()
        expires_ms = 0 if ttl_ms is None else now_ms + ttl_ms
        for part, start in enumerate(starts):
            content = archive[start : start + size_bytes]
            await self._number(
                commands.PoolPut(name, part, len(starts), content, digest, expires_ms, by, now_ms)
            )

    async def delete_code(self, name: str) -> None:
        """See `Calls`."""
        await self._number(
            commands.PoolDelete(name, self.term_without_lease.time.now_ms(), self._newest)
        )

    # Workers

    async def connect(self, hello: Hello) -> LocalLink:
        """See `WorkerPort`. If another replica leads, the link only tells the worker who it is."""
        self._check_open()
        try:
            link = await self.term_without_lease.crew.connect(hello)
            link.code = self.code
            return link
        except NotLeader as error:
            link = LocalLink(hello.worker_id, lambda *_: None, lambda _: None)
            link.say(Refused(error.message, error.leader))
            link.end(error.message)
            return link

    # Asking

    async def ask(self, command: Command) -> bytes:
        """Propose a command and return its answer. Raises `InvalidTask` if it is malformed."""
        try:
            encoded = encode(command)
            commands.decode_command(encoded)
        except (msgspec.MsgspecError, OverflowError) as error:
            kind = type(command).__name__.lower()
            raise InvalidTask(f"invalid request ({kind}): {error}") from error
        level = commands.level_of(command)
        return _known(await self.term_without_lease.proposing.ask_encoded(encoded, level))

    async def _items(self, command: Command) -> list[int | Refusal]:
        return decode_items(await self.ask(command))

    async def _number(self, command: Command) -> int:
        answer = decode_one(await self.ask(command))
        if isinstance(answer, Refusal):
            raise answer.error
        return answer


def _check_share(owner: str, open_count: int, others: int) -> None:
    if open_count >= part_of(TRANSACTIONS_MAX, others, OWNER_PARTS):
        raise Overloaded(f"{owner} has {open_count:,} transactions open: commit or roll back some")


def _known(answer: bytes) -> bytes:
    if answer == commands.UNKNOWN_COMMAND:
        raise CommandUnknown("the replicas do not support this command")
    return answer

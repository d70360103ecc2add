"""A state machine kept equal on several machines: one leads, the others follow.

    replica = await Replica.open(client, "map", machine, state, address="10.0.0.1:7000")
    result = await replica.propose(b"...")          # durable and applied when it returns
    value = await replica.read(lambda rows: rows.get(b"key"))

The leader writes every command to the log and then applies it; followers tail the log and apply the
same. A follower that finds the leader silent takes the log over: it fences it, applies what is
left, and leads.

Invariants:
- State changes only by entries of the log that are confirmed, in their order, each once.
- A leader answers a read only under its lease, or after its log has confirmed the read.
- Proposals need no lease: the log refuses those of a leader that was replaced. So writes continue
  while the metadata store is unavailable. A leader whose lease has expired asks the log whether it
  was replaced.
- A replica whose state cannot be trusted or written stops for good; the others go on.
- A replica never goes back behind its own state, and never starts from half a history.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable
from functools import partial
from typing import Any

from engine.errors import (
    Deposed,
    EngineError,
    FolderError,
    HistoryMissing,
    InvalidRequest,
    NotLeader,
    ReplicaFailed,
    Unavailable,
)
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.log.log_writer import LogWriter
from engine.log.position import Position
from engine.log.settings import LogSettings
from engine.ports.metrics import NO_METRICS, Metrics
from engine.replica.applier import Applier
from engine.replica.contract import Role, StateMachine
from engine.replica.duties import Duties
from engine.replica.election import Election, Holding, Unopposed
from engine.replica.entries import Request, Term, encode_session, encode_term
from engine.replica.following import Following
from engine.replica.leading import Leading, Waiter, end_writer
from engine.replica.measures import ReplicaMeasures
from engine.replica.members import Members
from engine.replica.reading import Reading, ShownRows
from engine.replica.room import Room
from engine.replica.sessions import session_of
from engine.replica.settings import ReplicaSettings
from engine.replica.snapshots import Snapshots
from engine.replica.waiting import Waiting
from engine.state.contract import State

_logger = logging.getLogger(__name__)


class Replica(Reading):
    """One replica of a state machine. Made by `Replica.open`; all methods on the event loop."""

    def __init__(
        self,
        client: LedgerClient,
        name: str,
        machine: StateMachine,
        state: State,
        *,
        address: str,
        replica_id: str,
        settings: ReplicaSettings,
        log_settings: LogSettings | None,
        elect: bool,
        candidate: bool,
        metrics: Metrics,
    ) -> None:
        self.name = name
        self.address = address
        self.replica_id = replica_id
        self.role = Role.FOLLOWER
        self.failure: EngineError | None = None
        self.log = ReplicatedLog(client, name, log_settings)
        self.settings = settings
        self._client = client
        self._machine = machine
        self._state = state
        self._rows = ShownRows(state)
        self._elect = elect
        self._candidate = candidate or not elect
        self._applier = Applier(machine, state, name)
        self._snapshots = Snapshots(client, self.log)
        self._members = Members(client.store, name, replica_id, address, machine.level)
        self._room = Room(state, settings, client.clock)
        self._leading: Leading | None = None
        self._duties: Duties | None = None
        self._waiting = Waiting()
        self._following = self._following_of()
        self._measures = self._measures_of(metrics)
        self._closing = self._ending_term = False
        self._running: asyncio.Task[None] | None = None
        self._listed: asyncio.Task[None] | None = None
        self._liveness = client.liveness
        self._resting_until_s = -math.inf
        self._takeover_failed = False
        self._election = Election(client, self.log, replica=replica_id, address=address)

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        name: str,
        machine: StateMachine,
        state: State,
        *,
        address: str = "",
        replica_id: str = "",
        settings: ReplicaSettings | None = None,
        log_settings: LogSettings | None = None,
        elect: bool = True,
        candidate: bool = True,
        metrics: Metrics = NO_METRICS,
    ) -> "Replica":
        """Start a replica of the log `name` on a state, which it closes in the end, at once if
        it cannot start.

        `address` is what clients are told to go to when this replica leads. `elect=False` is for a
        log that has one replica by other means, such as a folder's owner: it leads at once.
        `candidate=False` follows and never leads. `metrics` hears what the replica does.
        The state goes on from its own position, from the newest snapshot, or from the first entry
        ever. Raises `HistoryMissing` when none of them is possible, `FolderMismatch` for the state
        of another log, `LevelTooNew` for one of a newer program, `MetadataUnavailable`,
        `CannotRead`.
        """
        try:
            replica = cls(
                client,
                name,
                machine,
                state,
                address=address,
                replica_id=replica_id or f"{client.rng.getrandbits(64):016x}",
                settings=settings if settings is not None else ReplicaSettings(),
                log_settings=log_settings,
                elect=elect,
                candidate=candidate,
                metrics=metrics,
            )
            await replica._start()
        except BaseException:
            # A folder that stays locked could not be opened again, in this process neither.
            with contextlib.suppress(EngineError):
                await state.close()
            raise
        return replica

    async def _start(self) -> None:
        try:
            await self._following.catch_up()
        except BaseException:
            self._unwatch()
            raise
        self._running = asyncio.create_task(self._run(), name=f"replica {self.name}")
        self._listed = asyncio.create_task(self._members.keep(self.settings.retry_pause_ms / 1000))

    # What users do

    @property
    def position(self) -> Position:
        """The last entry applied here."""
        return self._applier.cursor

    @property
    def epoch(self) -> int:
        """The epoch of the last term whose entries were applied here."""
        return self._applier.summary.epoch

    @property
    def command_level(self) -> int:
        """The newest level of commands that every replica of the log supports."""
        return self._applier.summary.level

    @property
    def leader(self) -> str:
        """The address of who leads as far as is known, "" if nobody does."""
        return self.address if self.role is Role.LEADER else self._election.leader

    @property
    def vacant(self) -> bool:
        """Whether nobody led when this follower looked last: it waits to take the log over."""
        return self.role is Role.FOLLOWER and self._election.vacant

    @property
    def predecessors(self) -> set[str]:
        """The addresses of the last leader and of everyone elected since who wrote nothing."""
        return self._election.elected_since(self.epoch)

    def propose(
        self, command: bytes, *, level: int = 1, request: Request | None = None
    ) -> Awaitable[bytes]:
        """Put a command into the log; await what the state machine answers to it.

        With a `request` a retry is answered and not done again, by whatever replica leads then.
        Raises at once, with nothing stored: `NotLeader`, `Overloaded`, `EntryTooLarge`, `DiskFull`
        (not even the reserve is left), `InvalidRequest` (a level that not every replica knows). The
        await raises an
        `OutcomeUnknown` when the term ends meanwhile, `RequestForgotten`, `SessionFull`,
        `ReplicaFailed`.
        """
        return self._leading_now().propose(command, level, request)

    def propose_for(self, command: bytes, waiter: Waiter, level: int = 1) -> None:
        """As `propose`, but calls `waiter` with what the await would have returned or raised.

        It is called in the same turn of the loop in which the command is applied, and must neither
        raise nor propose. It is not called for errors that are raised at once.
        """
        self._leading_now().propose_for(command, waiter, level)

    async def open_session(self) -> Position:
        """A session for `Request`: it lasts until 10,000 others were used later.

        Raises what `propose` raises.
        """
        leading, nonce = self._leading_now(), self._client.rng.getrandbits(63)
        return session_of(await leading.say(encode_session(nonce)))

    async def wait_for(self, position: Position) -> None:
        """Wait until this replica has applied the log up to a position. Raises `ReplicaFailed`."""
        await self._waiting.for_position(position, self._applier.cursor)

    async def until_leading(self, timeout_ms: int) -> None:
        """Wait until this replica leads. Raises `NotLeader` when the time is over."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.role is not Role.LEADER:
                    await self._waiting.for_change()
        except TimeoutError:
            raise self._not_leader() from None

    async def snapshot(self) -> Position:
        """Write a snapshot of now to a ledger, and drop what the log need not keep any more.

        Only the leader does it. Raises `NotLeader`, `Deposed`, what writing raises.
        """
        if self._duties is None:
            raise self._not_leader()
        return await self._duties.snapshot()

    def defer(self, seconds: float) -> None:
        """Leave other replicas so much time to be elected first, whenever nobody leads."""
        self._election.defer(seconds)

    async def give_way(self, timeout_ms: int) -> None:
        """Lead no more, once all that was proposed is answered or the time is over.

        What is proposed meanwhile raises `NotLeader`. Others may be elected at once, and so may
        this one again: see `defer`. Does nothing where another replica leads.
        """
        leading = self._leading
        if leading is not None and self.role is Role.LEADER:
            await leading.drain(timeout_ms)
            leading.end(Deposed(f"log {self.name}: this replica gave way"))
            while self._leading is leading:
                await self._waiting.for_change()

    async def close(self) -> None:
        """End the term, if this replica leads, so that another can lead at once; close the state.

        May be called twice. Raises `StateFailed`.
        """
        if not self._closing:
            self._closing = True
            if self._leading is not None:
                self._leading.end(Deposed(f"{self.name}: the replica was closed"))
            self._waiting.changed()
        if self._running is not None:
            if self._leading is None and not self._ending_term:
                self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self.role is not Role.CLOSED:
            self._set_role(Role.CLOSED)
            self._waiting.end(NotLeader(f"{self.name}: the replica is closed"))
            self._unwatch()
            if self._listed is not None:
                self._listed.cancel()
                await asyncio.gather(self._listed, return_exceptions=True)
            await self._members.close()
            await self._state.close()

    def _unwatch(self) -> None:
        self._election.close()
        self._measures.end()
        self._members.unwatch()

    # Running

    async def _run(self) -> None:
        """Follow and lead by turns, until the replica is closed or cannot be trusted any more."""
        pause_s, said = self.settings.retry_pause_ms / 1000, ""
        while not self._closing:
            if self._client.closed.is_set():
                self._fail(ReplicaFailed(f"log {self.name}: the replica's client was closed"))
                return
            began_s = self._client.clock.monotonic()
            try:
                holding = await self._follow() if self._elect else Unopposed()
                await self._lead(holding)
            except (ReplicaFailed, FolderError, HistoryMissing, InvalidRequest) as error:
                self._fail(error)
                return
            except EngineError as error:
                if said != (said := str(error)):
                    _logger.info("replica %s of log %s: %s", self.replica_id, self.name, said)
            except Exception as error:
                # A defect: better one replica less than one that does not know what it does.
                _logger.exception("replica %s of log %s failed", self.replica_id, self.name)
                self._fail(ReplicaFailed(f"{type(error).__name__}: {error}"))
                return
            finally:
                self._election.turn.leave()
            if self._client.clock.monotonic() - began_s > self.settings.retry_pause_ms_max / 1000:
                pause_s, said = self.settings.retry_pause_ms / 1000, ""
            if not self._closing:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self.settings.retry_pause_ms_max / 1000)

    async def _follow(self) -> Holding:
        """Apply what the leader writes, until this replica is elected."""
        tailing = asyncio.create_task(self._following.tail())
        campaigning = asyncio.create_task(self._campaign())
        tasks: list[asyncio.Task[Any]] = [tailing, campaigning]
        tasks.append(asyncio.create_task(self._client.closed.wait()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._client.closed.is_set():
                raise Deposed(f"log {self.name}: the client was closed")
            if not campaigning.done():
                tailing.result()
                raise AssertionError("a tail has no end")
            return campaigning.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _campaign(self) -> Holding:
        """Be elected, once there is not much left to apply."""
        looking = asyncio.create_task(self._election.follow())
        waiting = asyncio.create_task(self._following.until_caught_up())
        try:
            await asyncio.wait([looking, waiting], return_when=asyncio.FIRST_COMPLETED)
            await (looking if looking.done() or not self._candidate else waiting)
        finally:
            for task in (looking, waiting):
                task.cancel()
            await asyncio.gather(looking, waiting, return_exceptions=True)
        while True:
            try:
                return await self._election.campaign(self._able, self._healthy, self._written_s)
            except Unavailable:
                await asyncio.sleep(self.settings.retry_pause_ms / 1000)

    async def _lead(self, holding: Holding) -> None:
        """Take the log over and lead it, until somebody else does."""
        writer: LogWriter | None = None
        try:
            self._takeover_failed = True
            check = partial(self._check_lead, holding)
            try:
                writer = await self.log.lead(holding.leader, holding.after, check)
            finally:
                self._election.turn.leave()
            self._takeover_failed = False
            self._election.elected(writer.epoch)
            # The state may have been cut off in the middle of a restoration.
            await self._following.catch_up()
            await self._following.replay(writer.last)
            await self._serve(writer, holding)
        except Deposed:
            # Another replica leads: that says nothing about the next takeover.
            self._takeover_failed = False
            with contextlib.suppress(EngineError):
                await self._election.look()
            raise
        finally:
            self._ending_term = True
            try:
                await self._end_term(writer, holding)
            finally:
                self._ending_term = False

    def _check_lead(self, holding: Holding) -> None:
        if holding.lost.is_set():
            raise Deposed(f"log {self.name}: this replica lost the right to lead before its term")

    async def _end_term(self, writer: LogWriter | None, holding: Holding) -> None:
        try:
            if writer is not None:
                lost = holding.lost.is_set()
                await end_writer(writer, self.name, self._liveness.lease_ms, lost=lost)
        finally:
            if holding.ill:
                # Others have time to be elected first.
                rest_s = 2 * self._liveness.lease_ms / 1000
                self._resting_until_s = self._client.clock.monotonic() + rest_s
            await holding.resign()

    async def _serve(self, writer: LogWriter, holding: Holding) -> None:
        """Answer proposals and reads until the term is over."""
        leading = Leading(
            writer=writer,
            holding=holding,
            applier=self._applier,
            state=self._state,
            settings=self.settings,
            clock=self._client.clock,
            measures=self._measures,
            applied=self._on_applied,
            check_log=self._client.capacity.check_log,
        )
        ending: list[asyncio.Future[Any]] = [
            asyncio.create_task(holding.lost.wait()),
            asyncio.create_task(writer.ended()),
            asyncio.create_task(leading.over.wait()),
            asyncio.create_task(self._client.closed.wait()),
        ]
        duties: list[asyncio.Task[None]] = []
        writer.on_end(lambda error: setattr(self, "trouble", str(error)))
        # It takes proposals when the role says so; its lease hears from now on how it does.
        self._leading = leading
        try:
            now_ms = self._client.clock.wall_ms()
            said = leading.say(encode_term(Term(writer.epoch, now_ms, self.address)))
            await asyncio.wait([said, *ending], return_when=asyncio.FIRST_COMPLETED)
            if not said.done():
                return
            said.result()
            self._duties = self._duties_of(leading)
            duties.append(asyncio.create_task(self._duties.see_to_them()))
            duties.append(asyncio.create_task(leading.ask_the_log()))
            self._set_role(Role.LEADER)
            self._measures.terms.add()
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ending_term = True
            self._leading = self._duties = None
            if self.role is Role.LEADER:
                self._set_role(Role.FOLLOWER)
            leading.end(Deposed(f"log {self.name}: this replica leads no more"))
            for task in [*ending, *duties]:
                task.cancel()
            await asyncio.gather(*ending, *duties, return_exceptions=True)
            await end_writer(writer, self.name, self._liveness.lease_ms, lost=holding.lost.is_set())
            await leading.ended()
        if leading.failure is not None:
            raise leading.failure

    def _following_of(self) -> Following:
        return Following(
            log=self.log,
            applier=self._applier,
            state=self._state,
            snapshots=self._snapshots,
            waiting=self._waiting,
            replica=self.replica_id,
            settings=self.settings,
            clock=self._client.clock,
        )

    def _measures_of(self, metrics: Metrics) -> ReplicaMeasures:
        measures = ReplicaMeasures(metrics, self.name)
        measures.watch(
            leader=lambda: self.role is Role.LEADER,
            failed=lambda: self.role is Role.FAILED,
            epoch=lambda: self.epoch,
            entries=lambda: self._applier.summary.entries,
            position=lambda: self.position,
            unwritten_bytes=lambda: self._state.unwritten_bytes,
            pending_bytes=lambda: self._leading.pending_bytes if self._leading else 0,
        )
        return measures

    def _duties_of(self, leading: Leading) -> Duties:
        return Duties(
            log=self.log,
            leading=leading,
            applier=self._applier,
            state=self._state,
            snapshots=self._snapshots,
            members=self._members,
            level=self._machine.level,
            measures=self._measures,
            clock=self._client.clock,
            settings=self.settings,
            takeovers=self._liveness.takeovers,
        )

    def _leading_now(self) -> Leading:
        leading = self._leading
        if leading is None or self.role is not Role.LEADER:
            raise self._not_leader()
        return leading

    def _on_applied(self) -> None:
        self._waiting.reached(self._applier.cursor)
        self._following.note_written()
        if self._duties is not None:
            self._duties.applied()

    def _written_s(self) -> float:
        return -math.inf if self._takeover_failed else self._following.written_s

    def _able(self) -> bool:
        """Whether this replica should be elected."""
        return self._healthy() and self._client.clock.monotonic() >= self._resting_until_s

    def _healthy(self) -> bool:
        stalled = self._room.stalled() or (self._leading is not None and self._leading.stalled)
        try:
            self._state.check()
        except EngineError:
            return False
        return not self._applier.failed and not self._closing and not stalled

    def _fail(self, error: EngineError) -> None:
        """Stop for good: the state is not to be trusted, or not to be written."""
        _logger.error("replica %s of log %s stopped: %s", self.replica_id, self.name, error)
        self.failure = error
        self._set_role(Role.FAILED)
        self._waiting.end(error)

    def _set_role(self, role: Role) -> None:
        self.role = role
        self._waiting.changed()

    def _not_leader(self) -> EngineError:
        if self.failure is not None:
            return self.failure
        if self._closing or self.role is Role.CLOSED:
            return NotLeader(f"this replica of log {self.name} is closed", self._other_leader())
        if self.role is Role.LEADER:
            unconfirmed = "the metadata store does not confirm that"
            return NotLeader(f"this replica leads, but its lease has run out: {unconfirmed}")
        leader = self._other_leader()
        where = f"{leader or 'nobody, as far as is known,'} does"
        return NotLeader(f"this replica of log {self.name} does not lead, {where}", leader)

    def _other_leader(self) -> str:
        """Whom to ask instead, "" if nobody is known: who asks here is not sent here again."""
        leader = self._election.leader
        return "" if leader == self.address else leader

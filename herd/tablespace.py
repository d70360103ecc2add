"""A tablespace: tables with one log, one leader and one scope of transactions.

    space = await Tablespace.open(client, "default", state)
    transaction = space.begin()
    ...
    await transaction.commit()

Invariants:
- The catalog that statements see is the one that stands in the rows: it is read again whenever a
  command changed a definition, before anybody else looks.
- Locks and transactions are the leader's, of one term; the next term begins with none.
- A commit is answered when it is durable in the log and applied here.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from engine.errors import DiskFull, EngineError, NotLeader, Overloaded
from engine.ledger.client import LedgerClient
from engine.limits import MIB
from engine.log.position import Position
from engine.log.settings import LogSettings
from engine.ports.clock import Clock
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.workers import Workers
from engine.replica import Replica, ReplicaSettings
from engine.replica.contract import ReadRows
from engine.state.contract import Row as KeyValue
from engine.state.contract import Snapshot, State
from engine.state.stored import StoredState
from herd.catalog import Catalog, load, stores_to_erase, version_of
from herd.checking import Checker
from herd.checkpoint.duty import keep_checkpoints
from herd.checkpoint.manifest import ManifestRecord
from herd.checkpoint.taking import Checkpointer
from herd.commands import Check, Command, Erase, Write, encode_command, erased_last
from herd.errors import (
    Error,
    LeaderUnavailable,
    NotSupportedError,
    ProgrammingError,
    StorageFailed,
)
from herd.keys import COUNTERS, ERASE
from herd.locks import LockTable
from herd.machine import HerdMachine
from herd.outcomes import Outcomes, check_identity, outcomes_of
from herd.reading_log import log_of
from herd.settings import HerdSettings
from herd.transaction import Isolation, Transaction
from herd.translating import after_logging, translated, translating

if TYPE_CHECKING:
    from herd.nodes.commands import SpaceCommands
    from herd.nodes.folder_spaces import FolderSpaces
    from herd.nodes.outlook import Outlook

T = TypeVar("T")
_logger = logging.getLogger(__name__)

Watcher = Callable[[Position, Command], None]
_LARGE_BYTES: Final = MIB
"""A transaction that changes more is made a command in several turns of the loop."""


class Tablespace:
    """One replica of a tablespace. Made by `open`; all methods on the event loop."""

    def __init__(
        self, name: str, machine: HerdMachine, clock: Clock, settings: HerdSettings
    ) -> None:
        self.name = name
        self.clock = clock
        self.settings = settings
        self.lock_timeout_ms = settings.lock_timeout_ms
        self.locks = LockTable()
        self.client: LedgerClient
        """Where the log is, and those of others."""
        self.replica: Replica
        self.get_applied: Callable[[bytes], bytes | None]
        """A row as applied here; for who holds its lock, in a term of this leader."""
        self._machine = machine
        self._watchers: list[Watcher] = []
        self.known_catalog: Catalog | None = None
        """The definitions as they are committed; None: `catalog` has to read them again."""
        self._locks_term = 0
        self._filling = False
        self._kept_stores: set[int] = set()
        """Stores that are marked, and are not to be erased as long as somebody fills them."""
        self._erased_term = 0
        """The term in which marks that others left were looked for."""
        self._term_watchers: list[Callable[[], None]] = []
        self._attached: dict[type, Any] = {}
        self._transactions: dict[int, Transaction] = {}
        self.uses = 0
        """How often rows were read or a transaction was begun: whoever compares two looks knows
        whether the tablespace was in use."""
        self._outcomes: Outcomes | None = None
        self._number = 0
        self._erasing: asyncio.Task[None] | None = None
        self._reaper: asyncio.TimerHandle | None = None
        self.checkpointer: Checkpointer | None = None
        """What takes checkpoints; None where they have no folder."""
        self.checker: Checker | None = None
        """What compares the replicas' rows; None before the replica is open."""
        self._keeping: asyncio.Task[None] | None = None
        self.cluster: Outlook | None = None
        """What is known of all nodes, where this replica is one of a cluster's."""
        self.commands: SpaceCommands | FolderSpaces | None = None
        """What makes, changes and drops tablespaces; None where nothing does."""
        self.dropped = False
        """Whether it was dropped while it ran here, so that nobody will ever lead it again."""
        self._successor: str | None = None
        """Who is to lead instead ("": anybody), while this replica gives way."""
        machine.watcher = self._applied

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        name: str,
        state: State,
        *,
        settings: HerdSettings | None = None,
        address: str = "",
        elect: bool = False,
        candidate: bool = True,
        replica_settings: ReplicaSettings | None = None,
        log_settings: LogSettings | None = None,
        metrics: Metrics = NO_METRICS,
        workers: Workers | None = None,
        folder: Path | None = None,
    ) -> "Tablespace":
        """Start a replica of a tablespace on a state, which it closes in the end.

        `elect=False` is for the only replica there is: it leads at once. With `workers` and a
        `folder` for what is under way it takes checkpoints. Raises as `Replica.open`
        does, as errors of the database.
        """
        machine = HerdMachine()
        space = cls(name, machine, client.clock, settings or HerdSettings())
        space.get_applied = state.get
        space.client = client
        with translating():
            space.replica = await Replica.open(
                client,
                log_of(name),
                machine,
                state,
                address=address,
                elect=elect,
                candidate=candidate,
                settings=replica_settings,
                log_settings=log_settings,
                metrics=metrics,
            )
            if not elect:
                await space.replica.until_leading(space.replica.settings.stall_ms)
        if workers is not None and folder is not None and isinstance(state, StoredState):
            keep = space.settings.checkpoints_kept
            space.checkpointer = Checkpointer(client, name, state, workers, folder, keep=keep)
            duty = keep_checkpoints(space, space.checkpointer)
            space._keeping = asyncio.create_task(duty, name=f"checkpoints of {name}")
        space.checker = Checker(space, client.store, workers)
        space._reap()
        return space

    # Reading

    @property
    def term(self) -> int:
        """The epoch in which this replica leads; 0 while it does not."""
        term = self.replica.term
        if term != self._locks_term and term:
            self._end_transactions("another term began")
            self._locks_term = term
            self.locks = LockTable()
            self.known_catalog = None
        return term

    @property
    def catalog(self) -> Catalog:
        """The definitions as they are committed. Raises `LeaderUnavailable`."""
        found = self.known_catalog
        if found is not None and not self.replica.term:
            # A snapshot that a follower restores brings definitions without any command.
            if self.stale_read(version_of)[0] != found.version:
                found = None
        if found is None:
            found = self.known_catalog = self.stale_read(load)[0]
        return found

    def rows_get(self, key: bytes) -> bytes | None:
        """What is committed. Raises `LeaderUnavailable` as `Replica.read_now` does."""
        self.uses += 1
        try:
            return self.replica.read_now(lambda rows: rows.get(key))
        except EngineError as error:
            raise translated(error) from error

    def rows_scan(self, first: bytes, end: bytes, limit: int) -> list[KeyValue]:
        """What is committed. Raises `LeaderUnavailable` as `Replica.read_now` does."""
        self.uses += 1
        try:
            return self.replica.read_now(lambda rows: rows.scan(first, end, limit))
        except EngineError as error:
            raise translated(error) from error

    def view(self) -> Snapshot:
        """All rows at this moment; close it."""
        self.uses += 1
        with translating():
            return self.replica.view()

    def stale_read(self, look: Callable[[ReadRows], T]) -> tuple[T, Position]:
        """What this replica has, leader or not, and the position that it is of."""
        with translating():
            return self.replica.stale_read(look)

    async def until_readable(self) -> None:
        """Wait until this leader may answer reads. Raises `LeaderUnavailable`."""
        with translating():
            await self.replica.read(lambda rows: None)

    @property
    def why_nobody_leads(self) -> str:
        """What to do about it, with what is known to stand in the way."""
        trouble = self.replica.trouble
        return f"try again when this is over: {trouble}" if trouble else "try again"

    # Writing

    def begin(
        self, isolation: Isolation = Isolation.READ_COMMITTED, *, identity: bytes = b""
    ) -> Transaction:
        """A new transaction. Raises `LeaderUnavailable` where another replica leads.

        `identity` names it for `outcome`: its client's name and 8 bytes of a growing number.
        """
        if not self.term or self._successor is not None:
            leader = self._successor if self.term else self.replica.leader
            raise LeaderUnavailable(
                f"this replica of tablespace {self.name} does not lead",
                hint=f"ask {leader}" if leader else self.why_nobody_leads,
            )
        if identity:
            check_identity(identity)
        self.uses += 1
        self._number += 1
        transaction = Transaction(self, self._number, isolation, identity)
        self._transactions[self._number] = transaction
        return transaction

    def forget(self, transaction: Transaction) -> None:
        """A transaction has ended."""
        self._transactions.pop(transaction.number, None)

    @property
    def transactions(self) -> list[Transaction]:
        """Those that are open, the oldest first."""
        return list(self._transactions.values())

    def check_room(self) -> None:
        """Raise `DiskFull` if there is no space for new data. Call it before adding data."""
        if lack := self.client.capacity.lack:
            raise translated(DiskFull(lack))

    async def commit(self, transaction: Transaction) -> None:
        """Put a transaction's changes into the log; see `Transaction.commit`."""
        if not transaction.identity:
            await self.propose(await self._encoded(transaction), transaction.term, transaction)
            return
        outcomes = self._outcomes = outcomes_of(self, self._outcomes)
        if await outcomes.begin(transaction):
            try:
                transaction.check()
                command = await self._encoded(transaction)
                await self.propose(command, transaction.term, transaction)
            finally:
                outcomes.end(transaction)

    async def _encoded(self, transaction: Transaction) -> bytes:
        """A transaction's command. Others run while a large one is made; it may end meanwhile."""
        large = transaction.size_bytes > _LARGE_BYTES
        write = transaction.write()
        if large:
            await asyncio.sleep(0)
        command = encode_command(write)
        if large:
            await asyncio.sleep(0)
            transaction.check()
        return command

    async def outcome(self, identity: bytes) -> bool:
        """Whether the transaction of this identity was committed; False: it never will be.

        One that is under way is waited for. Raises `LeaderUnavailable`, `CommitUnknown`: ask again.
        """
        check_identity(identity)
        outcomes = self._outcomes = outcomes_of(self, self._outcomes)
        return await outcomes.find(identity)

    async def was_committed(self, identity: bytes) -> bool:
        """Whether the transaction of this identity was committed; False: not yet.

        Raises as `outcome`; unlike that it leaves open what may still be committed. Jobs have marks
        of their own by now: see `herd.staging.marks`.
        """
        check_identity(identity)
        outcomes = self._outcomes = outcomes_of(self, self._outcomes)
        return await outcomes.known(identity)

    async def propose(
        self, command: bytes, term: int, transaction: Transaction | None = None
    ) -> bytes:
        """Log a command in a term, waiting while the log has no room; returns its answer.

        A cancelled wait takes nothing back: `transaction` keeps its locks until the outcome is
        known.
        """
        while True:
            try:
                if transaction is not None:
                    # One that was ended while there was no room has no lock on anything any more.
                    transaction.check()
                if self.replica.term != term:
                    raise NotLeader(f"tablespace {self.name}: the term is over")
                logged = asyncio.ensure_future(self.replica.propose(command))
                break
            except Overloaded:
                await asyncio.sleep(self.settings.overload_pause_ms / 1000)
            except EngineError as error:
                raise translated(error) from error
        if transaction is not None:
            transaction.logged = logged
        try:
            return await asyncio.shield(logged)
        except EngineError as error:
            raise after_logging(error) from error

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Rows are written that no table owns yet: nothing is erased in the meantime.

        Raises `ProgrammingError` if somebody does that already.
        """
        if self._filling:
            raise ProgrammingError(f"tablespace {self.name} is being restored already")
        self._filling = True
        try:
            yield
        finally:
            self._filling = False
            self._erase()
            # Among what is defined now may be what a leader goes on with.
            self._tell_of_term()

    def keep_store(self, store: int) -> Callable[[], None]:
        """From now on a store is not erased, though no table owns it; returns what ends that."""
        self._kept_stores.add(store)

        def release() -> None:
            self._kept_stores.discard(store)
            self._erase()

        return release

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` after each command that is applied; returns what ends that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def watch_terms(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` soon after this replica has begun to lead; now, if it leads already."""
        self._term_watchers.append(watcher)
        if self.term and self._erased_term == self.term:
            watcher()

    def attached(self, kind: type[T], make: Callable[[], T]) -> T:
        """An object of another module for this replica, one of each kind, made on first use.

        It may refer to the replica; both are freed together.
        """
        found: T | None = self._attached.get(kind)
        if found is None:
            found = self._attached[kind] = make()
        return found

    async def checkpoint(self, *, if_changed: bool = False) -> ManifestRecord:
        """Write all tables as they are now, in pages. Raises `NotSupportedError`, `StorageFailed`.

        Only the leader does it, beside all other work. `if_changed` is content with the newest one
        if that has all that is committed. Raises `LeaderUnavailable`.
        """
        if self.checkpointer is None:
            raise NotSupportedError(f"tablespace {self.name} was opened without checkpoints")
        with translating():
            if not self.term:
                raise NotLeader(f"this replica of {self.name} does not lead", self.replica.leader)
            try:
                newest = (await self.checkpointer.list.claim(self.term)).newest
                if if_changed and newest is not None and newest.position == self.replica.position:
                    return newest
                return await self.checkpointer.take(self.term)
            except OSError as error:
                raise StorageFailed(f"no checkpoint of {self.name}: {error}") from error

    async def give_way(self, patience_ms: int, successor: str = "") -> None:
        """Let another replica lead: no commit of this one is left unknown.

        No transaction begins meanwhile; open ones have `patience_ms` to end. `successor` is the
        address that others are sent to. Does nothing unless this replica leads.
        """
        self._successor = successor
        try:
            pause_ms = self.settings.overload_pause_ms
            for _ in range(patience_ms // pause_ms):
                if not (self.term and self._transactions):
                    break
                await asyncio.sleep(pause_ms / 1000)
            with translating():
                await self.replica.give_way(self.replica.settings.stall_ms)
        finally:
            self._successor = None

    async def close(self) -> None:
        """End all transactions and the replica. May be called twice."""
        self._end_transactions("the tablespace was closed")
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        if self.checker is not None:
            await self.checker.close()
        for task in (self._erasing, self._keeping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._erasing = self._keeping = None
        with translating():
            await self.replica.close()

    @property
    def busy(self) -> bool:
        """Whether a transaction is open, or rows of no table are being written or removed."""
        erasing = self._erasing is not None and not self._erasing.done()
        return bool(self._transactions) or self._filling or bool(self._kept_stores) or erasing

    # Duties

    def _applied(self, position: Position, command: Command) -> None:
        if type(command) is Check and self.checker is not None:
            self.checker.begin(position, command.number, self._machine)
        if type(command) is Write and command.plain and _defines(command):
            self.known_catalog = None
            if any(key.startswith(ERASE) for key, _ in command.plain):
                self._erase()
        for watcher in self._watchers:
            watcher(position, command)

    def _erase(self) -> None:
        """Remove rows that nobody owns, beside all other work; once it is open, and a leader."""
        if self._filling or self._reaper is None:
            return
        if self._erasing is None or self._erasing.done():
            self._erasing = asyncio.ensure_future(self._erase_all())

    async def _erase_all(self) -> None:
        # After the batch that is being applied now.
        await asyncio.sleep(0)
        begun, above = (0, 0), b""
        try:
            while not self._filling and (term := self.term):
                marked, _ = self.stale_read(stores_to_erase)
                stores = [one for one in marked if one[0] not in self._kept_stores]
                if not stores:
                    return
                if begun != stores[0]:
                    begun, above = stores[0], b""
                command = Erase(begun[0], self.settings.erase_rows, begun[1], above)
                above = erased_last(await self.propose(encode_command(command), term))
        except Error as error:
            # The marks stay: whoever leads next goes on.
            _logger.info("tablespace %s: rows are erased later: %s", self.name, error)

    def _tell_of_term(self) -> None:
        if self.term:
            for watcher in self._term_watchers:
                watcher()

    def _end_transactions(self, why: str) -> None:
        for transaction in self.transactions:
            transaction.end(why)

    def _reap(self) -> None:
        """Roll back transactions that nobody has used for too long."""
        idle_s = self.settings.idle_timeout_ms / 1000
        try:
            self._see_to_transactions(idle_s)
        finally:
            loop = asyncio.get_running_loop()
            self._reaper = loop.call_later(min(1.0, idle_s / 4), self._reap)

    def _see_to_transactions(self, idle_s: float) -> None:
        now_s = self.clock.monotonic()
        if not self.term:
            self._end_transactions("this replica does not lead any more")
        elif self._erased_term != self.term and self._reaper is not None:
            self._erased_term = self.term
            self._erase()
            self._tell_of_term()
        for transaction in self.transactions:
            if now_s - transaction.used_s > idle_s and not transaction.busy:
                transaction.end(f"nobody used it for {idle_s:.0f} s")


def _defines(command: Write) -> bool:
    """Whether a command changes a definition: each of them is counted."""
    return any(key == COUNTERS for key, _ in command.plain)

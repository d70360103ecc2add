"""Machines that run a replica of a tablespace each.

Invariants:
- A node runs the product's tablespace unchanged, over a state that loses what it had not flushed.
- A transaction runs in its node's process from beginning to end: what kills that kills it.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from engine.errors import Unavailable
from engine.replica import ConfirmedReads
from engine.replica.replica import Replica
from engine.state.contract import Snapshot
from engine.state.stored import StoredState
from herd.catalog import rows_of
from herd.changing import Changer
from herd.errors import CommitUnknown, Error
from herd.keys import prefix
from herd.reading_log import log_of
from herd.rows import Row, row_decoder
from herd.schema import Index, Table
from herd.settings import HerdSettings
from herd.tablespace import Tablespace
from herd.transaction import Isolation
from tests.herd.histories import Plan, all_lists, play
from tests.herd.spaces import PLAIN, made
from tests.serializability import Outcome, Transaction, Version
from tests.simulation.nodes import World
from tests.simulation.oracles import Violation
from tests.simulation.replica_nodes import ReplicaNode, ReplicaPlan
from tests.simulation.replica_oracle import ReplicaOracle

SPACE: Final = "farm"
LOG: Final = log_of(SPACE)
ACCOUNTS: Final = 10
LISTS: Final = 6
BALANCE: Final = 100


class Transfer(NamedTuple):
    """So much from one account to another."""

    source: int
    target: int
    amount: int
    isolation: Isolation


class HerdNode(ReplicaNode):
    """A machine that runs one replica of the tablespace."""

    runs = "tablespace"
    errors = Error
    space_name = SPACE

    def __init__(
        self,
        world: World,
        name: str,
        plan: ReplicaPlan,
        oracle: ReplicaOracle,
        settings: HerdSettings,
        pause_s_max: float,
    ) -> None:
        self.pause_s_max = pause_s_max
        """How long a transaction may rest between two steps."""
        self.herd_settings = settings
        self.space: Tablespace | None = None
        self.rng = world.rng(f"{name} pauses")
        self._kept: tuple[Tablespace, Snapshot, list[tuple[bytes, bytes]]] | None = None
        super().__init__(world, name, plan, oracle)

    async def _open(self, state: StoredState) -> Replica:
        self.space = await Tablespace.open(
            self.client,
            self.space_name,
            state,
            settings=self.herd_settings,
            address=self.name,
            elect=True,
            replica_settings=self.plan.replica,
            log_settings=self.plan.log,
        )
        return self.space.replica

    def crash(self) -> None:
        """The process ends in mid-air; what its state had not flushed goes, in part or whole."""
        self.space = self._kept = None
        super().crash()

    async def stop(self) -> None:
        """End in good order, as for an upgrade."""
        space, self.space, self.replica, self._kept = self.space, None, None, None
        assert space is not None
        try:
            await space.close()
        except Error as error:
            self.world.trace.event("tablespace not closed", self.name, type(error).__name__)

    def look(self) -> None:
        """As of any replica; and the sum of all accounts, in a snapshot kept for a while."""
        super().look()
        space = self.space
        if space is None or not self.up or self.process.paused:
            return
        try:
            if self._kept is not None and self._kept[0] is space:
                _, snapshot, rows = self._kept
                if snapshot.scan(prefix(0), prefix(2**32 - 1), 1_000) != rows:
                    raise Violation(f"{self.name}: a snapshot has changed")
                snapshot.close()
            snapshot = space.view()
        except Error:
            self._kept = None
            return
        self._kept = (space, snapshot, snapshot.scan(prefix(0), prefix(2**32 - 1), 1_000))
        self._check_sum(space, snapshot.scan)

    def _check_sum(
        self,
        space: Tablespace,
        scan: Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]],
    ) -> None:
        try:
            table = space.catalog.find("accounts")
        except Error:
            return
        if not isinstance(table, Table):
            return
        decode = row_decoder(table)
        rows = [decode(value) for _, value in scan(*rows_of(table), 100)]
        total = sum(balance_of(row) for row in rows)
        if len(rows) != ACCOUNTS or total != ACCOUNTS * BALANCE:
            raise Violation(f"{self.name}: the sum is {total}: {rows}")
        self.world.trace.counts["sums"] += 1

    # What clients ask for; called in this node's process

    async def set_up(self) -> bool:
        """Make the tables and the accounts, unless they are there. False: try again."""
        try:
            await self._set_up(self._space())
        except (Error, Unavailable):
            return False
        return True

    async def _set_up(self, space: Tablespace) -> None:
        if space.catalog.find("lists") is None:
            await made(space, "lists", PLAIN)
        if space.catalog.find("accounts") is not None:
            return
        transaction = space.begin()
        try:
            catalog, [number] = transaction.catalog.new_ids(1)
            table = Table(
                number,
                "accounts",
                number,
                PLAIN,
                (0,),
                (Index(1, "by_balance", (1,)),),
                next_column=3,
            )
            transaction.set_catalog(*catalog.with_table(table))
            changer = Changer(transaction, table)
            for account in range(ACCOUNTS):
                await changer.insert([account, BALANCE, ""])
            await transaction.commit()
        finally:
            # Committed, it is over; else it would keep its locks from the next try.
            transaction.rollback()

    async def transfer(self, wanted: Transfer, identity: bytes) -> Outcome:
        """A transfer. What is not known for certain is told as unknown."""
        space = self._space()
        transaction = None
        try:
            transaction = space.begin(wanted.isolation, identity=identity)
            table = transaction.catalog.table("accounts")
            changes = []
            await transaction.lock_table(table)
            for account, amount in (
                (wanted.source, -wanted.amount),
                (wanted.target, wanted.amount),
            ):
                key = table.prefix + table.encode_primary((account,))
                await self._pause()
                seen = transaction.get(key)
                await transaction.lock_row(table, key)
                value = transaction.get_newest(key)
                transaction.check_unchanged(table, value, key)
                if seen is None or value is None:
                    raise Violation(f"{self.name}: account {account} is gone")
                before = row_decoder(table)(value)
                after: Row = [account, balance_of(before) + amount, self.name]
                changes.append((key, before, after))
            with transaction.statement():
                await Changer(transaction, table).update_all(changes)
            await self._pause()
            await transaction.commit()
        except CommitUnknown:
            return Outcome.UNKNOWN
        except Error:
            return Outcome.ROLLED_BACK
        finally:
            if transaction is not None:
                transaction.rollback()
        return Outcome.COMMITTED

    async def play(self, plan: Plan, name: str, identity: bytes) -> Transaction:
        """A transaction over lists."""
        space = self._space()
        try:
            table = space.catalog.table("lists")
        except Error as error:
            raise Unavailable(f"{self.name}: {error}") from error
        # As for a client's call: no lease is needed if the log confirms what was read.
        async with ConfirmedReads():
            return await play(space, table, plan, name, self._pause, identity)

    async def outcome(self, identity: bytes) -> bool:
        """What became of a transaction. Raises `Unavailable`: ask again."""
        try:
            return await self._space().outcome(identity)
        except Error as error:
            raise Unavailable(f"{self.name}: {error}") from error

    @property
    def readable(self) -> bool:
        """Whether this node leads, and its lease holds at this instant."""
        replica = self.replica
        leading = None if replica is None else replica._leading
        return leading is not None and self.space is not None and leading.holding.holds()

    def lists(self) -> dict[str, Version]:
        """All lists, on the leader."""
        space = self._space()
        return all_lists(space, space.catalog.table("lists"), LISTS)

    def accounts(self) -> list[Row]:
        """All accounts, as this replica has them."""
        space = self._space()
        table = space.catalog.table("accounts")
        found, _ = space.stale_read(lambda rows: rows.scan(*rows_of(table)))
        return [row_decoder(table)(value) for _, value in found]

    def _space(self) -> Tablespace:
        if self.space is None:
            raise Unavailable(f"{self.name} is not there yet")
        return self.space

    async def _pause(self) -> None:
        await asyncio.sleep(self.pause_s_max * self.rng.random())


def balance_of(row: Row) -> int:
    """What is in an account."""
    assert isinstance(row[1], int)
    return row[1]

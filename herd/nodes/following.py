"""Reading at a follower: SQL that changes nothing, at a position that is stated.

    session = FollowerSession(space, queries)
    result = await session.execute("SELECT sum(milk) FROM cow")
    session.position                                       # what the answer is of

Invariants:
- A statement reads one position of this replica, and a transaction reads one for all of them.
- What would change anything is refused, with the leader's address, before it has done anything.
- It answers without asking anybody: what the leader acknowledged a moment ago may be missing.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from engine.log.position import START, Position
from engine.state.contract import Snapshot
from herd.catalog import Catalog
from herd.commands import Change
from herd.errors import LeaderUnavailable, ProgrammingError, TransactionEnded
from herd.schema import Table
from herd.sql import control
from herd.sql.parsing import Parsed
from herd.sql.planning import Planned
from herd.sql.result import Result
from herd.sql.scalars import CannotEvaluate
from herd.sql.session import Parameters, Session, given_of
from herd.transaction import Isolation, Transaction

if TYPE_CHECKING:
    from herd.tablespace import Tablespace


class FollowerRead(Transaction):
    """A transaction that only reads, at the position that its replica had when it first looked."""

    follows = True

    def __init__(self, space: "Tablespace") -> None:
        super().__init__(space, 0, Isolation.SNAPSHOT)
        self._seen: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        """The definitions at its position."""
        self.snapshot()
        assert self._seen is not None
        return self._seen

    @property
    def position(self) -> Position:
        """What it reads."""
        return self.snapshot().position

    def check(self) -> None:
        """Raise `TransactionEnded` if it is over; who leads is no matter."""
        if self.ended:
            raise TransactionEnded("the transaction is over", hint="begin another")
        self.used_s = self._space.clock.monotonic()

    def snapshot(self) -> Snapshot:
        """The rows at its position."""
        self.check()
        if self._snapshot is None:
            # In one turn of the event loop: both are of one position.
            self._snapshot = self._space.view()
            self._seen = self._space.catalog
        return self._snapshot

    async def lock_row(self, table: Table, key: bytes, *, exclusive: bool = True) -> None:
        """Refused."""
        self._refuse()

    def set_catalog(self, catalog: Catalog, changes: Sequence[Change]) -> None:
        """Refused."""
        self._refuse()

    async def commit(self) -> None:
        """End it: there is nothing to write."""
        self.check()
        self.end("it was committed")

    async def _lock(self, key: object, exclusive: bool) -> None:
        self._refuse()

    def _grow(self, key: bytes, value: bytes | None) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise read_only(self._space)


class FollowerSession(Session):
    """Executes queries at a follower. `position` is what the last answer is of."""

    position: Position = START

    async def execute(
        self, text: str, parameters: Parameters = (), parsed: Parsed | None = None
    ) -> Result:
        """Run one statement. Raises `LeaderUnavailable` if it would change anything."""
        planned = await self.planned(text, parsed)
        if planned.statement is None:
            return await control.run(self, planned.parsed, parameters)
        if self.transaction is None and not self.autocommit:
            await self.begin()
        async with self.turn:
            own = self.transaction
            reading = own if own is not None else FollowerRead(self.space)
            try:
                return await self._read(planned, parameters, reading)
            finally:
                if own is None:
                    reading.rollback()

    async def execute_many(self, text: str, rows: Iterable[Sequence[Any]]) -> Result:
        """Refused: statements for many rows change something."""
        raise read_only(self.space)

    def read_now(self, text: str, parameters: Parameters = ()) -> Result | None:
        """Never: a position is stated only on the event loop."""
        return None

    async def begin(self, isolation: Isolation | None = None) -> Transaction:
        """Read one position from now on. Raises `ProgrammingError` inside a transaction."""
        if self.transaction is not None:
            raise ProgrammingError("a transaction is open", hint="COMMIT or ROLLBACK it first")
        reading = FollowerRead(self.space)
        self.position = reading.position
        self.transaction = reading
        self.savepoints = []
        return reading

    async def _read(self, planned: Planned, parameters: Parameters, reading: Transaction) -> Result:
        if not planned.is_of(reading.catalog):
            # The schema at its position does not change, even if it waits for a worker.
            parsed = planned.parsed
            planned = await self.planned(parsed.text, parsed, reading.catalog)
        statement = planned.statement
        assert statement is not None
        work = self._work(planned, reading)
        given = given_of(self.space, planned, parameters)
        try:
            result = await statement.run(work, given)
        except CannotEvaluate:
            result = await planned.general().run(work, given)
        snapshot = reading.snapshot()
        assert snapshot is not None
        self.position = snapshot.position
        return result


def read_only(space: "Tablespace") -> LeaderUnavailable:
    """Why nothing is changed here."""
    leader = space.replica.leader
    return LeaderUnavailable(
        f"this replica of tablespace {space.name} follows: it only reads",
        hint=f"ask {leader}" if leader else "try again: nobody leads at the moment",
    )

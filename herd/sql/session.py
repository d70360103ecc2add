"""One user's statements, one after the other, in transactions.

Invariants:
- A statement that fails changes nothing; its transaction goes on, unless the error ended it.
- A transaction that ended by itself stays the session's until COMMIT or ROLLBACK says that its
  user knows: nothing is committed by accident meanwhile.
- Every exception that a statement raises is one of the database's errors, with an SQLSTATE.
- A text is read and planned once for all sessions of a tablespace, as long as no definition
  changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from engine.slow import SLOW, waited_longest
from herd.catalog import Catalog
from herd.errors import (
    AccessDenied,
    Deadlock,
    Error,
    InternalError,
    NotSupportedError,
    ProgrammingError,
)
from herd.permits import Permits, Whose
from herd.sequences import sequences_of
from herd.sql import control
from herd.sql.clients import Running, clients_of
from herd.sql.fast import SelectByKey
from herd.sql.indexing import builds_of
from herd.sql.inserting import Insert
from herd.sql.parsing import LONG_CHARACTERS, Parsed, bind, parse
from herd.sql.planning import Planned, Plans, plans_of
from herd.sql.result import Result
from herd.sql.scalars import CannotEvaluate
from herd.sql.shape import shape_of
from herd.sql.statement import DefinitionsChanged, Given, Short, Work, moment_of
from herd.transaction import Isolation, Transaction
from herd.translating import database_error
from herd.turns import in_parts, in_turns, read_long

if TYPE_CHECKING:
    from herd.sql.query import QueryEngine
    from herd.tablespace import Tablespace

Parameters = Sequence[Any] | Mapping[str, Any]
_ATTEMPTS_MAX: Final = 100
_FOR_MANY: Final = ("INSERT", "UPDATE", "DELETE")


class Session:
    """Executes SQL. All methods but `read_now` on the event loop.

    With `autocommit` each statement outside BEGIN is a transaction; without, the first statement
    begins one that lasts until `commit` or `rollback`.
    """

    def __init__(
        self,
        space: "Tablespace",
        query: "QueryEngine",
        autocommit: bool = True,
        whose: Whose = None,
    ) -> None:
        self.space = space
        self.query = query
        self.autocommit = autocommit
        self.isolation = Isolation.READ_COMMITTED
        self.transaction: Transaction | None = None
        self.savepoints: list[tuple[str, int]] = []
        self._plans: Plans = plans_of(space)
        self._sequences = sequences_of(space)
        self.turn = asyncio.Lock()
        """Held by the one statement of a transaction that runs."""
        self.client = ""
        """Whose session it is, if it came from another process."""
        self._latest: Transaction | None = None
        """That of the statement that runs, if it has one."""
        self.permits = None if whose is None else Permits(lambda: whose, space.name)
        """What it may do; None: everything."""
        self.opened_s = space.clock.monotonic()
        self.running: Running | None = None
        clients_of(space).enter(self)
        builds_of(space)

    def execute(
        self, text: str, parameters: Parameters = (), parsed: Parsed | None = None
    ) -> Awaitable[Result]:
        """Run one statement; await the result. Raises what is in `herd.errors`, now or then.

        `parsed` is the parsed text, if the caller has it already.
        """
        if self.transaction is None and self.autocommit and len(text) <= LONG_CHARACTERS:
            try:
                planned = self.plan(text, parsed)
                if planned.adds:
                    self.space.check_room()
                if planned.short is not None:
                    # Not a coroutine: for a change of one row that would add a tenth to the work.
                    answered = self._start_short(planned, planned.short, parameters)
                    if answered is not None:
                        return answered
            except Exception as error:
                failure = self._failure(error)
            else:
                return self._execute(text, parameters, parsed, planned)
            raise failure
        return self._execute(text, parameters, parsed, None)

    async def _execute(
        self, text: str, parameters: Parameters, parsed: Parsed | None, planned: Planned | None
    ) -> Result:
        self.running = running = Running(text, self.space.clock.monotonic())
        try:
            if planned is None:
                planned = await self.planned(text, parsed)
            if planned.adds:
                self.space.check_room()
            if planned.statement is None:
                return await control.run(self, planned.parsed, parameters)
            if self.transaction is None and self.autocommit:
                return await self._alone(planned, lambda one, work: _run(one, work, parameters))
            async with self.turn:
                return await self._within(planned, lambda one, work: _run(one, work, parameters))
        except Exception as error:
            failure = self._failure(error)
        finally:
            self._ran(running)
        try:
            # Its frames would keep what the query has read until a full collection.
            raise failure.with_traceback(None)
        finally:
            del failure

    async def execute_many(self, text: str, rows: Iterable[Sequence[Any]]) -> Result:
        """Run one statement for each tuple of parameters: all or nothing.

        `count` is their sum, `last_id` the last one's. Raises what is in `herd.errors`.
        """
        self.running = running = Running(text, self.space.clock.monotonic())
        try:
            planned = await self.planned(text)
            if planned.adds:
                self.space.check_room()
            if planned.statement is None or planned.statement.kind not in _FOR_MANY:
                raise ProgrammingError(f"{planned.parsed.word} is not for many rows")
            many = rows if isinstance(rows, list | tuple) else list(rows)
            if self.transaction is None and self.autocommit:
                return await self._alone(planned, lambda one, work: _run_many(one, work, many))
            async with self.turn:
                return await self._within(planned, lambda one, work: _run_many(one, work, many))
        except Exception as error:
            failure = self._failure(error)
        finally:
            self._ran(running)
        try:
            # Its frames would keep what the query has read until a full collection.
            raise failure.with_traceback(None)
        finally:
            del failure

    def _ran(self, running: Running) -> None:
        took_s = self.space.clock.monotonic() - running.began_s
        if took_s > SLOW.sql_s:
            self._note_slow(running.text, took_s)
        self._latest = None
        if self.running is running:
            self.running = None

    def _note_slow(self, text: str, took_s: float) -> None:
        locks_s = 0.0 if self._latest is None else self._latest.waited_s
        parts = waited_longest(locks=locks_s, work=max(0.0, took_s - locks_s))
        more = {"tablespace": self.space.name, "shape": shape_of(text), "client": self.client}
        SLOW.note("sql", took_s, **parts, **more)

    def read_now(self, text: str, parameters: Parameters = ()) -> Result | None:
        """Answer a SELECT by whole primary key at once, on any thread.

        None if it is no such statement, has not been executed before, or a transaction is open.
        Raises `LeaderUnavailable`, `ParametersMismatch`, `AccessDenied`.
        """
        planned = self._plans.known(text)
        if planned is None or self.transaction is not None:
            return None
        statement = planned.statement
        if type(statement) is not SelectByKey or self.isolation is not Isolation.READ_COMMITTED:
            return None
        if statement.catalog is not self.space.known_catalog:
            return None
        if self.permits is not None:
            self.permits.need("read")
        try:
            key = statement.key(bind(planned.parsed, parameters))
        except CannotEvaluate:
            return None
        return statement.answer(None if key is None else self.space.rows_get(key))

    async def begin(self, isolation: Isolation | None = None) -> Transaction:
        """Begin a transaction. Raises `ProgrammingError` inside one."""
        if self.transaction is not None:
            raise ProgrammingError("a transaction is open", hint="COMMIT or ROLLBACK it first")
        self.transaction = self.space.begin(isolation or self.isolation)
        self.savepoints = []
        return self.transaction

    async def commit(self) -> None:
        """Commit the open transaction; without one nothing happens.

        Raises `TransactionEnded`, `LeaderUnavailable`, `CommitUnknown`, and `AccessDenied` for who
        may not change any more what it changed: it is rolled back.
        """
        async with self.turn:
            transaction = self.transaction
            if transaction is None:
                return
            try:
                self._check_commit(transaction)
                await self._commit(transaction)
                return
            except Exception as error:
                failure = self._failure(error)
            finally:
                self._forget()
        raise failure

    async def rollback(self) -> None:
        """Roll the open transaction back; without one nothing happens."""
        if self.transaction is not None:
            self.transaction.rollback()
            self._forget()

    async def close(self) -> None:
        """Roll back what is open. May be called twice."""
        await self.rollback()
        clients_of(self.space).leave(self)

    def plan(self, text: str, parsed: Parsed | None = None) -> Planned:
        """How a short statement would run now. Raises what is wrong with it, and `AccessDenied`."""
        known, transaction = self._plans.known(text), self.transaction
        catalog = self.space.catalog if transaction is None else transaction.catalog
        if known is not None:
            # `is_of` and `_check`, inlined: every read by key passes here.
            if known.catalog is catalog or known.statement is None:
                if self.permits is not None:
                    self.permits.check(known)
                return known
            parsed = known.parsed
        return self._kept(Planned(parse(text) if parsed is None else parsed, catalog))

    async def planned(
        self, text: str, parsed: Parsed | None = None, catalog: Catalog | None = None
    ) -> Planned:
        """How any statement would run, now or with another catalog. Raises as `plan`.

        A long text is parsed and planned in a worker thread, so as not to block the event loop.
        When that is done, the catalog may have changed.
        """
        known, catalog = self._plans.known(text), catalog or self._catalog
        if known is not None and known.is_of(catalog):
            self._check(known)
            return known
        if known is not None:
            parsed = known.parsed
        if len(text) > LONG_CHARACTERS:
            user = "" if self.permits is None else self.permits.user
            made = partial(_planned_whole, text, parsed, catalog)
            return self._kept(await read_long(self.query.workers, made, user))
        return self._kept(Planned(parse(text) if parsed is None else parsed, catalog))

    @property
    def _catalog(self) -> Catalog:
        """The catalog that a statement sees now."""
        transaction = self.transaction
        return self.space.catalog if transaction is None else transaction.catalog

    def _check(self, planned: Planned) -> None:
        if self.permits is not None:
            self.permits.check(planned)

    def _kept(self, planned: Planned) -> Planned:
        """A new plan, which is cached if the user may run it."""
        self._check(planned)
        self._plans.keep(planned)
        return planned

    # Running

    def _start_short(
        self, planned: Planned, statement: Short, parameters: Parameters
    ) -> "asyncio.Future[Result] | None":
        """A write of one row without a transaction; None where it needs one."""
        try:
            return statement.start_short(self.space, given_of(self.space, planned, parameters))
        except CannotEvaluate:
            return None

    async def _alone(self, planned: Planned, run: "Run") -> Result:
        """A statement that is its own transaction."""
        for _ in range(_ATTEMPTS_MAX):
            if not planned.is_of(self.space.catalog):
                planned = await self.planned(planned.parsed.text, planned.parsed)
                continue
            if not planned.needs_transaction:
                return await run(planned, self._work(planned, None))
            transaction = self.space.begin()
            try:
                with transaction.in_use():
                    result = await run(planned, self._work(planned, transaction))
                await self._commit(transaction)
                return result
            except DefinitionsChanged:
                continue
            finally:
                transaction.rollback()
        raise InternalError("definitions change faster than the statement can be planned")

    async def _within(self, planned: Planned, run: "Run") -> Result:
        """A statement of a transaction of several."""
        if self.transaction is None:
            await self.begin()
        transaction = self.transaction
        assert transaction is not None
        for _ in range(_ATTEMPTS_MAX):
            transaction.check()
            transaction.snapshot()
            if not planned.is_of(transaction.catalog):
                planned = await self.planned(planned.parsed.text, planned.parsed)
                continue
            try:
                with transaction.statement():
                    return await run(planned, self._work(planned, transaction))
            except DefinitionsChanged:
                continue
            except Deadlock:
                transaction.end("it was rolled back to end a deadlock")
                raise
        raise InternalError("definitions change faster than the statement can be planned")

    def _work(self, planned: Planned, transaction: Transaction | None) -> Work:
        if transaction is not None:
            self._latest = transaction
            transaction.waited_s = 0.0
        alone = transaction is None or transaction is not self.transaction
        long = len(planned.parsed.text) > LONG_CHARACTERS
        return Work(self.space, self.query, transaction, self._sequences, alone, long)

    async def _commit(self, transaction: Transaction) -> None:
        transaction.check()
        self._sequences.write(transaction)
        await transaction.commit()

    def _check_commit(self, transaction: Transaction) -> None:
        if self.permits is None or not transaction.changed:
            return
        try:
            self.permits.need("admin" if transaction.defines else "write")
        except AccessDenied:
            transaction.rollback()
            raise

    def _failure(self, error: Exception) -> Error:
        """The error that the user sees."""
        if self.space.dropped:
            return ProgrammingError(
                f"tablespace {self.space.name} was dropped",
                hint="connect again if a new one has the same name",
            )
        return database_error(error)

    def _forget(self) -> None:
        self.transaction = None
        self.savepoints = []


def given_of(space: "Tablespace", planned: Planned, parameters: Parameters) -> Given:
    """A statement's parameters, bound, and its moment."""
    return (*bind(planned.parsed, parameters), moment_of(space))


def _planned_whole(text: str, parsed: Parsed | None, catalog: Catalog) -> Planned:
    """A plan with everything computed that requires a walk through the tree."""
    planned = Planned(parse(text) if parsed is None else parsed, catalog)
    planned.look_through()
    return planned


async def _run(planned: Planned, work: Work, parameters: Parameters) -> Result:
    given = given_of(work.space, planned, parameters)
    return await _run_given(planned, work, given)


async def _run_given(planned: Planned, work: Work, given: Given) -> Result:
    statement = planned.statement
    assert statement is not None
    try:
        return await statement.run(work, given)
    except CannotEvaluate:
        pass
    try:
        return await planned.general().run(work, given)
    except CannotEvaluate:
        raise NotSupportedError(
            f"this {statement.kind} cannot be evaluated", hint="use simpler expressions"
        ) from None


async def _run_many(planned: Planned, work: Work, rows: Sequence[Sequence[Any]]) -> Result:
    moment = moment_of(work.space)
    parsed, statement = planned.parsed, planned.statement
    many = [(*bind(parsed, row), moment) async for some in in_parts(rows) for row in some]
    if isinstance(statement, Insert):
        try:
            return await statement.run_many(work, many)
        except CannotEvaluate:
            pass
    assert statement is not None
    total = Result(kind=statement.kind, count=0)
    async for given in in_turns(many):
        result = await _run_given(planned, work, given)
        total.count += max(result.count, 0)
        total.last_id = result.last_id if result.last_id is not None else total.last_id
    return total


Run = Callable[[Planned, Work], Awaitable[Result]]

"""What a statement is once it is planned, and what it runs in.

Invariants:
- A plan holds the catalog that it was made of. It runs in transactions that see the very same
  one, which it checks when it has locked its table; else `DefinitionsChanged` ends it before it
  has changed anything, and it is planned anew.
"""

import asyncio
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlglot import exp

from herd.catalog import Catalog
from herd.changing import Changer, Verify
from herd.errors import CheckViolation, ValueInvalid
from herd.rows import Row
from herd.schema import Table
from herd.sequences import Sequences
from herd.sql.expressions import Evaluate, Names, compile_expression
from herd.sql.parsing import parse_expression
from herd.sql.result import Result
from herd.sql.scalars import CannotEvaluate, truth
from herd.transaction import Transaction

if TYPE_CHECKING:
    from herd.sql.query import QueryEngine
    from herd.tablespace import Tablespace

Given = Sequence[Any]
"""The parameters' values, then the moment of the statement."""


class DefinitionsChanged(Exception):
    """A plan is of a catalog that is not the transaction's."""


@dataclass(slots=True)
class Work:
    """What a statement runs in."""

    space: "Tablespace"
    query: "QueryEngine"
    own: Transaction | None
    """None for what is read outside a transaction."""
    sequences: Sequences
    alone: bool
    """Whether the transaction is this statement's own."""
    long: bool = False
    """Whether the statement has a long text."""

    @property
    def transaction(self) -> Transaction:
        """The transaction, of a statement that needs one."""
        assert self.own is not None
        return self.own

    async def made(self, make: Callable[[], exp.Expr], *, long: bool = False) -> exp.Expr:
        """Build a query with `make` from parts of the statement; `long` as in `built`."""
        return await self.query.built(make, long=self.long or long)


class Statement(Protocol):
    """A planned statement."""

    kind: str
    needs_transaction: bool
    """Whether it runs in one even if it is alone."""

    async def run(self, work: Work, given: Given) -> Result:
        """Do it. Raises `DefinitionsChanged`, and `CannotEvaluate` before it changes anything."""
        ...


class Short(Protocol):
    """A statement that may do without a transaction where it changes but one row."""

    def start_short(self, space: "Tablespace", given: Given) -> "asyncio.Future[Result] | None":
        """Begin it; None where it needs a transaction, and nothing was done then."""
        ...


def moment_of(space: "Tablespace") -> datetime.datetime:
    """The moment of a statement."""
    global _moment
    now_ms = space.clock.wall_ms()
    known_ms, moment = _moment
    if known_ms != now_ms:
        moment = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
        _moment = now_ms, moment
    return moment


_moment = (0, datetime.datetime.fromtimestamp(0, datetime.UTC))
"""The last one made, and its milliseconds: many statements come in each of them."""


async def lock_for_change(work: Work, table: Table, catalog: Catalog) -> None:
    """Keep a table's definition while it is changed. Raises `DefinitionsChanged`."""
    transaction = work.transaction
    await transaction.lock_table(table)
    if transaction.catalog is not catalog:
        raise DefinitionsChanged


def newest(transaction: Transaction, table: Table, key: bytes) -> bytes | None:
    """A locked row as it may be changed. Raises `SerializationFailure`."""
    value = transaction.get_newest(key)
    transaction.check_unchanged(table, value, key)
    return value


def changer_of(work: Work, table: Table, verify: Verify | None) -> Changer:
    """A changer of a table's rows, and of the rows that depend on them, by all constraints."""
    return Changer(work.transaction, table, verify, verifier)


_VERIFIER: Final = "herd:verifier"


def verifier(table: Table) -> Verify | None:
    """A function that raises `CheckViolation` for a row that a CHECK of the table refuses.

    None if the table has no CHECK. It is compiled once and kept with the table, because a CHECK may
    have thousands of constants.
    """
    if not table.checks:
        return None
    found: Verify | None = vars(table).get(_VERIFIER)
    if found is None:
        found = vars(table)[_VERIFIER] = _compiled(table)
    return found


def _compiled(table: Table) -> Verify:
    names = Names.of_definition(table)
    checks: list[tuple[str, Evaluate]] = [
        (check.name, compile_expression(parse_expression(check.condition), names))
        for check in table.checks
    ]

    def verify(row: Row) -> None:
        for name, holds in checks:
            try:
                refused = truth(holds(row, ())) is False
            except CannotEvaluate:
                raise ValueInvalid(
                    f"{table.name}: {name} cannot be evaluated for the row"
                ) from None
            if refused:
                raise CheckViolation(f"{table.name}: {name} is false for the row")

    return verify

"""Transactions that append to lists and read them, told as `tests.serializability` wants them.

A list is a row of a table as `spaces.PLAIN`: its number, its length, its values as text.

Invariants:
- A transaction is told as rolled back only if it is certain that nothing of it will ever be seen.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from herd.changing import Changer
from herd.errors import CommitUnknown, Error
from herd.rows import Row, row_decoder
from herd.schema import Table
from herd.tablespace import Tablespace
from herd.transaction import Isolation, Transaction
from tests.serializability import Append, Outcome, Read, Step, Version
from tests.serializability import Transaction as Told

Pause = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Plan:
    """What one transaction is to do: lists by number, and the values to append; None: read."""

    steps: tuple[tuple[int, int | None], ...]
    isolation: Isolation

    @property
    def changes(self) -> tuple[Append, ...]:
        """Only the appends."""
        return tuple(Append(name_of(one), value) for one, value in self.steps if value is not None)

    @classmethod
    def drawn(
        cls, rng: random.Random, lists: int, isolation: Isolation, take: Callable[[], int]
    ) -> "Plan":
        """One to five steps; `take` gives values that nobody had."""
        count = rng.randint(1, 5)
        return cls(
            tuple(
                (rng.randrange(lists), take() if rng.random() < 0.5 else None) for _ in range(count)
            ),
            isolation,
        )


def name_of(number: int) -> str:
    """A list's name in a history."""
    return f"list {number}"


async def play(
    space: Tablespace, table: Table, plan: Plan, name: str, pause: Pause, identity: bytes = b""
) -> Told:
    """Carry a plan out in a transaction; what came of it. Between any two steps it pauses."""
    done: list[Step] = []
    outcome = Outcome.ROLLED_BACK
    transaction: Transaction | None = None
    try:
        transaction = space.begin(plan.isolation, identity=identity)
        for number, value in plan.steps:
            await pause()
            if value is None:
                done.append(Read(name_of(number), look(transaction, table, number)))
            else:
                # It counts from here on, whatever comes of it.
                done.append(Append(name_of(number), value))
                await append(transaction, table, number, value)
        await pause()
        await transaction.commit()
        outcome = Outcome.COMMITTED
    except CommitUnknown:
        outcome = Outcome.UNKNOWN
    except Error:
        outcome = Outcome.ROLLED_BACK
    finally:
        if transaction is not None:
            transaction.rollback()
    return Told(name, tuple(done), outcome)


def look(transaction: Transaction, table: Table, number: int) -> Version:
    """A list as a transaction sees it."""
    value = transaction.get(_key(table, number))
    return () if value is None else values_of(row_decoder(table)(value))


async def append(transaction: Transaction, table: Table, number: int, added: int) -> None:
    """A statement that puts a value at the end of a list, as the list is now."""
    key = _key(table, number)
    with transaction.statement():
        await transaction.lock_table(table)
        await transaction.lock_row(table, key)
        value = transaction.get_newest(key)
        transaction.check_unchanged(table, value, key)
        changer = Changer(transaction, table)
        if value is None:
            await changer.insert(_row(number, (added,)))
        else:
            before = changer.plan.decode(value)
            await changer.update(key, before, _row(number, (*values_of(before), added)))


def all_lists(space: Tablespace, table: Table, count: int) -> dict[str, Version]:
    """The lists as they are committed, by name."""
    transaction = space.begin()
    try:
        return {name_of(number): look(transaction, table, number) for number in range(count)}
    finally:
        transaction.rollback()


def values_of(row: Row) -> Version:
    """The values of a list's row."""
    text = row[2]
    assert isinstance(text, str) and row[1] == len(text.split(","))
    return tuple(map(int, text.split(",")))


def _row(number: int, values: Version) -> Row:
    return [number, len(values), ",".join(map(str, values))]


def _key(table: Table, number: int) -> bytes:
    return table.prefix + table.encode_primary((number,))

"""A seed's statements, run and counted.

Invariants:
- A seed makes the same statements in every process, as long as we answer the same.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from herd.sql import planning
from herd.sql.session import Session
from tests.herd.differential.shapes import Shape
from tests.herd.differential.statements import Generator
from tests.herd.differential.three import Three
from tests.herd.sql.sessions import asking

_COMPARED_EVERY = 25


@dataclass
class Tally:
    """What came of a run."""

    statements: int = 0
    refused: int = 0
    disagreed: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Count another run's, too."""
        self.statements += other.statements
        self.refused += other.refused
        self.disagreed += other.disagreed
        self.kinds.update(other.kinds)


@contextmanager
def ways(*, fast: bool) -> Iterator[None]:
    """With the quick ways for rows that a key names, or without."""
    quick = planning.make
    planning.make = quick if fast else planning.make_general
    try:
        yield
    finally:
        planning.make = quick


async def run_seed(seed: int, statements: int, *, fast: bool = True) -> Tally:
    """Run a seed's statements. Raises `Disagreement` with the statement that shows it."""
    with ways(fast=fast):
        async with asking() as on:
            run = _Run(seed, on.session)
            try:
                await run.to(statements)
                on.check_indexes()
            finally:
                run.three.close()
            return run.tally


class _Run:
    def __init__(self, seed: int, session: Session) -> None:
        self.generator = Generator(seed)
        self.three = Three(session, self.generator.tables)
        self.tally = Tally()

    async def to(self, statements: int) -> None:
        """Until there have been so many."""
        rng, next_look = self.generator.rng, _COMPARED_EVERY
        await self.three.begin()
        while self.tally.statements < statements:
            if rng.random() < 0.04 and self.generator.ready:
                await self._transaction()
            else:
                await self._one()
            if self.tally.statements >= next_look:
                self.three.compare_tables()
                next_look += _COMPARED_EVERY
        self.three.compare_tables()
        self.tally.refused, self.tally.disagreed = self.three.refused, self.three.disagreed

    async def _one(self) -> None:
        statement = self.generator.statement()
        self.tally.statements += 1
        self.tally.kinds[statement.kind] += 1
        await self.three.run(statement)

    async def _transaction(self) -> None:
        rng, generator, three = self.generator.rng, self.generator, self.three
        before, saved = generator.state(), list[list[Shape]]()
        await three.word("BEGIN")
        generator.within = True
        for _ in range(rng.randint(1, 10)):
            draw = rng.random()
            if draw < 0.1:
                saved.append(generator.state())
                await three.word(f"SAVEPOINT s{len(saved)}")
            elif draw < 0.2 and saved:
                await three.word(f"ROLLBACK TO s{len(saved)}")
                self._go_back(saved[-1])
            elif draw < 0.25 and saved:
                await three.word(f"RELEASE s{len(saved)}")
                saved.pop()
            else:
                await self._one()
        generator.within = False
        if rng.random() < 0.6:
            await three.word("COMMIT")
        else:
            await three.word("ROLLBACK")
            self._go_back(before)

    def _go_back(self, state: list[Shape]) -> None:
        self.generator.go_back(state)
        self.three.give_duckdb()

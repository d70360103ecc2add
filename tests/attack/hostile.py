"""Statements that try to use more than a query may: drawn from a grammar, the same for each seed.

`python -m tests.attack.hostile --count 100000` runs them and fails at the first one that exceeds a
limit; its report is in docs/soak.md.
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlglot import exp

from engine import limits
from engine.ports.system_workers import ThreadWorkers
from herd.catalog import Catalog
from herd.errors import Error
from herd.schema import Counters
from herd.sql.duck import DuckThreads, Work
from herd.sql.parsing import parse
from herd.sql.prepared import prepare
from herd.sql.query_pool import QueryPool
from herd.sql.query_processes import QueryProcesses
from herd.sql.query_settings import PROCESS_BYTES, QuerySettings
from herd.sql.small_queries import SmallQueries, small_settings

SETTINGS: Final = QuerySettings(
    connections=2,
    threads=1,
    memory_bytes=96 * limits.MIB,
    disk_bytes=32 * limits.MIB,
    result_bytes_max=16 * limits.MIB,
    run_timeout_ms=100,
)
_ENDED_S: Final = 1.0
"""A query must have ended this long after its time limit."""
_LATE_S: Final = 10.0
"""The additional time that is allowed on a busy machine."""
_NO_TABLES: Final = Catalog({}, {}, Counters())
_NUMBERS: Final = ("i", "i * 7 % 1000", "hash(i) % 97", "i / 3", "-i", "length(i::VARCHAR)")
_AGGREGATES: Final = (
    *("count(*)", "sum(i)", "list(i)", "string_agg(i::VARCHAR, ',')", "median(i)", "mode(i)"),
    *("array_agg(i ORDER BY hash(i))", "histogram(i)", "count(DISTINCT i)", "max(repeat('x', 99))"),
)


class Grammar:
    """Draws statements."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def statement(self) -> str:
        """A statement of a random kind."""
        rng = self._rng
        return rng.choice(
            (
                *(self._nested, self._chain, self._doubling, self._large_value, self._join),
                *(self._aggregate, self._sort, self._window, self._lists, self._recursive),
                *(self._many_columns, self._union, self._pattern, self._pivot, self._casts),
                *(self._bits_of_it, self._reads_files),
            )
        )()

    def _size(self, *sizes: int) -> int:
        return self._rng.choice(sizes) + self._rng.randrange(3)

    def _source(self, alias: str = "t") -> str:
        return f"range({self._size(0, 10, 1000, 10**6, 10**8, 10**12)}) {alias}(i)"

    def _nested(self) -> str:
        opened, closed = self._rng.choice(
            [
                ("(", ")"),
                ("[", "]"),
                ("abs(", ")"),
                ("CASE WHEN true THEN ", " ELSE 0 END"),
                ("-(", ")"),
            ]
        )
        depth = self._size(2, 50, 300, 950, 5000)
        return f"SELECT {opened * depth}1{closed * depth}"

    def _chain(self) -> str:
        word = self._rng.choice(("1 + ", "'a' || ", "true AND ", "NOT ", "- ", "1 IN (1) OR "))
        return (
            f"SELECT {word * self._size(5, 200, 900, 5000, 30_000)} {1 if word == '- ' else 'NULL'}"
        )

    def _doubling(self) -> str:
        depth = self._size(2, 8, 14, 24, 40)
        join = self._rng.choice((", ", " CROSS JOIN ", " JOIN "))
        on = " ON true" if join == " JOIN " else ""
        steps = [
            f"a{n} AS (SELECT x.v FROM a{n - 1} x{join}a{n - 1} y{on})" for n in range(1, depth)
        ]
        what = self._rng.choice(("count(*)", "sum(v)", "max(v)"))
        return (
            f"WITH {', '.join(['a0 AS (SELECT 1 AS v)', *steps])} SELECT {what} FROM a{depth - 1}"
        )

    def _large_value(self) -> str:
        size = self._size(10, 10**5, 10**7, 10**9, 2**31 - 3, 10**12)
        shape = self._rng.choice(
            (
                *("length(repeat('a', {0}))", "repeat('ab', {0})", "lpad('a', {0}, 'b')"),
                *("range({0})", "list_sort(range({0}))", "array_to_string(range({0}), '')"),
                *("md5(repeat('a', {0}))", "'a' || repeat('b', {0}) || 'c'", "bar(1, 0, 2, {0})"),
                *("repeat(repeat('a', 10000), {0})", "list_resize([1], {0})", "10 ** {0}"),
                *("factorial({0} % 40)", "bit_count({0})", "repeat('<', {0})::JSON"),
            )
        )
        return f"SELECT {shape.format(size)}"

    def _join(self) -> str:
        names = "abcdefgh"[: self._size(2, 3, 5)]
        sources = ", ".join(self._source(name) for name in names)
        where = " AND ".join(f"a.i % 7 >= {name}.i % 5" for name in names[1:])
        return f"SELECT count(*), max(a.i) FROM {sources} WHERE {where}"

    def _aggregate(self) -> str:
        rng = self._rng
        by = rng.choice(_NUMBERS)
        return (
            f"SELECT {by} AS g, {rng.choice(_AGGREGATES)} FROM {self._source()} GROUP BY g LIMIT 5"
        )

    def _sort(self) -> str:
        order = self._rng.choice((*_NUMBERS, "repeat('x', 100) || hash(i)", "random()"))
        return (
            f"SELECT i, repeat('y', 50) FROM {self._source()} ORDER BY {order} "
            f"LIMIT 3 OFFSET {self._size(0, 10**4, 10**8)}"
        )

    def _window(self) -> str:
        rows = self._rng.choice(
            ("ROWS UNBOUNDED PRECEDING", "ROWS BETWEEN 9 PRECEDING AND 9 FOLLOWING")
        )
        what = self._rng.choice(("sum(i)", "list(i)", "count(*)", "string_agg(i::VARCHAR, '')"))
        return (
            f"SELECT max(length(w::VARCHAR)) FROM (SELECT {what} OVER "
            f"(ORDER BY hash(i) {rows}) AS w FROM {self._source()})"
        )

    def _lists(self) -> str:
        size = self._size(3, 1000, 10**5)
        return self._rng.choice(
            (
                f"SELECT list_transform(range({size}), x -> list_sum(range(x)))",
                f"SELECT unnest(range({size})), unnest(range({size}))",
                f"SELECT flatten(list_transform(range({size}), x -> range({size})))",
                f"SELECT list_reduce(range(1, {size + 2}), (a, b) -> a * b % 7)",
                f"SELECT len(list_distinct(list_transform(range({size}), x -> repeat('a', x))))",
                f"SELECT map(range({size}), range({size}))",
            )
        )

    def _recursive(self) -> str:
        step = self._rng.choice(("n + 1", "n * 2", "n"))
        both = self._rng.choice(("UNION ALL", "UNION"))
        more = self._rng.choice(("", ", range(3)"))
        return (
            f"WITH RECURSIVE r(n) AS (SELECT 1 {both} SELECT {step} FROM r{more} "
            f"WHERE n < {self._size(10, 10**4, 10**9)}) SELECT count(*) FROM r"
        )

    def _many_columns(self) -> str:
        count = self._size(10, 1000, 8000)
        return f"SELECT {', '.join(f'i + {n} AS c{n}' for n in range(count))} FROM range(3) t(i)"

    def _union(self) -> str:
        both = self._rng.choice((" UNION ALL ", " UNION ", " EXCEPT ", " INTERSECT "))
        return both.join([f"SELECT {n}" for n in range(self._size(2, 100, 800, 3000))])

    def _pattern(self) -> str:
        text = f"repeat('a', {self._size(10, 1000, 10**6)})"
        return self._rng.choice(
            (
                f"SELECT regexp_matches({text}, '(a+)+$')",
                f"SELECT regexp_replace({text}, '(a|aa)*', 'b', 'g')",
                f"SELECT regexp_matches('a', repeat('(a?)', {self._size(5, 500, 5000)}))",
                f"SELECT {text} LIKE repeat('%a', {self._size(3, 300, 3000)}) || 'b'",
                f"SELECT levenshtein({text}, {text} || 'b')",
                f"SELECT regexp_extract_all({text}, 'a')",
                f"SELECT string_split({text}, 'a')",
            )
        )

    def _pivot(self) -> str:
        return (
            f"SELECT * FROM (SELECT i, i % {self._size(3, 100, 3000)} AS k FROM {self._source()}) "
            "GROUP BY ALL ORDER BY ALL LIMIT 2"
        )

    def _casts(self) -> str:
        return self._rng.choice(
            (
                f"SELECT CAST(NULL AS INT{'[]' * self._size(1, 100, 3000)})",
                f"SELECT CAST(repeat('9', {self._size(5, 100, 10**6)}) AS HUGEINT)",
                f"SELECT CAST(repeat('[', {self._size(5, 1000, 10**6)}) AS JSON)",
                "SELECT CAST('{\"a\":' AS STRUCT(a STRUCT(b INT[])))",
                f"SELECT {'CAST(' * self._size(2, 400, 2000)}1{' AS INT)' * 3}",
                "SELECT CAST(range(100000) AS VARCHAR[])",
            )
        )

    def _bits_of_it(self) -> str:
        """Text that is barely SQL."""
        words = (
            "SELECT",
            "FROM",
            "(",
            ")",
            "range(9)",
            ",",
            "'",
            "WITH",
            "a",
            "AS",
            "1",
            "/*",
            ";",
            "$1",
        )
        return " ".join(self._rng.choices(words, k=self._size(2, 10, 60)))

    def _reads_files(self) -> str:
        return self._rng.choice(
            (
                "SELECT * FROM read_csv('/etc/passwd')",
                "SELECT * FROM glob('/**')",
                "COPY (SELECT 1) TO '/tmp/x'",
                "ATTACH '/tmp/x.db'",
                "INSTALL httpfs",
                "SET memory_limit = '1TB'",
                "SELECT * FROM '/etc/hosts'",
                "PRAGMA database_list",
            )
        )


@dataclass(slots=True)
class Outcome:
    """The results of the statements."""

    ends: Counter[str] = field(default_factory=Counter)
    """How many ended with an answer ("") or with an SQLSTATE."""
    held_bytes: int = 0
    """The most memory that one process held."""
    slowest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """Statements that exceeded a limit, and which one."""


class Attack:
    """Runs statements the way a node does, and observes the processes from outside."""

    def __init__(self, pool: QueryPool, supervisor: int) -> None:
        self._pool = pool
        self._supervisor = supervisor
        self.outcome = Outcome()

    async def ask(self, text: str) -> None:
        """Run one statement, and record how it ended."""
        begun_s = time.monotonic()
        try:
            await self._pool.run(lambda: _work(text))
            end = ""
        except Error as error:
            end = error.code
        except Exception as error:
            end = type(error).__name__
            self._wrong(text, f"an error that is not of the database: {error!r}")
        took_s = time.monotonic() - begun_s
        self.outcome.ends[end] += 1
        self.outcome.slowest_s = max(self.outcome.slowest_s, took_s)
        if took_s > SETTINGS.run_timeout_ms / 1000 + _ENDED_S + _LATE_S:
            self._wrong(text, f"it took {took_s:.1f} s")

    def look(self) -> None:
        """Measure the memory of the processes."""
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/{self._supervisor}/task/{self._supervisor}/children").read_text()
            for pid in listed.split():
                fields = Path(f"/proc/{pid}/statm").read_text().split()
                held = (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")
                self.outcome.held_bytes = max(self.outcome.held_bytes, held)

    def _wrong(self, text: str, why: str) -> None:
        self.outcome.wrong.append(f"{why}: {text[:300]}")


def _work(text: str) -> Work:
    """A statement in the form that a server runs. Raises the errors of parsing it."""
    tree = parse(text).tree
    if not isinstance(tree, exp.Query | exp.Values):
        raise Error("no query")
    query = prepare(tree, _NO_TABLES, {}, "default")
    return Work(query.sql, (), {}, small=query.small(()))


@asynccontextmanager
async def attacking() -> AsyncIterator[Attack]:
    """A target with query processes that may hold little."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    runner = QueryProcesses(workers, SETTINGS)
    small = DuckThreads(workers, small_settings(SETTINGS))
    pool = QueryPool(SmallQueries(small, runner), SETTINGS)
    try:
        with contextlib.suppress(Error):
            await pool.run(lambda: Work("SELECT 1", (), {}))
        assert runner._supervisor is not None
        yield Attack(pool, runner._supervisor._child.pid)
    finally:
        await pool.close()
        await workers.close()


async def attack(seed: int, count: int) -> Outcome:
    """Run `count` statements of a seed, as many at a time as allowed."""
    grammar = Grammar(seed)
    texts = (grammar.statement() for _ in range(count))

    async def ask_all(on: Attack) -> None:
        for text in texts:
            await on.ask(text)

    async with attacking() as on:
        asking = [asyncio.ensure_future(ask_all(on)) for _ in range(SETTINGS.connections)]
        while not all(one.done() for one in asking):
            on.look()
            await asyncio.wait(asking, timeout=0.01)
        await asyncio.gather(*asking)
        return on.outcome


HELD_BYTES_MAX: Final = int(1.1 * (SETTINGS.memory_bytes + PROCESS_BYTES)) + 48 * limits.MIB
"""A tenth more than a process may hold, without memory shared with its supervisor."""


def main() -> int:
    """Run with these command-line arguments; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.hostile", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    begun_s = time.monotonic()
    found = asyncio.run(attack(given.seed, given.count))
    for line in found.wrong:
        print(line)
    print(
        f"{given.count} statements: {dict(found.ends.most_common())}; a process held "
        f"{found.held_bytes // limits.MIB} of {HELD_BYTES_MAX // limits.MIB} MiB at most, "
        f"the slowest took {found.slowest_s:.1f} s; {time.monotonic() - begun_s:.0f} s in all"
    )
    return int(bool(found.wrong) or found.held_bytes > HELD_BYTES_MAX)


if __name__ == "__main__":
    sys.exit(main())

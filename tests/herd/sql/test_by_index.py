"""Queries by an index: they answer what a scan answers, whatever has changed, and say their way."""

import datetime
import random
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from herd.schema import Building, Index
from herd.transaction import Isolation
from tests.herd.sql.sessions import Asking, asking

COLUMNS = "(id INT PRIMARY KEY, a INT, b VARCHAR, c DATE, d DECIMAL(8,2) NOT NULL, e BIGINT)"
INDEXES = (
    "CREATE INDEX by_a_b ON t (a, b)",
    "CREATE INDEX by_b ON t (b)",
    "CREATE INDEX by_c_d ON t (c, d)",
    "CREATE UNIQUE INDEX by_e ON t (e)",
    "CREATE UNIQUE INDEX by_d_id ON t (d, id)",
)
TEXTS = ("", "a", "ab", "ab%", "b", "b\x00c", "ü", "ÿz", "\U0001f404")


class Pair:
    """Two tables with the same rows: `t` has indexes, `u` has none."""

    def __init__(self, on: Asking, seed: int) -> None:
        self.on = on
        self.rng = random.Random(seed)
        self.next_id = 0
        self.next_unique = 0

    async def make(self) -> None:
        await self.on.run(f"CREATE TABLE t {COLUMNS}", f"CREATE TABLE u {COLUMNS}", *INDEXES)
        for _ in range(40):
            await self.insert(self.on.session)

    def value(self, column: str) -> Any:
        rng = self.rng
        if column == "a":
            return rng.randrange(-3, 6)
        if column == "b":
            return rng.choice(TEXTS)
        if column == "c":
            return datetime.date(2026, 1, rng.randrange(1, 8))
        if column == "d":
            return Decimal(rng.randrange(-300, 300)) / 100
        return rng.randrange(max(self.next_unique, 1))

    def maybe(self, column: str) -> Any:
        return None if self.rng.random() < 0.2 else self.value(column)

    async def insert(self, session: Any) -> None:
        self.next_id += 1
        self.next_unique += 1
        unique = None if self.rng.random() < 0.3 else self.next_unique
        row = [self.next_id, *map(self.maybe, "abc"), self.value("d"), unique]
        await self.both(session, "INSERT INTO {} VALUES (?, ?, ?, ?, ?, ?)", row)

    def condition(self) -> tuple[str, list[Any]]:
        parts, given = [], list[Any]()
        for _ in range(self.rng.choice((1, 1, 2, 2, 3))):
            text, values = self.part()
            parts.append(text)
            given += values
        return " AND ".join(parts), given

    def part(self) -> tuple[str, list[Any]]:
        rng = self.rng
        column = rng.choice("aaabbccdee")
        kind = rng.randrange(9)
        negated = "NOT " if rng.random() < 0.25 else ""
        if kind <= 2:
            return f"{column} = ?", [self.maybe(column)]
        if kind == 3:
            values = [self.value(column) for _ in range(rng.randrange(1, 4))]
            return f"{column} {negated}IN ({', '.join('?' * len(values))})", values
        if kind == 4:
            return f"{column} {negated}BETWEEN ? AND ?", [self.value(column), self.value(column)]
        if kind == 5:
            return f"{column} {rng.choice(('<', '<=', '>', '>='))} ?", [self.value(column)]
        if kind == 6:
            return f"? {rng.choice(('<', '>='))} {column}", [self.value(column)]
        if kind == 7:
            ends = rng.choice(("%", "", "_", "%b"))
            return f"b {negated}LIKE ?", [rng.choice(TEXTS) + ends]
        return f"({column} IS NOT NULL AND id <> ?)", [rng.randrange(60)]

    async def both(self, session: Any, text: str, given: list[Any]) -> Any:
        one, other = [await session.execute(text.format(name), given) for name in "tu"]
        assert sorted(one.rows, key=repr) == sorted(other.rows, key=repr), (text, given)
        assert one.count == other.count, (text, given)
        return one

    async def ask(self, session: Any) -> None:
        condition, given = self.condition()
        await self.both(session, f"SELECT * FROM {{}} WHERE {condition}", given)
        shown = "count(*), sum(d), max(x.id)"
        await self.both(session, f"SELECT {shown} FROM {{}} x WHERE {condition}", given)

    async def change(self, session: Any) -> None:
        kind = self.rng.randrange(5)
        condition, given = self.condition()
        if kind <= 1:
            await self.insert(session)
        elif kind == 2:
            text = f"UPDATE {{}} SET a = a + 1, b = ? WHERE {condition}"
            await self.both(session, text, [self.maybe("b"), *given])
        elif kind == 3:
            text = f"UPDATE {{}} SET d = ROUND(d / 2 + 1, 1) WHERE {condition}"
            await self.both(session, text, given)
        elif self.rng.random() < 0.4:
            await self.both(session, f"DELETE FROM {{}} WHERE {condition}", given)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("isolation", list(Isolation))
async def test_an_index_answers_what_a_scan_answers(seed: int, isolation: Isolation) -> None:
    async with asking() as on:
        pair = Pair(on, seed)
        await pair.make()
        own, other = on.another(), on.another()
        for _ in range(2):
            await own.begin(isolation)
            await pair.ask(own)
            for _ in range(3):
                await pair.change(other)
            for _ in range(4):
                if isolation is Isolation.SNAPSHOT:
                    await pair.insert(own)
                else:
                    await pair.change(own)
                await pair.ask(own)
                await pair.ask(other)
            if pair.rng.random() < 0.3:
                await own.rollback()
            else:
                await own.commit()
            await pair.ask(other)
            await pair.both(other, "SELECT * FROM {}", [])
        on.check_indexes()


async def test_explain_tells_which_index_is_used() -> None:
    async with asking() as on:
        await Pair(on, 1).make()

        async def first_line(text: str) -> str:
            return str((await on.rows(f"EXPLAIN {text}"))[0][0])

        by = "t: rows by index {}, {} of entries"
        assert await first_line("SELECT * FROM t WHERE e = 7") == by.format("by_e", "1 range")
        found = await first_line("SELECT count(*) FROM t WHERE b IN ('a', 'b')")
        assert found == by.format("by_b", "2 ranges")
        found = await first_line("SELECT * FROM t WHERE a = 1 AND b LIKE 'a%' ORDER BY d LIMIT 3")
        assert found == by.format("by_a_b", "1 range")
        # By the whole primary key, and by nothing that an index begins with.
        assert "index" not in await first_line("SELECT * FROM t WHERE id = 4 AND a = 1 AND e = 7")
        assert "index" not in await first_line("SELECT * FROM t WHERE a + 0 = 1")
        assert "index" not in await first_line("SELECT * FROM t WHERE b NOT LIKE 'a%'")
        assert "index" not in await first_line("SELECT * FROM t WHERE a NOT IN (1, 2)")
        lines = await on.rows("EXPLAIN UPDATE t SET b = 'x' WHERE e = 7")
        assert (by.format("by_e", "1 range"),) in lines
        lines = await on.rows("EXPLAIN DELETE FROM t WHERE e = ?", [7])
        assert (by.format("by_e", "1 range"),) in lines


async def test_many_entries_of_a_table_in_memory_are_scanned() -> None:
    async with asking() as on:
        await Pair(on, 1).make()
        await on.rows("SELECT count(*) FROM t")
        found = await on.rows("EXPLAIN SELECT count(*) FROM t WHERE a >= -3")
        assert "pages in memory" in found[0][0]
        found = await on.rows("EXPLAIN SELECT count(*) FROM t WHERE e = 5")
        assert "by index by_e" in found[0][0]


async def test_an_index_of_the_own_transaction_is_not_looked_for_in_what_is_committed() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 5)")
        await on.session.begin()
        await on.run("CREATE INDEX by_a ON t (a)", "INSERT INTO t VALUES (2, 5)")
        assert await on.rows("SELECT id FROM t WHERE a = 5") == [(1,), (2,)]
        assert await on.rows("SELECT count(*) FROM t WHERE a = 5") == [(2,)]
        await on.run("TRUNCATE TABLE t", "INSERT INTO t VALUES (3, 5)")
        assert await on.rows("SELECT id FROM t WHERE a = 5") == [(3,)]
        assert await on.rows("SELECT count(*) FROM t WHERE a = 5") == [(1,)]
        await on.session.rollback()
        assert await on.rows("SELECT id FROM t WHERE a = 5") == [(1,)]


async def test_an_index_over_the_keys_of_a_join_leaves_its_other_rows_alone() -> None:
    async with asking() as on:
        await Pair(on, 2).make()
        text = (
            "SELECT x.id, y.id FROM {0} x LEFT JOIN {0} y ON x.id = y.e AND y.a > 0 "
            "WHERE x.b = 'a' AND (y.e IS NULL OR y.a < 4) ORDER BY 1, 2"
        )
        assert await on.rows(text.format("t")) == await on.rows(text.format("u"))
        text = "SELECT x.id, y.id FROM {0} x LEFT JOIN {0} y ON x.id = y.e WHERE y.a = 2 ORDER BY 1"
        assert await on.rows(text.format("t")) == await on.rows(text.format("u"))


async def test_an_index_that_is_being_built_is_not_used() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 5)")
        table = on.space.catalog.table("t")
        building = Index(1, "by_a", (table.column("a").number,), state=Building.BUILDING)
        begun = replace(table, indexes=(building,), next_index=2)
        transaction = on.space.begin()
        transaction.set_catalog(*transaction.catalog.with_table(begun))
        await transaction.commit()
        await on.run("INSERT INTO t VALUES (2, 5)")
        assert await on.rows("SELECT id FROM t WHERE a = 5") == [(1,), (2,)]
        assert await on.rows("SELECT count(*) FROM t WHERE a = 5") == [(2,)]
        assert await on.count("DELETE FROM t WHERE a = 5") == 2


async def test_nothing_is_read_to_tell_that_null_equals_nothing() -> None:
    async with asking() as on:
        await Pair(on, 1).make()
        lines = await on.rows("EXPLAIN SELECT count(*) FROM t WHERE a = NULL")
        assert "0 ranges of entries" in lines[0][0]
        assert await on.rows("SELECT id FROM t WHERE ? = e", [None]) == []
        assert await on.count("UPDATE t SET a = 1 WHERE e = ?", [None]) == 0


async def test_rows_over_one_batch_are_read_as_a_stream_again_and_again() -> None:
    async with asking() as on:
        await on.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "CREATE INDEX by_a ON t (a)")
        rows = [(number, number % 2) for number in range(9_000)]
        await on.session.execute_many("INSERT INTO t VALUES (?, ?)", rows)
        text = "SELECT count(*), sum(x.id - y.id) FROM t x JOIN t y USING (id) WHERE {}"
        await on.session.begin()
        await on.run("UPDATE t SET a = 0 WHERE id = 8999", "DELETE FROM t WHERE id = 1")
        found = await on.rows("EXPLAIN " + text.format("x.a = 1 AND y.a = 1"))
        assert "by index by_a" in found[0][0] and "by index by_a" in found[1][0]
        assert await on.rows(text.format("x.a = 1 AND y.a = 1")) == [(4_498, 0)]
        assert await on.count("DELETE FROM t WHERE a = 1") == 4_498
        await on.session.commit()
        assert await on.rows("SELECT count(*) FROM t WHERE a = 1") == [(0,)]
        on.check_indexes()

"""What a session does, wherever its tablespace runs. Subclasses say how herds are opened."""

import abc
import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from herd.errors import (
    LockTimeout,
    NoSuchTable,
    ParametersMismatch,
    ProgrammingError,
    SerializationFailure,
    SqlSyntaxError,
    TransactionEnded,
    UniqueViolation,
    ValueInvalid,
)
from herd.transaction import Isolation
from herd.types import BIGINT, TEXT

Opened = Any
"""`AsyncHerd` or `RemoteHerd`."""
COW = "CREATE TABLE cow (id INT PRIMARY KEY, name TEXT, milk DECIMAL(6, 2))"


class SessionsContract:
    """The suite."""

    @staticmethod
    @abc.abstractmethod
    def open(path: Path) -> AbstractAsyncContextManager[Opened]:
        """A herd of an empty folder."""

    @asynccontextmanager
    async def opened(self, path: Path) -> AsyncIterator[Opened]:
        """A herd with a table of two cows."""
        async with self.open(path) as opened:
            session = await opened.session()
            await session.execute(COW)
            await session.execute("INSERT INTO cow VALUES (1, 'Elsa', 21.5), (2, 'Resi', 18.25)")
            await session.close()
            yield opened

    async def test_a_row_is_selected_by_its_key(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            for _ in range(2):
                result = await session.execute("SELECT name, milk FROM cow WHERE id = ?", [1])
                assert list(result.rows) == [("Elsa", Decimal("21.50"))]
                assert [column.name for column in result.columns] == ["name", "milk"]
                assert (result.count, result.kind) == (1, "SELECT")

    async def test_a_query_is_answered_in_order(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            result = await session.execute(
                "SELECT name FROM cow WHERE milk > :least ORDER BY milk", {"least": Decimal(1)}
            )
            assert list(result.rows) == [("Resi",), ("Elsa",)]
            assert result.table is not None and result.table.num_rows == 2

    async def test_changes_are_counted(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            assert (await session.execute("UPDATE cow SET milk = milk + 1")).count == 2
            assert (await session.execute("UPDATE cow SET milk = 0 WHERE id = ?", [9])).count == 0
            assert (await session.execute("DELETE FROM cow WHERE id = 1")).count == 1

    async def test_values_of_all_types_come_back_as_they_went(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            await session.execute(
                "CREATE TABLE all_types (id BIGINT PRIMARY KEY, flag BOOLEAN, small TINYINT, "
                "part DOUBLE, exact DECIMAL(38, 4), name VARCHAR(20), data BLOB, day DATE, "
                "hour TIME, moment TIMESTAMP, instant TIMESTAMPTZ, identity UUID, document JSON, "
                "weights FLOAT[])"
            )
            values = (
                *(
                    -(2**63),
                    True,
                    -128,
                    0.1,
                    Decimal("12345678901234567890123456789.1234"),
                    "Kuh 🐄",
                ),
                *(b"\x00\xff", datetime.date(1, 1, 1), datetime.time(23, 59, 59, 999_999)),
                datetime.datetime(1969, 12, 31, 23, 59, 59, 1),
                datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC),
                *(uuid.UUID(int=7), '{"a": 1}', [0.5, -1.0]),
            )
            marks = ", ".join("?" * len(values))
            await session.execute(f"INSERT INTO all_types VALUES ({marks})", values)
            nothing = [5] + [None] * (len(values) - 1)
            await session.execute(f"INSERT INTO all_types VALUES ({marks})", nothing)
            by_key = await session.execute("SELECT * FROM all_types WHERE id = ?", [-(2**63)])
            assert list(by_key.rows) == [values]
            found = await session.execute("SELECT * FROM all_types ORDER BY id")
            assert list(found.rows) == [values, tuple(nothing)]
            kinds = [column.type and column.type.kind for column in by_key.columns]
            assert None not in kinds
            assert kinds == [column.type and column.type.kind for column in found.columns]

    async def test_many_rows_are_all_or_none(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            rows = [(number, f"cow {number}", Decimal(number)) for number in range(10, 3_010)]
            result = await session.execute_many("INSERT INTO cow VALUES (?, ?, ?)", rows)
            assert result.count == 3_000
            with pytest.raises(UniqueViolation):
                await session.execute_many(
                    "INSERT INTO cow VALUES (?, ?, 0)", [(4_000, ""), (1, "")]
                )
            assert list((await session.execute("SELECT count(*), sum(id) FROM cow")).rows) == [
                (3_002, sum(range(10, 3_010)) + 3)
            ]

    async def test_a_result_of_many_pieces_comes_whole(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            text = "SELECT i, repeat('x', 100) FROM range(40000) r(i) ORDER BY i DESC"
            result = await session.execute(text)
            assert len(result.rows) == result.count == 40_000
            assert result.rows[39_999] == (0, "x" * 100) and result.rows[0][0] == 39_999

    async def test_an_error_has_its_class_place_and_hint(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            with pytest.raises(NoSuchTable) as raised:
                await session.execute("SELECT * FROM bull")
            assert raised.value.code == "42P01" and raised.value.place == 14
            with pytest.raises(SqlSyntaxError) as wrong:
                await session.execute("SELECT FROM WHERE")
            assert wrong.value.place is not None
            with pytest.raises(ParametersMismatch):
                await session.execute("SELECT * FROM cow WHERE id = ?", [])
            with pytest.raises(ValueInvalid):
                await session.execute("SELECT * FROM cow WHERE id = ?", [object()])
            with pytest.raises(UniqueViolation):
                await session.execute("INSERT INTO cow VALUES (1, NULL, NULL)")
            assert (await session.execute("SELECT * FROM cow")).count == 2

    async def test_a_transaction_is_seen_by_others_when_it_is_committed(
        self, tmp_path: Path
    ) -> None:
        async with self.opened(tmp_path) as herd:
            session, other = await herd.session(autocommit=False), await herd.session()
            await session.execute("UPDATE cow SET name = 'Alma' WHERE id = 1")
            assert session.transaction is not None and other.transaction is None
            seen = "SELECT name FROM cow WHERE id = 1"
            assert list((await other.execute(seen)).rows) == [("Elsa",)]
            assert list((await session.execute(seen)).rows) == [("Alma",)]
            await session.commit()
            assert session.transaction is None
            assert list((await other.execute(seen)).rows) == [("Alma",)]
            await session.commit()

    async def test_a_rollback_takes_everything_back(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            await session.execute("BEGIN")
            assert session.transaction is not None
            await session.execute("CREATE TABLE bull (id INT PRIMARY KEY)")
            await session.execute("DELETE FROM cow")
            await session.rollback()
            assert session.transaction is None
            assert (await session.execute("SELECT * FROM cow")).count == 2
            with pytest.raises(NoSuchTable):
                await session.execute("SELECT * FROM bull")

    async def test_words_and_calls_of_transactions_are_one(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            await session.begin()
            with pytest.raises(ProgrammingError):
                await session.begin()
            with pytest.raises(ProgrammingError):
                await session.execute("BEGIN")
            await session.execute("SAVEPOINT here")
            await session.execute("DELETE FROM cow")
            await session.execute("ROLLBACK TO here")
            assert (await session.execute("COMMIT;")).kind == "COMMIT"
            assert session.transaction is None
            assert (await session.execute("SELECT * FROM cow")).count == 2
            await session.execute("SET AUTOCOMMIT = 0")
            assert session.autocommit is False
            await session.execute("SELECT * FROM cow")
            assert session.transaction is not None

    async def test_a_statement_that_fails_leaves_its_transaction(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session(autocommit=False)
            await session.execute("UPDATE cow SET name = 'Alma' WHERE id = 1")
            with pytest.raises(UniqueViolation):
                await session.execute("INSERT INTO cow VALUES (2, 'x', 0)")
            assert session.transaction is not None
            await session.commit()
            assert list((await session.execute("SELECT name FROM cow WHERE id = 1")).rows) == [
                ("Alma",)
            ]

    async def test_a_snapshot_stays_and_its_conflict_is_told(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session, other = await herd.session(), await herd.session()
            await session.begin(Isolation.SNAPSHOT)
            assert (await session.execute("SELECT name FROM cow WHERE id = 1")).rows[0] == ("Elsa",)
            await other.execute("UPDATE cow SET name = 'Alma' WHERE id = 1")
            assert (await session.execute("SELECT name FROM cow WHERE id = 1")).rows[0] == ("Elsa",)
            with pytest.raises(SerializationFailure) as raised:
                await session.execute("UPDATE cow SET name = 'Berta' WHERE id = 1")
            assert raised.value.retryable
            await session.rollback()
            assert session.isolation is Isolation.READ_COMMITTED

    async def test_closing_a_session_rolls_back(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session, other = await herd.session(autocommit=False), await herd.session()
            await session.execute("UPDATE cow SET name = 'Alma' WHERE id = 1")
            await session.close()
            await session.close()
            await other.execute("UPDATE cow SET name = 'Berta' WHERE id = 1")
            assert (await other.execute("SELECT name FROM cow WHERE id = 1")).rows[0] == ("Berta",)

    async def test_one_who_stops_waiting_for_a_lock_does_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session, other = await herd.session(autocommit=False), await herd.session()
            await session.execute("UPDATE cow SET name = 'Alma' WHERE id = 1")
            waiting = asyncio.ensure_future(other.execute("UPDATE cow SET name = 'B' WHERE id = 1"))
            for _ in range(20):
                await other.execute("SELECT * FROM cow WHERE id = 2")
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await session.commit()
            await session.execute("UPDATE cow SET milk = 1 WHERE id = 1")
            await session.commit()
            assert (await other.execute("SELECT name FROM cow WHERE id = 1")).rows[0] == ("Alma",)

    async def test_a_transaction_that_ended_by_itself_is_kept_in_mind(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            one, two = await herd.session(autocommit=False), await herd.session(autocommit=False)
            update = "UPDATE cow SET milk = 0 WHERE id = ?"
            await one.execute(update, [1])
            await two.execute(update, [2])
            waiting = asyncio.ensure_future(one.execute(update, [2]))
            ends: tuple[Any, Any] = await asyncio.gather(
                waiting, two.execute(update, [1]), return_exceptions=True
            )
            first, second = ends
            loser = one if isinstance(first, Exception) else two
            assert isinstance(first, Exception) != isinstance(second, Exception)
            assert loser.transaction is not None
            with pytest.raises(TransactionEnded):
                await loser.execute(update, [1])
            with pytest.raises(TransactionEnded):
                await loser.commit()
            assert loser.transaction is None
            await (two if loser is one else one).commit()

    async def test_many_tasks_use_one_session(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            update = "UPDATE cow SET milk = milk + 1 WHERE id = ?"
            await asyncio.gather(*(session.execute(update, [1 + n % 2]) for n in range(100)))
            found = await session.execute("SELECT sum(milk) FROM cow")
            assert found.rows[0] == (Decimal("139.75"),)

    async def test_rows_are_stored_and_found_without_sql(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            table = await herd.table("cow")
            assert await table.get(1) == {"id": 1, "name": "Elsa", "milk": Decimal("21.50")}
            assert await table.get_row((2,)) == (2, "Resi", Decimal("18.25"))
            assert await table.get_many([1, 7]) == [await table.get(1), None]
            await table.put({"id": 3, "name": "Alma"})
            with pytest.raises(UniqueViolation):
                await table.insert({"id": 3, "name": "Berta"})
            assert await table.update(3, {"milk": Decimal(1)})
            assert not await table.update(4, {"milk": 1})
            assert await table.update(3, lambda row: {"milk": row["milk"] + 1})
            assert await table.get(3) == {"id": 3, "name": "Alma", "milk": Decimal("2.00")}
            assert await table.delete(3) and not await table.delete(3)
            assert await table.put_many({"id": n, "name": "x"} for n in range(10, 350)) == 340
            assert [row["id"] async for row in table.scan(first=10, last=300)] == list(
                range(10, 301)
            )
            assert [row["id"] async for row in table.scan(limit=3)] == [1, 2, 10]
            with pytest.raises(NoSuchTable):
                await herd.table("bull")

    async def test_functions_that_change_one_row_do_not_lose_each_other(
        self, tmp_path: Path
    ) -> None:
        async with self.opened(tmp_path) as herd:
            table = await herd.table("cow")
            await table.put({"id": 5, "milk": 0})
            changes = (table.update(5, lambda row: {"milk": row["milk"] + 1}) for _ in range(30))
            await asyncio.gather(*changes)
            found = await table.get(5)
            assert found is not None and found["milk"] == 30

    async def test_keys_of_text_are_found_by_their_beginning(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            kinds = {"farm": TEXT, "cow": TEXT, "age": BIGINT}
            table = await herd.create_table("names", kinds, ["farm", "cow"])
            rows = [("a", "Alma"), ("a", "Anna"), ("a", "Berta"), ("b", "Alma")]
            await table.put_many({"farm": farm, "cow": cow, "age": 1} for farm, cow in rows)
            assert [row["cow"] async for row in table.scan(prefix=("a", "A"))] == ["Alma", "Anna"]
            assert [row["cow"] async for row in table.scan(prefix=("b",))] == ["Alma"]
            assert await table.get(("a", "Berta")) == {"farm": "a", "cow": "Berta", "age": 1}

    async def test_rows_without_sql_are_part_of_a_transaction(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session, table = await herd.session(), await herd.table("cow")
            transaction = await session.begin()
            await table.put({"id": 6, "name": "Alma"}, transaction=transaction)
            found = await table.get(6, transaction=transaction)
            assert found is not None and found["name"] == "Alma"
            assert await table.get(6) is None
            await session.execute("UPDATE cow SET milk = 1 WHERE id = 6")
            await session.commit()
            assert (await table.get(6) or {})["milk"] == 1
            with pytest.raises(TransactionEnded):
                await table.put({"id": 7}, transaction=transaction)

    async def test_tablespaces_are_made_and_listed(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            with pytest.raises(ProgrammingError, match="no tablespace farm"):
                await herd.session("farm")
            await herd.make("farm")
            session = await herd.session("Farm")
            await session.execute(COW)
            assert (await session.execute("SELECT * FROM cow")).count == 0
            assert await herd.names() == ["default", "farm"]

    async def test_a_large_value_goes_in_parts(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session = await herd.session()
            await session.execute("CREATE TABLE big (id INT PRIMARY KEY, data BLOB)")
            data = bytes(range(256)) * 4_096 * 3
            await session.execute("INSERT INTO big VALUES (1, ?)", [data])
            result = await session.execute("SELECT data FROM big WHERE id = 1")
            assert result.rows[0] == (data,)
            assert (await session.execute("SELECT id, data FROM big")).rows[0] == (1, data)

    async def test_a_lock_is_waited_for_no_longer_than_said(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as herd:
            session, other = await herd.session(autocommit=False), await herd.session()
            await session.execute("SELECT * FROM cow WHERE id = 1 FOR UPDATE")
            waiting = asyncio.ensure_future(other.execute("UPDATE cow SET milk = 2 WHERE id = 1"))
            for _ in range(20):
                await session.execute("SELECT * FROM cow WHERE id = 2")
            assert not waiting.done()
            await session.rollback()
            assert (await waiting).count == 1 and LockTimeout.retryable

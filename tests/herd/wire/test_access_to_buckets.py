"""Tables that say what buckets hold, in somebody's tablespace: whom it is granted reads them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blobit.tables import TABLES
from herd.errors import AccessDenied
from herd.permits import OF_BUCKETS
from tests.herd.wire.test_access import NODE, House, logged_in, opened


@asynccontextmanager
async def with_buckets(path: Path) -> AsyncIterator[House]:
    """Buckets live in the tablespace `shop`, of which ann is administrator."""
    async with opened(path) as house:
        session = await house.herd.session("shop")
        for text in TABLES.values():
            await session.execute(text)
        await session.close()
        yield house


def test_the_tables_of_buckets_are_known_by_their_names() -> None:
    assert set(OF_BUCKETS) == set(TABLES)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO dying VALUES (1, 1, 1)",
        "UPDATE OBJECTS SET length = 1",
        'DELETE FROM "refs"',
        "DELETE FROM counts",
        "SELECT * FROM ledgers FOR UPDATE",
        "TRUNCATE TABLE dying",
        "DROP TABLE refs",
        "ALTER TABLE objects ADD COLUMN more BIGINT",
        "CREATE TABLE calf (id BIGINT PRIMARY KEY REFERENCES homes (bucket_id))",
        "INGEST 12/0/345/987 AS " + "0a" * 16,
    ],
)
async def test_sql_changes_no_table_of_buckets_for_who_is_not_the_stores_administrator(
    tmp_path: Path, text: str
) -> None:
    async with with_buckets(tmp_path) as house:
        assert "what buckets hold" in await house.refused(logged_in("ann"), text)
        assert await house.told(logged_in("ann"), "SELECT * FROM dying") == []


async def test_buckets_of_a_version_that_did_not_count_are_guarded_alike(tmp_path: Path) -> None:
    async with with_buckets(tmp_path) as house:
        session = await house.herd.session("shop")
        await session.execute("DROP TABLE counts")
        await session.close()
        text = "INSERT INTO dying VALUES (1, 1, 1)"
        assert "what buckets hold" in await house.refused(logged_in("ann"), text)


async def test_no_call_changes_a_table_of_buckets_for_who_is_not_the_stores_administrator(
    tmp_path: Path,
) -> None:
    async with with_buckets(tmp_path) as house:
        row = {"ledger_id": 1, "bucket_id": 1, "since_ms": 1}
        async with house.remote(logged_in("ann")) as remote:
            table = await remote.table("dying", "shop")
            with pytest.raises(AccessDenied, match="what buckets hold"):
                await table.put(row)
            with pytest.raises(AccessDenied, match="what buckets hold"):
                await table.delete(1)
            cow = await remote.table("cow", "shop")
            await cow.put({"id": 1, "name": "Alma"})
            assert await table.get(1) is None
        async with house.remote(NODE) as remote:
            await (await remote.table("dying", "shop")).put(row)
        assert await house.told(NODE, "SELECT ledger_id FROM dying") == [(1,)]


async def test_sql_reads_nothing_of_what_buckets_share_whatever_was_granted_of_it(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as house:
        await house.herd.make("blobs__pool_1")
        session = await house.herd.session("blobs__pool_1")
        for statement in TABLES.values():
            await session.execute(statement)
        await session.execute("INSERT INTO homes VALUES (7)")
        await session.close()
        async with house.remote(logged_in("eve")) as remote:
            assert "blobs__pool_1" not in await remote.names()
            with pytest.raises(AccessDenied, match="may not read tablespace blobs__pool_1"):
                await remote.table("homes", "blobs__pool_1")
            with pytest.raises(AccessDenied, match="may not read tablespace blobs__pool_1"):
                await remote.session("blobs__pool_1")
        assert await house.told(NODE, "SELECT * FROM homes", "blobs__pool_1") == [(7,)]


async def test_a_table_that_is_only_called_like_one_of_buckets_is_its_owners(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as house, house.remote(logged_in("ann")) as remote:
        session = await remote.session("shop")
        await session.execute("CREATE TABLE objects (id BIGINT PRIMARY KEY)")
        await session.execute("INSERT INTO objects VALUES (7)")
        assert list((await session.execute("SELECT id FROM objects")).rows) == [(7,)]
        await session.close()

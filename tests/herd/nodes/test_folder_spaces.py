"""Tablespaces of a folder are made and dropped by statements, too."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import herd
from engine.errors import MetadataUnavailable, RecoveryIncomplete
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from herd import store
from herd.errors import (
    Error,
    LeaderUnavailable,
    NameTaken,
    NoSuchTable,
    NotSupportedError,
    ProgrammingError,
    StorageFailed,
)
from herd.nodes.directory import Directory
from herd.nodes.facts import SPACES, SpaceFact
from herd.nodes.folder_spaces import mark_dropped
from tests.herd.wire.wiring import embedded, through_socket


async def test_a_folders_tablespaces_are_made_and_dropped_by_statements(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        session = await opened.session()
        await session.execute("CREATE TABLESPACE farm")
        with pytest.raises(NameTaken):
            await session.execute("CREATE TABLESPACE farm")
        await session.execute("CREATE TABLESPACE IF NOT EXISTS farm WITH replicas = 1, wait = 10")
        for text in (
            "CREATE TABLESPACE other WITH replicas = 3",
            "CREATE TABLESPACE other WITH leader = 'n1'",
            "ALTER TABLESPACE farm SET replicas = 2",
            "ALTER TABLESPACE farm LEADER n1",
            "ALTER TABLESPACE farm ADD REPLICA n1",
            "ALTER TABLESPACE farm DROP REPLICA n1",
            "ALTER TABLESPACE farm SET nodes = n1",
        ):
            with pytest.raises(NotSupportedError, match="folder"):
                await session.execute(text)
        farm = await opened.session("farm")
        await farm.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        await farm.execute("INSERT INTO cow VALUES (1)")
        await farm.execute("CHECKPOINT")
        ledgers = len(await opened.client.list_ledgers())
        await session.execute("DROP TABLESPACE farm")
        assert await opened.names() == ["default"]
        assert len(await opened.client.list_ledgers()) < ledgers
        assert not (tmp_path / "herd" / "farm").exists()
        with pytest.raises(ProgrammingError, match="was dropped"):
            await farm.execute("SELECT * FROM cow")
        with pytest.raises(ProgrammingError, match="no tablespace"):
            await session.execute("DROP TABLESPACE farm")
        await session.execute("DROP TABLESPACE IF EXISTS farm")
        await session.execute("CREATE TABLESPACE farm")
        again = await opened.session("farm")
        assert list((await again.execute("SHOW TABLES")).rows) == []


async def test_a_drop_that_was_cut_short_ends_when_the_name_is_used_again(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        await opened.make("farm")
        farm = await opened.session("farm")
        await farm.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        await mark_dropped(opened.client, "farm")
    async with herd.open_folder(tmp_path) as opened:
        with pytest.raises(ProgrammingError, match="no tablespace farm"):
            await opened.session("farm")
        await opened.make("farm")
        farm = await opened.session("farm")
        assert list((await farm.execute("SHOW TABLES")).rows) == []


async def test_a_drop_that_failed_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(log: ReplicatedLog, still: object) -> int:
        raise RecoveryIncomplete("no bookie answers")

    async with herd.open_folder(tmp_path) as opened:
        session = await opened.session()
        await session.execute("CREATE TABLESPACE farm")
        await (await opened.session("farm")).execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        with monkeypatch.context() as patched:
            patched.setattr(ReplicatedLog, "remove", fails)
            for _ in range(2):
                with pytest.raises(LeaderUnavailable, match="no bookie answers"):
                    await session.execute("DROP TABLESPACE farm")
        assert await opened.names() == ["default"]
        assert (tmp_path / "herd" / "farm").exists()
        await session.execute("DROP TABLESPACE IF EXISTS farm")
        assert not (tmp_path / "herd" / "farm").exists()
        await session.execute("CREATE TABLESPACE IF NOT EXISTS farm")
        farm = await opened.session("farm")
        assert list((await farm.execute("SHOW TABLES")).rows) == []


async def test_opening_a_folder_finishes_an_interrupted_drop(
    tmp_path: Path,
) -> None:
    async with herd.open_folder(tmp_path) as opened:
        await opened.session()
        await opened.make("farm")
        await opened.session("farm")
        await mark_dropped(opened.client, "farm")
    assert (tmp_path / "herd" / "farm").exists()
    async with herd.open_folder(tmp_path) as opened:
        await opened.session()
        assert opened._removing is not None
        await opened._removing
        assert not (tmp_path / "herd" / "farm").exists()


async def test_a_damaged_fact_of_one_tablespace_does_not_affect_the_others(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        await opened.make("good")
        await opened.make("bad")
        key = f"{SPACES}/bad"
        found = await opened.client.store.get(key)
        assert found is not None
        await opened.client.store.set(key, b"damaged", found.version)
    async with herd.open_folder(tmp_path) as opened:
        session = await opened.session("good")
        assert opened._removing is not None
        await opened._removing
        assert list((await session.execute("SHOW TABLES")).rows) == []
        await opened.make("other")
        assert await opened.names() == ["bad", "good", "other"]
        with pytest.raises(StorageFailed, match="damaged"):
            await opened.session("bad")


async def test_nothing_is_written_into_a_tablespace_that_may_be_marked_as_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def marks(client: LedgerClient, name: str) -> SpaceFact:
        await mark_dropped(client, name)
        raise MetadataUnavailable("the reply was lost")

    async with herd.open_folder(tmp_path) as opened:
        session = await opened.session()
        await session.execute("CREATE TABLESPACE farm")
        farm = await opened.session("farm")
        await farm.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        with monkeypatch.context() as patched:
            patched.setattr(store, "mark_dropped", marks)
            with pytest.raises(LeaderUnavailable, match="the reply was lost"):
                await session.execute("DROP TABLESPACE farm")
        with pytest.raises(Error):
            await farm.execute("INSERT INTO cow VALUES (1)")
        with pytest.raises(ProgrammingError, match="no tablespace farm"):
            await opened.session("farm")


async def test_a_name_is_listed_again_after_a_removal_whose_reply_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Directory.forget

    async def forgets(directory: Directory, name: str, uuid: str) -> None:
        await usual(directory, name, uuid)
        raise MetadataUnavailable("the reply was lost")

    async with herd.open_folder(tmp_path) as opened:
        session = await opened.session()
        await session.execute("CREATE TABLESPACE farm")
        with monkeypatch.context() as patched:
            patched.setattr(Directory, "forget", forgets)
            with pytest.raises(LeaderUnavailable, match="the reply was lost"):
                await session.execute("DROP TABLESPACE farm")
        await session.execute("CREATE TABLESPACE farm")
        assert await opened.names() == ["default", "farm"]


@pytest.mark.parametrize("turns", [0, 3, 8])
async def test_a_drop_continues_when_its_caller_is_cancelled(tmp_path: Path, turns: int) -> None:
    async with herd.open_folder(tmp_path) as opened:
        session = await opened.session()
        await session.execute("CREATE TABLESPACE farm")
        farm = await opened.session("farm")
        await farm.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        space, closing = await opened.tablespace("farm"), asyncio.Event()
        close = space.close

        async def told() -> None:
            closing.set()
            await close()

        space.close = told  # type: ignore[method-assign]
        dropping = asyncio.ensure_future(session.execute("DROP TABLESPACE farm"))
        await closing.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        dropping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropping
        await opened.make("farm")
        again = await opened.session("farm")
        assert list((await again.execute("SHOW TABLES")).rows) == []


@pytest.mark.parametrize("open_herd", [embedded, through_socket])
async def test_sessions_of_a_dropped_tablespace_never_write_into_its_successor(
    open_herd: Callable[[Path], AbstractAsyncContextManager[Any]], tmp_path: Path
) -> None:
    async with open_herd(tmp_path) as opened:
        admin = await opened.session()
        await admin.execute("CREATE TABLESPACE farm")
        idle, busy = await opened.session("farm"), await opened.session("farm")
        await idle.execute("CREATE TABLE cow (id INT PRIMARY KEY, fed INT)")
        await busy.execute("BEGIN")
        await busy.execute("INSERT INTO cow VALUES (1, 1)")
        await admin.execute("DROP TABLESPACE farm")
        await admin.execute("CREATE TABLESPACE farm")
        anew = await opened.session("farm")
        await anew.execute("CREATE TABLE cow (id INT PRIMARY KEY, fed INT)")
        for session, text in (
            (idle, "INSERT INTO cow VALUES (2, 2)"),
            (idle, "UPDATE cow SET fed = 3 WHERE id = 2"),
            (idle, "SELECT * FROM cow"),
            (busy, "COMMIT"),
        ):
            with pytest.raises(ProgrammingError, match="was dropped"):
                await session.execute(text)
        assert list((await anew.execute("SELECT * FROM cow")).rows) == []


@pytest.mark.parametrize("open_herd", [embedded, through_socket])
async def test_a_recreated_table_gets_everything_that_is_acknowledged_afterwards(
    open_herd: Callable[[Path], AbstractAsyncContextManager[Any]], tmp_path: Path
) -> None:
    async with open_herd(tmp_path) as opened:
        session, other = await opened.session(), await opened.session()
        made = "CREATE TABLE cow (id INT PRIMARY KEY, fed INT)"
        await session.execute(made)
        known = await opened.table("cow")
        await known.put({"id": 1, "fed": 1})
        change = "INSERT INTO cow VALUES (?, 1)"
        await session.execute(change, (2,))
        await other.execute("DROP TABLE cow")
        with pytest.raises(NoSuchTable):
            await known.put({"id": 3, "fed": 1})
        with pytest.raises(NoSuchTable):
            await session.execute(change, (4,))
        await other.execute(made)
        # A name is looked up at each call: what has it now gets the row, and shows it.
        await known.put({"id": 5, "fed": 1})
        await session.execute(change, (6,))
        rows = await other.execute("SELECT id FROM cow ORDER BY id")
        assert list(rows.rows) == [(5,), (6,)]

"""Tablespaces of a folder are made and dropped by statements, too."""

from pathlib import Path

import pytest

import herd
from herd.errors import NameTaken, NotSupportedError, OperationalError, ProgrammingError
from herd.nodes.folder_spaces import mark_dropped


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
        with pytest.raises(OperationalError):
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

"""The tablespaces of a folder: made once, shared by who opens the folder."""

import asyncio
from pathlib import Path

import pytest

import herd
import herdbook
from engine.ports.system_loop import background_loop
from herd.errors import InterfaceError, ProgrammingError
from herd.types import BIGINT

COLUMNS = {"id": BIGINT, "n": BIGINT}


async def test_the_default_tablespace_is_made_on_first_use(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        assert await opened.names() == []
        space = await opened.tablespace()
        assert await opened.tablespace("DEFAULT") is space
        assert await opened.names() == ["default"]
        assert (tmp_path / "herd" / "default").is_dir()


async def test_another_tablespace_is_made_only_where_that_is_asked(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        with pytest.raises(ProgrammingError, match="no tablespace farm"):
            await opened.tablespace("farm")
        farm = await opened.tablespace("farm", create=True)
        assert await opened.tablespace("Farm") is farm
        for name in ("", "../up", "a/b", "9", "x" * 64):
            with pytest.raises(ProgrammingError, match="name"):
                await opened.tablespace(name, create=True)
    async with herd.open_folder(tmp_path) as opened:
        assert await opened.names() == ["farm"]
        assert (await opened.tablespace("farm")).catalog.names == []


async def test_tablespaces_are_apart_from_each_other(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        await opened.tablespace("farm", create=True)
        here = await opened.create_table("cows", COLUMNS, ["id"])
        there = await opened.create_table("cows", COLUMNS, ["id"], "farm")
        await here.put({"id": 1, "n": 1})
        assert await there.get(1) is None


async def test_a_state_that_is_gone_is_made_anew_from_the_log(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        table = await opened.create_table("cows", COLUMNS, ["id"])
        await table.put({"id": 1, "n": 1})
    for file in (tmp_path / "herd" / "default").iterdir():
        file.unlink()
    async with herd.open_folder(tmp_path) as opened:
        table = await opened.table("cows")
        assert await table.get(1) == {"id": 1, "n": 1}


async def test_openers_on_one_loop_share_a_folder_until_the_last_one_ends(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as one:
        await one.create_table("cows", COLUMNS, ["id"])
        async with herd.open_folder(tmp_path / "." / "") as other:
            assert other is one
        assert (await one.table("cows")).name == "cows"
    with pytest.raises(InterfaceError, match="closed"):
        await one.tablespace("another", create=True)


async def test_a_book_and_a_connection_share_a_folder(tmp_path: Path) -> None:
    async with herdbook.open_async(tmp_path) as book, herd.open_folder(tmp_path) as opened:
        assert opened is book.herd
        table = await book.herd.create_table("cows", COLUMNS, ["id"])
        await table.put({"id": 1, "n": 1})


async def test_another_loop_uses_the_tablespaces_where_they_run(tmp_path: Path) -> None:
    async with herd.open_folder(tmp_path) as opened:
        await opened.tablespace()

        def other() -> None:
            with herd.open_herd(tmp_path) as second:
                table = second.create_table("cows", COLUMNS, ["id"])
                table.put({"id": 1, "n": 2})
                second.create_tablespace("farm")

        await asyncio.get_running_loop().run_in_executor(None, other)
        assert await opened.names() == ["default", "farm"]
        assert await (await opened.table("cows")).get(1) == {"id": 1, "n": 2}


def test_a_book_for_threads_has_tables(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        table = book.herd.create_table("cows", COLUMNS, ["id"])
        table.put({"id": 1, "n": 1})
    with herdbook.open(tmp_path) as book:
        assert book.herd.table("cows").get(1) == {"id": 1, "n": 1}
        assert book.herd.names() == ["default"]
        book.herd.create_tablespace("farm")
        assert book.herd.names() == ["default", "farm"]
    with pytest.raises(InterfaceError, match="closed"):
        book.herd.create_tablespace("barn")


async def test_the_loop_itself_may_not_wait_for_itself(tmp_path: Path) -> None:
    async def call() -> None:
        herd.open_herd(tmp_path)

    with pytest.raises(InterfaceError, match="event loop"):
        await asyncio.get_running_loop().run_in_executor(None, lambda: background_loop().run(call))

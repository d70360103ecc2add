"""Rows that a transaction locks by their keys, whether they are there or not."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from herd.errors import InterfaceError
from herd.store import AsyncHerd
from herd.types import BIGINT, TEXT
from herd.wire import messages
from tests.herd.wire.wiring import embedded, through_socket

Opening = Callable[[Path], AbstractAsyncContextManager[AsyncHerd]]


@pytest.mark.parametrize("opening", [embedded, through_socket])
async def test_a_key_without_a_row_is_locked_like_one_that_has_one(
    tmp_path: Path, opening: Opening
) -> None:
    async with opening(tmp_path) as herd:
        cows = await herd.create_table("cows", {"id": BIGINT, "name": TEXT}, ["id"])
        await cows.put({"id": 1, "name": "Alma"})
        one, other = await herd.session(), await herd.session()
        first: Any = await one.begin()
        second: Any = await other.begin()
        found = await cows.lock_many([2, 1], transaction=first)
        assert found == [None, {"id": 1, "name": "Alma"}]
        waiting = asyncio.ensure_future(cows.lock_many([2], transaction=second))
        await cows.put({"id": 2, "name": "Berta"}, transaction=first)
        await one.commit()
        assert await waiting == [{"id": 2, "name": "Berta"}]
        await other.rollback()
        await asyncio.gather(one.close(), other.close())


async def test_locks_without_a_transaction_are_refused(tmp_path: Path) -> None:
    async with through_socket(tmp_path) as herd:
        await herd.create_table("cows", {"id": BIGINT, "name": TEXT}, ["id"])
        table = await herd.table("cows")
        call = messages.Get("default", "cows", [1], locks=True)
        with pytest.raises(InterfaceError, match="only a transaction locks"):
            await table._calling.ask("default", call, again=False)  # type: ignore[attr-defined]


async def test_a_tablespace_that_is_made_again_has_tables_of_its_own(tmp_path: Path) -> None:
    async with through_socket(tmp_path) as herd:
        default = await herd.session()
        for number in range(3):
            await herd.make("own")
            table = await herd.create_table("cows", {"id": BIGINT}, ["id"], "own")
            await table.put({"id": number})
            assert [row async for row in table.scan()] == [{"id": number}]
            await default.execute("DROP TABLESPACE own")
        await default.close()
